"""OpenAI Chat Completions, as spoken by OpenAI, Ollama, llama.cpp, vLLM and others."""

import hashlib
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

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
            async with self._http(aiohttp).post(self._url, data=body, headers=headers) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                reader = ChunkReader(provider=self.name, model=self.model)
                async for chunk in response.content.iter_any():
                    for event in reader.feed(chunk):
                        yield event
                yield reader.finish()
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
        raw = (await response.content.read(16_384)).decode("utf-8", "replace")
        try:
            error = orjson.loads(raw)["error"]
            kind = error.get("code") or error.get("type") or ""
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            kind = ""
        _log.debug("provider refused", extra={"action": "provider_refused", "body": raw})
        told = f"{self.name}:{self.model} answered {response.status}" + (
            f" ({kind})" if kind else ""
        )
        if response.status in _REJECTED:
            return ProviderRejected(told + ".")
        return ProviderUnavailable(told + ".")


class ChunkReader:
    """Turns the bytes of one streamed answer into events. Pure: no I/O."""

    def __init__(self, *, provider: str, model: str) -> None:
        self._sse = SseDecoder()
        self._provider, self._model = provider, model
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._done = False

    def feed(self, data: bytes) -> list[TextDelta]:
        """The deltas in these bytes; raises ProviderError on an error object or broken JSON."""
        pieces: list[TextDelta] = []
        for _, payload in self._sse.feed(data):
            if payload == b"[DONE]":
                self._done = True
                continue
            try:
                chunk = orjson.loads(payload)
            except orjson.JSONDecodeError as exc:
                raise ProviderUnavailable(f"{self._told()} sent what is no JSON.") from exc
            if not isinstance(chunk, dict):
                continue
            if error := chunk.get("error"):
                raise self._stream_error(error)
            # usage comes beside the last choice or alone with `choices` empty or absent
            self._usage = chunk.get("usage") or self._usage
            for choice in chunk.get("choices") or ():
                if choice.get("index"):
                    continue
                if text := (choice.get("delta") or {}).get("content"):
                    pieces.append(TextDelta(text=text))
                self._reason = choice.get("finish_reason") or self._reason
        return pieces

    def finish(self) -> Finished:
        """The end of the stream; raises ProviderUnavailable if it came too early."""
        if self._reason is None and not self._done:
            raise ProviderUnavailable(f"{self._told()} ended in the middle of its answer.")
        return Finished(
            reason=self._reason or "stop",
            provider=self._provider,
            model=self._model,
            tokens_in=self._usage.get("prompt_tokens"),
            tokens_out=self._usage.get("completion_tokens"),
        )

    def _stream_error(self, error: Any) -> ProviderError:
        kind = str(error.get("type") or error.get("code") or "") if isinstance(error, dict) else ""
        told = f"{self._told()} reported an error" + (f" ({kind})" if kind else "") + "."
        if kind.startswith("invalid_request"):
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
