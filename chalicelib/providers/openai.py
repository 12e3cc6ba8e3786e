"""OpenAI Chat Completions, as spoken by OpenAI, Ollama, llama.cpp, vLLM and others."""

import hashlib
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from chalicelib.errors import ProviderRejected
from chalicelib.providers.base import (
    ModelEvent,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    ToolSpec,
)
from chalicelib.providers.history import (
    CallPart,
    Exchange,
    ImagePart,
    ReasoningPart,
    ResultPart,
    TextPart,
    normalise,
)
from chalicelib.providers.http import HttpWire
from chalicelib.providers.images import media_type
from chalicelib.providers.openai_reader import AnswerReader, kind_of
from chalicelib.providers.reading import unfenced

_BASE_URL: Final = "https://api.openai.com/v1"

# who wants `max_completion_tokens`: their newer models refuse the older name, which is the only
# one that some other servers know
_NEWER_LIMIT: Final = re.compile(r"(?:.*\.)?(?:api\.openai\.com|openai\.azure\.com)")

# Mistral's servers and chat templates take no other id of a call
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9]{9}")

_SCHEMA: Final = (
    "Reply with one JSON value that this JSON Schema accepts, and with nothing around it:\n"
)

# what the strict form of a schema may be made of; a vendor refuses others
_STRICT: Final = frozenset(
    {"additionalProperties", "anyOf", "description", "enum", "items", "properties", "required"}
    | {"title", "type"}
)


class OpenAIProvider:
    """One model behind one base URL."""

    def __init__(self, options: ProviderOptions) -> None:
        self.name, self.model = options.name, options.model
        base_url, key = options.base_url or _BASE_URL, options.api_key
        self._wire = HttpWire(
            replace(options, base_url=base_url),
            path="/chat/completions",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            kind_of=kind_of,
        )
        self._newer_limit = takes_newer_limit(base_url)
        self._tell_schema = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`. A schema that the server refuses is told in words from then on."""
        given = False
        try:
            async with aclosing(self._answer(request)) as events:
                async for event in events:
                    given = True
                    yield event
            return
        except ProviderRejected:
            if given or request.schema is None or self._tell_schema:
                raise
        # not every server has `json_schema`, and those that do take different parts of it
        async with aclosing(self._answer(request, tell_schema=True)) as events:
            async for event in events:
                self._tell_schema = True
                yield event

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    async def _answer(
        self, request: ModelRequest, *, tell_schema: bool = False
    ) -> AsyncGenerator[ModelEvent, None]:
        body = to_wire(
            request,
            provider=self.name,
            model=self.model,
            newer_limit=self._newer_limit,
            tell_schema=tell_schema or self._tell_schema,
        )
        accept = "text/event-stream" if request.stream else "application/json"
        reader = AnswerReader(provider=self.name, model=self.model, reasons=bool(request.tools))
        async with self._wire.post(orjson.dumps(body), accept=accept) as response:
            pieces = self._wire.pieces(response)
            # some servers stream, or do not, whatever they are asked for
            kind = response.headers.get("Content-Type", accept).partition(";")[0].strip().lower()
            if kind == "application/json" or (kind != "text/event-stream" and not request.stream):
                text, end = reader.whole(b"".join([piece async for piece in pieces]))
                text = text if request.schema is None else unfenced(text)
            else:
                async for piece in pieces:
                    for delta in reader.feed(piece):
                        yield delta
                    if reader.done:
                        break
                text, end = reader.finish()
            if text:
                yield TextDelta(text=text)
            yield end


def takes_newer_limit(base_url: str) -> bool:
    """Whether the server there bounds a reply by `max_completion_tokens`."""
    return _NEWER_LIMIT.fullmatch(urlsplit(base_url).hostname or "") is not None


def to_wire(
    request: ModelRequest,
    *,
    provider: str,
    model: str,
    newer_limit: bool = False,
    tell_schema: bool = False,
) -> dict[str, Any]:
    """The request's body.

    With `newer_limit` the bound of the reply goes by its newer name; with `tell_schema` the schema
    stands in the system prompt.
    """
    system, shape = request.system, request.schema
    if shape is not None and tell_schema:
        told = _SCHEMA + orjson.dumps(shape).decode()
        system, shape = f"{system}\n\n{told}" if system else told, None
    messages: list[dict[str, Any]] = []
    if system.strip():
        messages.append({"role": "system", "content": system})
    for exchange in normalise(request, provider=provider, model=model, images=True):
        messages += _user(exchange) if exchange.role == "user" else [_assistant(exchange)]
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": request.stream}
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    if shape is not None:
        strict = shape.get("type") == "object" and _is_strict(shape)
        named = {"name": "answer", "schema": shape, "strict": strict}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if request.max_tokens is not None:
        body["max_completion_tokens" if newer_limit else "max_tokens"] = request.max_tokens
    return body


def _user(exchange: Exchange) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in exchange.parts:
        if isinstance(part, ResultPart):
            text = f"The call failed: {part.text}" if part.is_error else part.text
            yield {"role": "tool", "tool_call_id": _id(part.call_id), "content": text}
        elif isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, ImagePart):
            parts.append({"type": "image_url", "image_url": {"url": _url(part.attachment)}})
    if not parts:
        return
    if any(isinstance(part, ImagePart) for part in exchange.parts):
        yield {"role": "user", "content": parts}
    else:
        # a plain text, since not every server takes parts
        yield {"role": "user", "content": _joined(part["text"] for part in parts)}


def _assistant(exchange: Exchange) -> dict[str, Any]:
    said = _joined(part.text for part in exchange.parts if isinstance(part, TextPart))
    message: dict[str, Any] = {"role": "assistant", "content": said or None}
    calls = [_call(part) for part in exchange.parts if isinstance(part, CallPart)]
    if calls:
        message["tool_calls"] = calls
    thoughts = [part.block for part in exchange.parts if isinstance(part, ReasoningPart)]
    if thoughts:
        text = _joined(thought["reasoning_content"] for thought in thoughts)
        message["reasoning_content"] = text
    return message


def _call(part: CallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": orjson.dumps(part.arguments).decode()}
    return {"id": _id(part.id), "type": "function", "function": function}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {
        "name": spec.name,
        "description": spec.description,
        "parameters": {"type": "object", **spec.parameters},
    }
    return {"type": "function", "function": function}


def _id(call_id: str) -> str:
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _url(attachment: dict[str, Any]) -> str:
    if data := attachment.get("data"):
        return f"data:{media_type(attachment)};base64,{data}"
    return str(attachment["url"])


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(texts)


def _is_strict(schema: Any) -> bool:
    """Whether each object in it requires all that it names, allows no more, and says no more."""
    if not isinstance(schema, dict) or not schema.keys() <= _STRICT:
        return False
    named = schema.get("properties", {})
    if named or schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or sorted(schema.get("required", ())) != sorted(named):
            return False
    inner = [*named.values(), *schema.get("anyOf", ())]
    return all(map(_is_strict, inner + ([schema["items"]] if "items" in schema else [])))
