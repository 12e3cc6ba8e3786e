"""OpenAI Chat Completions, as spoken by OpenAI, Ollama, llama.cpp, vLLM and others."""

import asyncio
import hashlib
import io
import json
import logging
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from chalicelib.errors import ProviderError, ProviderRejected, ProviderUnavailable
from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
)
from chalicelib.providers.sse import SseDecoder

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

# refused whoever asks: the request is at fault, or the key has no right to the model
_REJECTED = frozenset({400, 404, 413, 422})

# how long a connection is given to end after an answer that is whole, so as to be used again
_LINGER = 0.5

# what is taken from a provider's own words into ours: a name of a thing, never a text
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_COUNT_AT_MOST: Final = 2**31 - 1

# what JSON can say and Postgres cannot hold
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class OpenAIProvider:
    """One model behind one base URL."""

    name = "openai"

    def __init__(self, options: ProviderOptions) -> None:
        self.model = options.model
        self._url = options.base_url.rstrip("/") + "/chat/completions"
        self._key = options.api_key
        self._timeout = options.timeout
        self._session: aiohttp.ClientSession | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`. A stream that ends without a finish reason is an error."""
        import aiohttp  # 190 ms of import, paid by the functions that call a model

        body = orjson.dumps(to_wire(request, self.model))
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Idempotency-Key": self._idempotency_key(body),
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            # a body over 1 MB in one write would hold up every other stream of the process
            data = body if len(body) <= 1 << 20 else io.BytesIO(body)
            async with self._http(aiohttp).post(self._url, data=data, headers=headers) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                reader = ChunkReader(provider=self.name, model=self.model)
                async for chunk in response.content.iter_any():
                    for event in reader.feed(chunk):
                        yield event
                    if reader.done:
                        break
                for last in reader.finish():
                    yield last
                await _let_end(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            reason = "timed out" if isinstance(exc, TimeoutError) else "broke the connection"
            raise ProviderUnavailable(f"{self.name}:{self.model} {reason}.") from exc

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _http(self, aiohttp: Any) -> "aiohttp.ClientSession":
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self._timeout),
                auto_decompress=True,
                read_bufsize=1 << 18,
            )
        return self._session

    def _idempotency_key(self, body: bytes) -> str:
        # same body, same key, in any process: a vendor that knows the header answers twice alike
        named = f"{self.name}|{self.model}|".encode()
        return hashlib.sha256(named + body).hexdigest()

    async def _refusal(self, response: "aiohttp.ClientResponse") -> ProviderError:
        import aiohttp

        raw = b""
        with suppress(aiohttp.ClientError, TimeoutError, OSError):  # the status says enough
            raw = await response.content.read(16_384)
        try:
            error = orjson.loads(raw)["error"]
            kind = _name(error.get("code")) or _name(error.get("type"))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            kind = ""
        _log.debug(
            "provider refused",
            extra={"action": "provider_refused", "body": raw.decode("utf-8", "replace")},
        )
        told = f"{self.name}:{self.model} answered {response.status}" + (
            f" ({kind})" if kind else ""
        )
        if response.status in _REJECTED:
            return ProviderRejected(told + ".")
        return ProviderUnavailable(told + ".")


async def _let_end(response: "aiohttp.ClientResponse") -> None:
    import aiohttp

    # the answer is told: neither a reset nor a server that leaves the line open can spoil it
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_LINGER):
            await response.content.read()


class ChunkReader:
    """Turns the bytes of one streamed answer into events. Pure: no I/O.

    The text is clean: what comes as two halves of a surrogate pair is joined, also over two
    pieces; a half alone and NUL become U+FFFD.
    """

    def __init__(self, *, provider: str, model: str) -> None:
        self._sse = SseDecoder()
        self._provider, self._model = provider, model
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._half = ""
        self.done = False

    def feed(self, data: bytes) -> Iterator[TextDelta]:
        """The deltas in these bytes; raises ProviderError on an error object or broken JSON.

        Deltas before the error are given first, so it does not matter how the bytes were cut.
        """
        for _, payload in self._sse.feed(data):
            if payload.strip() == b"[DONE]":
                self.done = True
                return
            try:
                text = self._take(self._parse(payload)) if payload.strip() else ""
            except (AttributeError, TypeError) as exc:
                raise ProviderUnavailable(f"{self._told()} sent what is no completion.") from exc
            if text:
                yield TextDelta(text=text)

    def finish(self) -> list[ModelEvent]:
        """The end of the stream; raises ProviderUnavailable if it came too early."""
        if self._reason is None and not self.done:
            raise ProviderUnavailable(f"{self._told()} ended in the middle of its answer.")
        end = Finished(
            reason=self._reason or "stop",
            provider=self._provider,
            model=self._model,
            tokens_in=_count(self._usage.get("prompt_tokens")),
            tokens_out=_count(self._usage.get("completion_tokens")),
        )
        return [TextDelta(text="\ufffd"), end] if self._half else [end]

    def _parse(self, payload: bytes) -> Any:
        try:
            return orjson.loads(payload)
        except orjson.JSONDecodeError as exc:
            # orjson is strict; half a surrogate pair and broken UTF-8 are no end of an answer
            try:
                return json.loads(payload.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                raise ProviderUnavailable(f"{self._told()} sent what is no JSON.") from exc

    def _take(self, chunk: Any) -> str:
        if not isinstance(chunk, dict):
            return ""
        if error := chunk.get("error"):
            raise self._stream_error(error)
        # usage comes beside the last choice or alone with `choices` empty or absent
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        text = ""
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            delta = choice.get("delta") or {}
            # a refusal comes in a field of its own, and is what the model has to say
            if said := delta.get("content") or delta.get("refusal"):
                text += self._clean(said)
            if reason := choice.get("finish_reason"):
                self._reason = _name(reason) or "unknown"
        return text

    def _clean(self, text: str) -> str:
        text, self._half = self._half + text, ""
        if _UNSTORABLE.search(text) is None:
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return paired.replace("\0", "\ufffd")

    def _stream_error(self, error: Any) -> ProviderError:
        named = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
        kinds = [kind for one in named if (kind := _name(one))]
        told = f"{self._told()} reported an error" + (f" ({kinds[0]})" if kinds else "") + "."
        refused = {str(status) for status in _REJECTED}
        if any(kind.startswith("invalid_request") or kind in refused for kind in kinds):
            return ProviderRejected(told)
        return ProviderUnavailable(told)

    def _told(self) -> str:
        return f"{self._provider}:{self._model}"


def to_wire(request: ModelRequest, model: str) -> dict[str, Any]:
    """The request body: streaming, with usage."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    messages += [_message(one) for one in request.messages]
    return {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _message(one: ModelMessage) -> dict[str, Any]:
    if not one.attachments:
        return {"role": one.role, "content": one.content}
    parts: list[dict[str, Any]] = [{"type": "text", "text": one.content}] if one.content else []
    for attachment in one.attachments:
        url = attachment.get("url") or f"data:{attachment['mediaType']};base64,{attachment['data']}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": one.role, "content": parts}


def _name(value: object) -> str:
    text = str(value) if isinstance(value, str | int) else ""
    return text if _NAME.fullmatch(text) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _COUNT_AT_MOST else None
