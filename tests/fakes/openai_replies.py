"""Scripted answers of the fake provider: what a test may ask for, and how it is played."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
from aiohttp import web

from tests.fakes.openai_wire import (
    Call,
    Recorded,
    Wire,
    error_body,
    json_answer,
    open_stream,
    reset,
)


class Gate(threading.Event):
    """A threading.Event a coroutine can wait for without holding a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def set(self) -> None:
        super().set()
        for loop, event in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # its loop has closed
                loop.call_soon_threadsafe(event.set)

    async def passed(self) -> None:
        """Return once the event is set, from whichever thread."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        self._waiting.append(entry)
        try:
            if not self.is_set():
                await event.wait()
        finally:
            self._waiting.remove(entry)


@dataclass(kw_only=True)
class Reply:
    """What one call is answered with, and the events by which a test follows it.

    The default is the echo. Counts of pieces are pieces already written: `cut_after=0` cuts
    behind the response head and the role chunk. A call that does not stream is cut or truncated
    inside its JSON object.
    """

    pieces: Sequence[str] | None = None  # None: the echo, or nothing beside tool calls
    tool_calls: Sequence[Call] = ()  # after the pieces
    finish_reason: str | None = None  # None: stop, or tool_calls
    usage: tuple[int, ...] | None = None  # tokens in, out, of those in cached; None: counted
    first_ms: float = 0.0
    inter_ms: float = 0.0
    hold_at: int | None = None  # the piece that waits for `gate`
    status: int = 200  # anything else: an OpenAI error object with `error` as its message
    error: str = "scripted failure"
    error_code: str | None = None
    retry_after: str | None = None
    cut_after: int | None = None  # a TCP reset
    truncate_after: int | None = None  # a clean end without finish_reason and [DONE]
    error_after: int | None = None  # an error object in a 200 stream, which then ends
    raw: bytes | None = None  # a text/event-stream body, verbatim
    raw_cuts: Sequence[int] = ()  # offsets at which `raw` is split into writes, inter_ms apart
    hang: bool = False  # take the request and say nothing until the client leaves

    gate: Gate = field(default_factory=Gate)
    started: threading.Event = field(default_factory=threading.Event)  # the request is read
    held: threading.Event = field(default_factory=threading.Event)  # the stream is at hold_at
    gone: threading.Event = field(default_factory=threading.Event)  # the client left early
    finished: threading.Event = field(default_factory=threading.Event)  # answered to the end

    def stops_after(self) -> int | None:
        """The number of pieces after which the stream breaks off; None if it does not."""
        stops = (self.cut_after, self.truncate_after, self.error_after)
        return min((n for n in stops if n is not None), default=None)

    def ends_with(self) -> str:
        """The finish reason that goes out."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


def unscripted(recorded: Recorded, wire: Wire) -> list[str]:
    """`echo: ` and the last user message, split before each word; JSON where a schema asks."""
    said = "echo: " + recorded.last_user
    if wire.schema is not None:
        return [orjson.dumps(instance(wire.schema, said)).decode()]
    return re.findall(r"\s*\S+\s?|\s+", said)


def instance(schema: dict[str, Any], text: str) -> Any:
    """A value that a plain schema accepts, with this text in all its texts."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        named = schema.get("properties", {})
        return {name: instance(named[name], text) for name in schema.get("required", named)}
    if kind == "array":
        return [instance(schema["items"], text)]
    return {"string": text, "boolean": True, "null": None}.get(str(kind), 1)


async def play(
    request: web.Request, reply: Reply, recorded: Recorded, wire: Wire, streaming: bool
) -> web.StreamResponse:
    """Answer a call as its reply says."""
    reply.started.set()
    try:
        if reply.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(reply.first_ms / 1e3)
        if reply.status != 200:
            failure = error_body(reply.status, reply.error, reply.error_code)
            response: web.StreamResponse = json_answer(reply.status, failure, reply.retry_after)
        elif reply.raw is not None:
            response = await _verbatim(request, reply, reply.raw)
        else:
            pieces = reply.pieces
            if pieces is None:
                pieces = () if reply.tool_calls else unscripted(recorded, wire)
            usage = reply.usage or (wire.tokens_in, len(pieces) + len(reply.tool_calls))
            speak = _stream if streaming else _whole
            response = await speak(request, reply, wire, pieces, usage)
    except (ConnectionError, asyncio.CancelledError):
        reply.gone.set()
        raise
    reply.finished.set()
    return response


async def _hold(reply: Reply, piece: int) -> None:
    if piece == reply.hold_at:
        reply.held.set()
        await reply.gate.passed()


async def _verbatim(request: web.Request, reply: Reply, raw: bytes) -> web.StreamResponse:
    response = await open_stream(request)
    offsets = [0, *reply.raw_cuts, len(raw)]
    for n, (start, end) in enumerate(pairwise(offsets)):
        await _hold(reply, n)
        if n:
            await asyncio.sleep(reply.inter_ms / 1e3)
        await response.write(raw[start:end])
    if reply.cut_after is not None:
        await reset(request)
    else:
        await response.write_eof()
    return response


async def _stream(
    request: web.Request,
    reply: Reply,
    wire: Wire,
    pieces: Sequence[str],
    usage: tuple[int, ...],
) -> web.StreamResponse:
    response = await open_stream(request)
    await response.write(wire.role())
    stop = reply.stops_after()
    for n, piece in enumerate(pieces[:stop]):
        await _hold(reply, n)
        if n:
            await asyncio.sleep(reply.inter_ms / 1e3)
        await response.write(wire.chunk({"content": piece}))
    await _hold(reply, len(pieces[:stop]))
    if stop is None or stop >= len(pieces):
        for chunk in wire.calls(reply.tool_calls):
            await response.write(chunk)
    if stop is None:
        await response.write(wire.tail(reply.ends_with(), usage))
    elif stop == reply.cut_after:
        await reset(request)
        return response
    elif stop == reply.error_after:
        failure = error_body(500, reply.error, reply.error_code)
        await response.write(b"data: " + failure + b"\n\n")
    await response.write_eof()
    return response


async def _whole(
    request: web.Request,
    reply: Reply,
    wire: Wire,
    pieces: Sequence[str],
    usage: tuple[int, ...],
) -> web.StreamResponse:
    for n in range(len(pieces) + 1):
        await _hold(reply, n)
    await asyncio.sleep(reply.inter_ms / 1e3 * max(0, len(pieces) - 1))
    if reply.error_after is not None:
        return json_answer(200, error_body(500, reply.error, reply.error_code))
    answer = wire.whole("".join(pieces), reply.ends_with(), usage, reply.tool_calls)
    if reply.stops_after() is None:
        return json_answer(200, answer)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(answer)
    await response.prepare(request)
    await response.write(answer[: len(answer) // 2])
    await reset(request)
    return response
