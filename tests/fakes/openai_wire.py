"""The bytes of Chat Completions: what a request said, and answers as chunks or as one object."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from aiohttp import web

from tests.fakes.notes import said

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One request as it came: header names in lower case, the body parsed and raw."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes

    @property
    def last_user(self) -> str:
        """What the last user message says, without our notes; empty if there is none."""
        for message in reversed(self.body["messages"]):
            if message.get("role") == "user":
                return said(text_of(message.get("content")))
        return ""


@dataclass(frozen=True)
class Call:
    """A tool call of a scripted answer. By default it comes as a good server sends it.

    `arguments` that are a text go out as they are, None leaves them out. An `id` or `index` that
    is None is left out too; else it is what is given, or made. `fragments` is the number of pieces
    that streamed arguments come in, behind a first one with the name; 0 sends all in one.
    """

    name: str
    arguments: dict[str, Any] | str | None = field(default_factory=dict)
    id: str | None = "made"
    index: int | Literal["made"] | None = "made"
    fragments: int = 2

    def entry(self, place: int, *, streamed: bool) -> dict[str, Any]:
        """The call as one entry of `tool_calls`."""
        function: dict[str, Any] = {"name": self.name}
        if (arguments := self.text()) is not None:
            function["arguments"] = arguments
        entry: dict[str, Any] = {"type": "function", "function": function}
        if self.id is not None:
            entry["id"] = f"call_{time.monotonic_ns()}_{place}" if self.id == "made" else self.id
        if streamed and self.index is not None:
            entry["index"] = place if self.index == "made" else self.index
        return entry

    def pieces(self, place: int) -> Iterator[dict[str, Any]]:
        """The same as the fragments of a stream."""
        first = self.entry(place, streamed=True)
        text = self.text()
        if not self.fragments or text is None:
            yield first
            return
        first["function"]["arguments"] = ""
        yield first
        rest = {"index": first["index"]} if "index" in first else {}
        size = -(-len(text) // self.fragments) or 1
        for start in range(0, len(text), size):
            yield {**rest, "function": {"arguments": text[start : start + size]}}

    def text(self) -> str | None:
        """The arguments as they go out."""
        if isinstance(self.arguments, dict):
            return orjson.dumps(self.arguments).decode()
        return self.arguments


def text_of(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class Wire:
    """The bytes of one answer, as chunks or as one object."""

    def __init__(self, recorded: Recorded) -> None:
        body = recorded.body
        self.model = str(body.get("model", ""))
        self.with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.tokens_in = sum(len(text_of(m.get("content")).split()) for m in body["messages"])
        form = body.get("response_format") or {}
        self.schema: dict[str, Any] | None = (form.get("json_schema") or {}).get("schema")
        self._id = {"id": f"chatcmpl-{time.monotonic_ns()}", "created": int(time.time())}

    def _usage(self, tokens_in: int, tokens_out: int, cached: int | None = None) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._event([choice])

    def _event(self, choices: list[Any], usage: dict[str, Any] | None = None) -> bytes:
        event = {**self._id, "object": "chat.completion.chunk", "model": self.model}
        event["choices"] = choices
        if self.with_usage:
            event["usage"] = usage
        return b"data: " + orjson.dumps(event) + b"\n\n"

    def role(self) -> bytes:
        return self.chunk({"role": "assistant", "content": ""})

    def tail(self, finish_reason: str, usage: tuple[int, ...]) -> bytes:
        end = self.chunk({}, finish_reason)
        if self.with_usage:
            end += self._event([], self._usage(*usage))
        return end + b"data: [DONE]\n\n"

    def whole(
        self,
        text: str,
        finish_reason: str,
        usage: tuple[int, ...],
        calls: Sequence[Call] = (),
    ) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            entries = [call.entry(place, streamed=False) for place, call in enumerate(calls)]
            message |= {"content": text or None, "tool_calls": entries}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        answer = {**self._id, "object": "chat.completion", "model": self.model}
        return orjson.dumps({**answer, "choices": [choice], "usage": self._usage(*usage)})

    def calls(self, calls: Sequence[Call]) -> Iterator[bytes]:
        """The chunks of these calls, one fragment each."""
        for place, call in enumerate(calls):
            for piece in call.pieces(place):
                yield self.chunk({"tool_calls": [piece]})


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """An OpenAI error object, typed by the HTTP status."""
    kind = ERROR_TYPES.get(status, "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    return orjson.dumps({"error": error})


def json_answer(status: int, body: bytes, retry_after: str | None = None) -> web.Response:
    """A JSON answer from bytes."""
    headers = {"Retry-After": retry_after} if retry_after is not None else {}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


async def open_stream(request: web.Request) -> web.StreamResponse:
    """Send the head of a chunked event stream."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def reset(request: web.Request) -> None:
    """End the connection with a TCP reset, once what was written has left."""
    transport = request.transport
    if transport is None:
        return
    while transport.get_write_buffer_size() and not transport.is_closing():
        await asyncio.sleep(0.001)
    # A duplicate, since uvloop's stand-in for the socket takes no options; they are shared.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as twin:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
