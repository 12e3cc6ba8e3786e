"""The Anthropic Messages wire, as spoken by Anthropic and by gateways that offer the same."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.anthropic_reader import MessageReader, error_kind
from chalicelib.providers.base import (
    ModelEvent,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    ToolSpec,
)
from chalicelib.providers.history import (
    UNSEEN_IMAGE,
    CallPart,
    ImagePart,
    Part,
    ReasoningPart,
    ResultPart,
    TextPart,
    normalise,
)
from chalicelib.providers.http import HttpWire
from chalicelib.providers.images import media_type
from chalicelib.providers.reading import unfenced
from chalicelib.providers.reasoning import answer_with_reasoning

_BASE_URL: Final = "https://api.anthropic.com"
_VERSION: Final = "2023-06-01"

# The wire wants a bound. All models that Anthropic serves take this one, and it has room for a
# model that thinks first, which counts; a reply that still ends at it says `length`.
_MAX_TOKENS: Final = 16_384

_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

# An instruction and not the API's own structured outputs: older models and other servers answer
# 400 to those, which would end the walk of the chain, as do schemas that say `minimum`, are
# recursive or leave additionalProperties open. Whoever asks with a schema validates the answer.
_SCHEMA: Final = (
    "Answer with exactly one JSON value that is valid against the JSON Schema below, and with "
    "nothing else: no words before or after it, no code fence.\n\n"
)


class AnthropicProvider:
    """One model behind one base URL."""

    def __init__(self, options: ProviderOptions) -> None:
        self.name, self.model = options.name, options.model
        headers = {"anthropic-version": _VERSION}
        if options.api_key:
            headers["x-api-key"] = options.api_key
        self._wire = HttpWire(
            replace(options, base_url=options.base_url or _BASE_URL),
            path="/v1/messages",
            headers=headers,
            kind_of=error_kind,
        )

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        return answer_with_reasoning(self, request, answer=self._answer, body=self._body)

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    def _body(self, request: ModelRequest) -> bytes:
        return orjson.dumps(to_wire(request, provider=self.name, model=self.model))

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reader = MessageReader(provider=self.name, model=self.model)
        accept = "text/event-stream" if request.stream else "application/json"
        async with self._wire.post(self._body(request), accept=accept) as response:
            pieces = self._wire.pieces(response)
            # a gateway may stream, or not, whatever it is asked for
            kind = response.headers.get("Content-Type", accept).partition(";")[0].strip().lower()
            if kind == "application/json" or (kind != "text/event-stream" and not request.stream):
                text = reader.take_whole(b"".join([piece async for piece in pieces]))
                text = text if request.schema is None else unfenced(text)
                # nothing is given out before it is known to be whole
                last = reader.finish()
                if text:
                    yield TextDelta(text=text)
            else:
                async for piece in pieces:
                    for delta in reader.feed(piece):
                        yield delta
                    if reader.done:
                        break
                last = reader.finish()
            for event in last:
                yield event


def to_wire(request: ModelRequest, *, provider: str, model: str) -> dict[str, Any]:
    """The request body; raises ProviderUnsupported for a new image that the wire cannot carry."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_tokens or _MAX_TOKENS,
        "messages": list(_messages(request, provider=provider, model=model)),
    }
    system = [request.system] if request.system.strip() else []
    if request.schema is not None:
        system.append(_SCHEMA + orjson.dumps(request.schema).decode())
    if system:
        body["system"] = "\n\n".join(system)
    if request.tools:
        body["tools"] = [_tool(one) for one in request.tools]
    if request.stream:
        body["stream"] = True
    return body


def _messages(request: ModelRequest, *, provider: str, model: str) -> Iterator[dict[str, Any]]:
    exchanges = normalise(request, provider=provider, model=model, images=True, flatten_tools=True)
    for exchange in exchanges:
        for part in exchange.parts if exchange is exchanges[-1] else ():
            if isinstance(part, ImagePart) and not _carried(part.attachment):
                told = f"{provider}:{model} takes PNG, JPEG, GIF and WebP images, or https URLs."
                raise ProviderUnsupported(told)
        blocks = [_block(part) for part in exchange.parts]
        if exchange.kept:
            # this wire's cache is used for what is marked alone
            blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
        yield {"role": exchange.role, "content": blocks}


def _carried(attachment: dict[str, Any]) -> bool:
    if "data" in attachment:
        return media_type(attachment) in _IMAGES
    return bool(attachment["url"].startswith("https://"))


def _block(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return _image(part.attachment)
        case CallPart():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments}
        case ResultPart():
            result = {"type": "tool_result", "tool_use_id": part.call_id, "content": part.text}
            return result | ({"is_error": True} if part.is_error else {})
        case ReasoningPart():
            return part.block


def _image(attachment: dict[str, Any]) -> dict[str, Any]:
    if not _carried(attachment):
        return {"type": "text", "text": UNSEEN_IMAGE}
    if "data" not in attachment:
        return {"type": "image", "source": {"type": "url", "url": attachment["url"]}}
    named = media_type(attachment)
    source = {"type": "base64", "media_type": named, "data": attachment["data"]}
    return {"type": "image", "source": source}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool = {"name": spec.name, "input_schema": {"type": "object", **spec.parameters}}
    return tool | ({"description": spec.description} if spec.description else {})
