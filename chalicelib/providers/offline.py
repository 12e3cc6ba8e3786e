"""The stand-in that answers when no provider is configured: deterministic, and says what it is."""

import re
from collections.abc import AsyncGenerator

from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelRequest,
    ProviderOptions,
    TextDelta,
)

_PIECES = re.compile(r"\s*\S+\s*")


class OfflineProvider:
    """Repeats what it was told, a word at a time. The same request gets the same answer."""

    name = "offline"

    def __init__(self, options: ProviderOptions) -> None:
        self.model = options.model

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        said = [one.content for one in request.messages if one.role == "user"]
        earlier = f" Before that you said {len(said) - 1} more." if len(said) > 1 else ""
        text = (
            "I am Palimpsest's offline stand-in, not a model; set PAL_PROVIDERS to use one."
            f" You said: {said[-1] if said else ''}{earlier}"
        )
        for piece in _PIECES.findall(text):
            yield TextDelta(text=piece)
        yield Finished(
            reason="stop", provider=self.name, model=self.model, tokens_in=None, tokens_out=None
        )

    async def close(self) -> None:
        """Nothing to close."""
