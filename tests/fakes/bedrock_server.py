"""A wire-level fake of Amazon Bedrock's runtime: Converse and ConverseStream over real HTTP.

    with FakeBedrock() as fake:
        fake.script(Reply(pieces=["one ", "two"]), Reply(status=429, code="ThrottlingException"))
        ...                       # point a provider at fake.base_url and start a call

It is as strict as the service (see `bedrock_rules`), keeps what it was asked, and says `Hello.`
where nothing is scripted. Counts of frames (`hold_at`, `ends_after`) are frames already written.
"""

import asyncio
import base64
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, Literal, Self
from urllib.parse import unquote

from aiohttp import web

from tests.fakes.bedrock_frames import error, event, exception
from tests.fakes.bedrock_rules import problem_of
from tests.fakes.openai_replies import Gate
from tests.fakes.openai_wire import reset

USAGE = {"inputTokens": 12, "outputTokens": 3, "totalTokens": 15}
NO_SUCH_MODEL = "no-such-model"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a tool, its arguments in pieces as they are streamed."""

    id: str
    name: str
    pieces: Sequence[str] = ()


@dataclass(kw_only=True)
class Reply:
    """What one call is answered with, and the events by which a test follows it."""

    pieces: Sequence[str] = ("Hello.",)
    calls: Sequence[Call] = ()
    interleaved: bool = False  # the calls' pieces turn by turn
    thoughts: Sequence[str] = ()  # reasoning in pieces, before the text
    signature: str | None = None
    redacted: bytes | None = None
    stop: str = "end_turn"
    usage: Mapping[str, Any] | None = field(default_factory=lambda: dict(USAGE))
    frames: Sequence[bytes] | None = None  # instead of all of the above
    body: bytes | None = None  # the same where the answer comes whole

    status: int = 200
    code: str = ""
    message: str = "what the service wrote"
    retry_after: str | None = None

    write_size: int | None = None  # bytes a write, whatever the frames
    hold_at: int | None = None  # the frame that waits for `gate`
    ends_after: int | None = None
    ends: Literal["early", "reset", "never", "garbage"] | bytes = "early"  # or by this frame
    hang: bool = False  # take the request and say nothing until the client leaves

    gate: Gate = field(default_factory=Gate)
    started: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)  # the client left early
    finished: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call as it came. Names of headers are in lower case."""

    model: str
    operation: Literal["converse", "converse-stream"]
    headers: Mapping[str, str]
    body: dict[str, Any]
    peer: Any


class FakeBedrock:
    """The server in a background thread; a context manager."""

    def __init__(self) -> None:
        self._script: deque[Reply] = deque()
        self._default: Callable[[Asked], Reply] = lambda _: Reply()
        self._signatures: dict[str, set[str]] = {}
        self._thread = threading.Thread(target=self._serve, name="fake-bedrock", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.asked: list[Asked] = []
        self.refused: list[str] = []  # why, for each request that was refused
        self.base_url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake Bedrock did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(10)

    def script(self, *replies: Reply) -> None:
        """Let the next calls, in order of arrival, be answered by these."""
        self._script.extend(replies)

    def default(self, answer: Callable[[Asked], Reply]) -> None:
        """Answer what is not scripted by what this function says."""
        self._default = answer

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._until.wait()
            for task in self._tasks:  # held and hanging calls do not hold up the end
                task.cancel()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        _, prefix, model, operation = request.raw_path.split("/")
        if prefix != "model" or operation not in ("converse", "converse-stream"):
            return _refusal(404, "UnknownOperationException", "")
        peer = request.transport.get_extra_info("peername") if request.transport else None
        asked = Asked(
            model=unquote(model),
            operation="converse" if operation == "converse" else "converse-stream",
            headers={name.lower(): value for name, value in request.headers.items()},
            body=json.loads(await request.read()),
            peer=peer,
        )
        self.asked.append(asked)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if (refused := self._judge(asked)) is not None:
                return refused
            reply = self._script.popleft() if self._script else self._default(asked)
            issued = self._signatures.setdefault(asked.model, set())
            issued |= {reply.signature} if reply.signature else set()
            issued |= {base64.b64encode(reply.redacted).decode()} if reply.redacted else set()
            return await _play(request, reply, streaming=asked.operation == "converse-stream")
        except ConnectionError:
            return web.Response()  # the client is gone: nobody reads this
        finally:
            self._tasks.discard(task)

    def _judge(self, asked: Asked) -> web.Response | None:
        signed = asked.headers.get("authorization", "")
        if not signed.startswith(("AWS4-HMAC-SHA256 Credential=", "Bearer ")):
            return _refusal(403, "MissingAuthenticationTokenException", "Missing Token")
        issued = self._signatures.get(asked.model, set())
        problem = problem_of(asked.body, signatures=issued)
        if asked.model == NO_SUCH_MODEL:
            problem = "The provided model identifier is invalid."
        if problem is None:
            return None
        self.refused.append(problem)
        return _refusal(400, "ValidationException", problem)


def frames_of(reply: Reply) -> list[bytes]:
    """The frames of a streamed answer, each event one."""
    if reply.frames is not None:
        return list(reply.frames)
    index = 0
    told = [event("messageStart", {"role": "assistant"})]

    def delta(index: int, inner: Mapping[str, Any]) -> None:
        told.append(event("contentBlockDelta", {"delta": inner, "contentBlockIndex": index}))

    def stop(index: int) -> None:
        told.append(event("contentBlockStop", {"contentBlockIndex": index}))

    for thought in reply.thoughts:
        delta(index, {"reasoningContent": {"text": thought}})
    if reply.signature is not None:
        delta(index, {"reasoningContent": {"signature": reply.signature}})
    if reply.thoughts or reply.signature is not None:
        stop(index)
        index += 1
    if reply.redacted is not None:
        redacted = base64.b64encode(reply.redacted).decode()
        delta(index, {"reasoningContent": {"redactedContent": redacted}})
        stop(index)
        index += 1
    for piece in reply.pieces:
        delta(index, {"text": piece})
    if reply.pieces:
        stop(index)
        index += 1
    calls = [_call_frames(n, call) for n, call in enumerate(reply.calls, index)]
    if reply.interleaved:
        told += [one for turn in zip_longest(*calls) for one in turn if one is not None]
    else:
        told += chain.from_iterable(calls)
    told.append(event("messageStop", {"stopReason": reply.stop}))
    if reply.usage is not None:
        told.append(event("metadata", {"usage": reply.usage, "metrics": {"latencyMs": 5}}))
    return told


def _call_frames(index: int, call: Call) -> list[bytes]:
    start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
    filled = (
        {"delta": {"toolUse": {"input": piece}}, "contentBlockIndex": index}
        for piece in call.pieces
    )
    return [
        event("contentBlockStart", {"start": start, "contentBlockIndex": index}),
        *(event("contentBlockDelta", one) for one in filled),
        event("contentBlockStop", {"contentBlockIndex": index}),
    ]


def body_of(reply: Reply) -> bytes:
    """The same answer whole."""
    if reply.body is not None:
        return reply.body
    content: list[dict[str, Any]] = []
    if reply.thoughts or reply.signature is not None:
        text = {"text": "".join(reply.thoughts), "signature": reply.signature}
        content.append({"reasoningContent": {"reasoningText": text}})
    if reply.redacted is not None:
        redacted = base64.b64encode(reply.redacted).decode()
        content.append({"reasoningContent": {"redactedContent": redacted}})
    if reply.pieces:
        content.append({"text": "".join(reply.pieces)})
    for call in reply.calls:
        told = json.loads("".join(call.pieces) or "{}")
        content.append({"toolUse": {"toolUseId": call.id, "name": call.name, "input": told}})
    answer = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reply.stop,
        "metrics": {"latencyMs": 5},
    }
    usage = {} if reply.usage is None else {"usage": reply.usage}
    return json.dumps(answer | usage).encode()


async def _play(request: web.Request, reply: Reply, *, streaming: bool) -> web.StreamResponse:
    reply.started.set()
    try:
        if reply.hang:
            await asyncio.Event().wait()
        if reply.status != 200:
            return _refusal(reply.status, reply.code, reply.message, reply.retry_after)
        response = await (_stream if streaming else _whole)(request, reply)
    except (ConnectionError, asyncio.CancelledError):
        reply.gone.set()
        raise
    reply.finished.set()
    return response


async def _stream(request: web.Request, reply: Reply) -> web.StreamResponse:
    headers = {"Content-Type": "application/vnd.amazon.eventstream"}
    response = web.StreamResponse(headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    for n, one in enumerate(frames_of(reply)[: reply.ends_after]):
        if n == reply.hold_at:
            reply.held.set()
            await reply.gate.passed()
        size = reply.write_size or len(one)
        for at in range(0, len(one), size):
            await response.write(one[at : at + size])
    return await _end(request, response, reply)


async def _whole(request: web.Request, reply: Reply) -> web.StreamResponse:
    body = body_of(reply)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(request)
    await response.write(body if reply.ends_after is None else body[: len(body) // 2])
    return await _end(request, response, reply)


async def _end(
    request: web.Request, response: web.StreamResponse, reply: Reply
) -> web.StreamResponse:
    if reply.ends == "never":
        await asyncio.Event().wait()
    if reply.ends == "reset":
        await reset(request)
        return response
    if response.content_length and reply.ends_after is not None and request.transport:
        request.transport.close()  # with a part of the promised length only
        return response
    if reply.ends == "garbage":
        await response.write(b"<html>502 Bad Gateway</html>")
    elif isinstance(reply.ends, bytes):
        await response.write(reply.ends)
    await response.write_eof()
    return response


def _refusal(status: int, code: str, message: str, retry_after: str | None = None) -> web.Response:
    headers = {"x-amzn-ErrorType": f"{code}:http://internal.amazon.com/coral/com.amazon.bedrock/"}
    if retry_after is not None:
        headers["Retry-After"] = retry_after
    return web.json_response({"message": message}, status=status, headers=headers)


__all__ = ["Asked", "Call", "FakeBedrock", "Reply", "error", "event", "exception", "frames_of"]
