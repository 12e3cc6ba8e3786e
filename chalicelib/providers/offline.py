"""The stand-in that answers when no provider is configured: deterministic, and says what it is."""

import re
from collections.abc import AsyncGenerator
from typing import Any, Final

import orjson

from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelRequest,
    ProviderOptions,
    TextDelta,
)
from chalicelib.providers.history import normalise

_PIECES = re.compile(r"\s*\S+\s*")
_EMPTY: Final[dict[str, Any]] = {
    "array": [],
    "boolean": False,
    "integer": 0,
    "number": 0,
    "object": {},
    "string": "",
}


class OfflineProvider:
    """Repeats what it was told, a word at a time. The same request gets the same answer.

    It calls no tools; where a schema asks for JSON, it gives the emptiest that there is.
    """

    def __init__(self, options: ProviderOptions) -> None:
        self.name, self.model = options.name, options.model

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`. Raises ProviderUnsupported for an image that is new."""
        normalise(request, provider=self.name, model=self.model, images=False)
        text = _answer(request) if request.schema is None else _emptiest(request.schema)
        for piece in _PIECES.findall(text) if request.stream else [text]:
            yield TextDelta(text=piece)
        yield Finished(reason="stop", provider=self.name, model=self.model)

    async def close(self) -> None:
        """Nothing to close."""


def _answer(request: ModelRequest) -> str:
    said = [one.content for one in request.messages if one.role == "user"]
    earlier = f" Before that you said {len(said) - 1} more." if len(said) > 1 else ""
    return (
        "I am Palimpsest's offline stand-in, not a model; set PAL_PROVIDERS to use one."
        f" You said: {said[-1] if said else ''}{earlier}"
    )


def _emptiest(schema: dict[str, Any]) -> str:
    return orjson.dumps(_instance(schema)).decode()


def _instance(schema: dict[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("enum"):
        return choices[0]
    if choices := schema.get("anyOf"):
        return _instance(choices[0])
    named = schema.get("properties", {})
    if required := schema.get("required"):
        return {name: _instance(named.get(name, {})) for name in required}
    kind = schema.get("type")
    return _EMPTY.get(kind[0] if isinstance(kind, list) else kind or "object")
