"""Scripted answers of the fake Messages API: what a test may ask for, and how it is played."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from aiohttp import web

from tests.fakes.openai_replies import Gate, instance
from tests.fakes.openai_wire import Call, Recorded, json_answer, open_stream, reset

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(kw_only=True)
class Reply:
    """What one call is answered with, and the events by which a test follows it.

    The default is the echo. Counts are of steps already written: each piece of the text, then
    each call as a whole; `cut_after=0` cuts behind what comes before the text. A call that does
    not stream is cut or truncated inside its JSON object.
    """

    pieces: Sequence[str] | None = None  # None: the echo, or nothing where there are calls
    tool_calls: Sequence[Call] = ()
    thinking: str | None = None  # a thinking block with a signature that this server knows
    redacted: bool = False  # a redacted_thinking block that this server knows
    stop_reason: str | None = None  # None: tool_use where there are calls, else end_turn
    # tokens in past the cache, out, read from the cache, written to it; None: counted
    usage: tuple[int, ...] | None = None
    first_ms: float = 0.0
    inter_ms: float = 0.0
    hold_at: int | None = None  # the step that waits for `gate`
    status: int = 200  # anything else: an error object with `error` as its message
    error: str = "scripted failure"
    error_type: str | None = None  # None: by the status, overloaded_error in a stream
    retry_after: str | None = None
    cut_after: int | None = None  # a TCP reset
    truncate_after: int | None = None  # a clean end without message_delta and message_stop
    error_after: int | None = None  # an error event in a 200 stream, which then ends
    raw: bytes | None = None  # a body, verbatim: JSON if it begins with {, else an event stream
    raw_cuts: Sequence[int] = ()  # offsets at which `raw` is split into writes, inter_ms apart
    hang: bool = False  # take the request and say nothing until the client leaves

    gate: Gate = field(default_factory=Gate)
    started: threading.Event = field(default_factory=threading.Event)  # the request is read
    held: threading.Event = field(default_factory=threading.Event)  # the stream is at hold_at
    gone: threading.Event = field(default_factory=threading.Event)  # the client left early
    finished: threading.Event = field(default_factory=threading.Event)  # answered to the end

    def stops_after(self) -> int | None:
        """The number of steps after which the answer breaks off; None if it does not."""
        stops = (self.cut_after, self.truncate_after, self.error_after)
        return min((n for n in stops if n is not None), default=None)


def error_body(kind: str, message: str) -> bytes:
    """The vendor's error object."""
    error = {"type": kind, "message": message}
    return orjson.dumps({"type": "error", "error": error, "request_id": "req_fake"})


class Answer:
    """The bytes of one answer, as events or as one object; `number` makes its ids its own."""

    def __init__(self, reply: Reply, recorded: Recorded, *, number: int, issued: set[str]) -> None:
        self._reply = reply
        pieces = reply.pieces
        if pieces is None:
            pieces = [] if reply.tool_calls else unscripted(recorded)
        self.pieces = pieces
        self._number = number
        self._model = str(recorded.body.get("model", ""))
        self._sealed = self._seal(issued)
        words = sum(len(orjson.dumps(one).split()) for one in recorded.body["messages"])
        self._counts = reply.usage or (words, len(pieces))

    def _seal(self, issued: set[str]) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if self._reply.thinking is not None:
            # by object, so that no other server gives out the same
            signature = f"sig-{id(issued)}-{self._number}"
            thinking = self._reply.thinking
            blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
            issued.add(f"{signature}|{thinking}")
        if self._reply.redacted:
            blocks.append({"type": "redacted_thinking", "data": f"red-{id(issued)}-{self._number}"})
            issued.add(blocks[-1]["data"])
        return blocks

    def head(self) -> bytes:
        """All that comes before the text."""
        message = self._message() | {"content": [], "stop_reason": None}
        message["usage"] = self._usage() | {"output_tokens": 1}
        out = _event("message_start", message=message) + _event("ping")
        for index, block in enumerate(self._sealed):
            empty = block | ({"thinking": "", "signature": ""} if "thinking" in block else {})
            out += _event("content_block_start", index=index, content_block=empty)
            if "thinking" in block:
                for name in ("thinking", "signature"):
                    delta = {"type": f"{name}_delta", name: block[name]}
                    out += _event("content_block_delta", index=index, delta=delta)
            out += _event("content_block_stop", index=index)
        return out

    def steps(self) -> Iterator[bytes]:
        """The text piece by piece, then the calls."""
        index = len(self._sealed)
        for n, piece in enumerate(self.pieces):
            delta = {"type": "text_delta", "text": piece}
            out = _event("content_block_delta", index=index, delta=delta)
            if n == 0:
                block = {"type": "text", "text": ""}
                out = _event("content_block_start", index=index, content_block=block) + out
            if n == len(self.pieces) - 1:
                out += _event("content_block_stop", index=index)
                index += 1
            yield out
        for n, call in enumerate(self._reply.tool_calls):
            yield self._call(index + n, n, call)

    def _call(self, index: int, place: int, call: Call) -> bytes:
        block = self._call_block(place, call) | {"input": {}}
        out = _event("content_block_start", index=index, content_block=block)
        text = call.text()
        text = "" if text in (None, "{}") else text  # none has no delta at all
        size = -(-len(text) // max(call.fragments, 1)) or 1
        for at in range(0, len(text), size):
            delta = {"type": "input_json_delta", "partial_json": text[at : at + size]}
            out += _event("content_block_delta", index=index, delta=delta)
        return out + _event("content_block_stop", index=index)

    def _call_block(self, place: int, call: Call) -> dict[str, Any]:
        block = {"type": "tool_use", "name": call.name}
        if call.id is not None:
            block["id"] = f"toolu_{self._number}_{place}" if call.id == "made" else call.id
        return block

    def tail(self) -> bytes:
        """The end of an answer that is whole."""
        end = {"stop_reason": self._stop(), "stop_sequence": None}
        return _event("message_delta", delta=end, usage=self._usage()) + _event("message_stop")

    def whole(self) -> bytes:
        """The answer as one object."""
        content: list[dict[str, Any]] = list(self._sealed)
        if self.pieces:
            content.append({"type": "text", "text": "".join(self.pieces)})
        for n, call in enumerate(self._reply.tool_calls):
            given = orjson.loads(call.text() or "{}")
            content.append(self._call_block(n, call) | {"input": given})
        return orjson.dumps(self._message() | {"content": content})

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._number}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "stop_reason": self._stop(),
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _stop(self) -> str:
        return self._reply.stop_reason or ("tool_use" if self._reply.tool_calls else "end_turn")

    def _usage(self) -> dict[str, int]:
        names = ("input_tokens", "output_tokens")
        cache = ("cache_read_input_tokens", "cache_creation_input_tokens")
        return dict(zip((*names, *cache), (*self._counts, 0, 0), strict=False))


def unscripted(recorded: Recorded) -> list[str]:
    """`echo: ` and the last user message, split before each word; JSON where a schema asks."""
    said = "echo: " + recorded.last_user
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        # the schema is what the system prompt ends with
        schema = orjson.loads(recorded.body.get("system", "").rpartition("\n\n")[2])
        return [orjson.dumps(instance(schema, said)).decode()]
    return re.findall(r"\s*\S+\s?|\s+", said)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


async def play(
    request: web.Request, reply: Reply, answer: Answer, *, streaming: bool
) -> web.StreamResponse:
    """Answer a call as its reply says."""
    reply.started.set()
    try:
        if reply.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(reply.first_ms / 1e3)
        if reply.status != 200:
            kind = reply.error_type or ERROR_TYPES.get(reply.status, "api_error")
            body = error_body(kind, reply.error)
            response: web.StreamResponse = json_answer(reply.status, body, reply.retry_after)
        elif reply.raw is not None and reply.raw.startswith(b"{"):
            response = json_answer(200, reply.raw)
        elif reply.raw is not None:
            response = await _verbatim(request, reply, reply.raw)
        else:
            response = await (_stream if streaming else _whole)(request, reply, answer)
    except (ConnectionError, asyncio.CancelledError):
        reply.gone.set()
        raise
    reply.finished.set()
    return response


async def _hold(reply: Reply, step: int) -> None:
    if step == reply.hold_at:
        reply.held.set()
        await reply.gate.passed()


async def _verbatim(request: web.Request, reply: Reply, raw: bytes) -> web.StreamResponse:
    response = await open_stream(request)
    for n, (start, end) in enumerate(pairwise([0, *reply.raw_cuts, len(raw)])):
        await _hold(reply, n)
        if n:
            await asyncio.sleep(reply.inter_ms / 1e3)
        await response.write(raw[start:end])
    if reply.cut_after is not None:
        await reset(request)
    else:
        await response.write_eof()
    return response


async def _stream(request: web.Request, reply: Reply, answer: Answer) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(answer.head())
    stop = reply.stops_after()
    steps = list(answer.steps())[:stop]
    for n, step in enumerate(steps):
        await _hold(reply, n)
        if n:
            await asyncio.sleep(reply.inter_ms / 1e3)
        await response.write(step)
    await _hold(reply, len(steps))
    if stop is None:
        await response.write(answer.tail())
    elif stop == reply.cut_after:
        await reset(request)
        return response
    elif stop == reply.error_after:
        body = error_body(reply.error_type or "overloaded_error", reply.error)
        await response.write(b"event: error\ndata: " + body + b"\n\n")
    await response.write_eof()
    return response


async def _whole(request: web.Request, reply: Reply, answer: Answer) -> web.StreamResponse:
    for n in range(len(answer.pieces) + len(reply.tool_calls) + 1):
        await _hold(reply, n)
    await asyncio.sleep(reply.inter_ms / 1e3 * max(0, len(answer.pieces) - 1))
    if reply.error_after is not None:
        return json_answer(200, error_body(reply.error_type or "overloaded_error", reply.error))
    body = answer.whole()
    if reply.stops_after() is None:
        return json_answer(200, body)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    await reset(request)
    return response
