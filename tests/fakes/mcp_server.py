"""A small MCP server over streamable HTTP, on the test's own loop, that can be told to misbehave.

    async with FakeMcp(tools=[tool("add")]) as fake:
        fake.results["add"] = text("3")
        fake.fail("tools/call", cut(after=True))   # the next call runs, and its answer is lost
        ...                                         # a client at fake.url
        assert fake.ran == [("add", {"a": 1})]

It is written from the protocol's text (revision 2025-11-25, and what differs in 2026-07-28 for
`modern` servers) and shares no code with the SDK that is tested against it.
"""

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"

Answer = Callable[[], Awaitable[web.StreamResponse]]
Fault = Callable[["FakeMcp", web.Request, Answer], Awaitable[web.StreamResponse]]
"""Answers one request in its own way; the last argument makes the right answer."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One HTTP request."""

    http: str
    headers: dict[str, str]
    message: dict[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The message's method, or that of HTTP where there is no message."""
        return str(self.message.get("method", self.http))


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}, **more}


def text(*texts: str, **more: Any) -> dict[str, Any]:
    """The result of a call."""
    return {"content": [{"type": "text", "text": one} for one in texts], **more}


class FakeMcp:
    """Serves at `url` while it is entered. `ran` are the calls that were carried out."""

    def __init__(
        self,
        *,
        tools: Sequence[Any] = (),
        page_size: int = 1000,
        auth: str | None = None,
        sse: bool = False,
        sessions: bool = True,
        modern: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tools = list(tools)
        self.page_size, self.auth, self.sse = page_size, auth, sse
        self.sessions, self.modern, self.tls = sessions, modern, tls
        self.headers: dict[str, str] = {}  # of each good answer
        self.results: dict[str, dict[str, Any]] = {}
        self.before_result: dict[str, Callable[[], Awaitable[None]]] = {}
        self.ran: list[tuple[str, Any]] = []
        self.seen: list[Seen] = []
        self.open: set[str] = set()
        self._arrival = asyncio.Condition()
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._made = 0
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; on the same port as before, if it was stopped in between."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/mcp", self._serve)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=self.tls, reuse_address=True
        )
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Be down."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}/mcp"

    @property
    def port(self) -> int:
        return self._port

    def fail(self, method: str, *faults: Fault) -> None:
        """Answer the next requests of this method, one each, in these ways."""
        self._faults[method].extend(faults)

    def asked(self, method: str) -> list[Seen]:
        """The requests of this method."""
        return [one for one in self.seen if one.method == method]

    async def arrival(self, method: str, count: int = 1) -> Seen:
        """Wait until so many requests of this method have come; the last of them."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.asked(method)) >= count)
        return self.asked(method)[count - 1]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        message = json.loads(body) if body else {}
        names = {name.lower() for name in request.headers}
        headers = {name: ", ".join(request.headers.getall(name)) for name in names}
        seen = Seen(http=request.method, headers=headers, message=message)
        async with self._arrival:
            self.seen.append(seen)
            self._arrival.notify_all()

        async def answer() -> web.StreamResponse:
            return await self._answer(request, seen)

        faults = self._faults[seen.method]
        return await (faults.popleft()(self, request, answer) if faults else answer())

    async def _answer(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        if self.auth is not None and seen.headers.get("authorization") != self.auth:
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        session = seen.headers.get("mcp-session-id")
        if self.sessions and not self.modern and seen.method != "initialize":
            if session is None:
                return web.Response(status=400, text="a session is wanted")
            if session not in self.open:
                return web.Response(status=404, text="no such session")
            if seen.http != "DELETE" and "mcp-protocol-version" not in seen.headers:
                return web.Response(status=400, text="a version is wanted")
        if seen.http == "DELETE":
            self.open.discard(session or "")
            return web.Response(status=204)
        if seen.http == "GET":
            return web.Response(status=405)
        if "id" not in seen.message or "method" not in seen.message:
            return web.Response(status=202)
        reply = await self._reply(seen)
        opens = self.sessions and not self.modern and seen.method == "initialize"
        made = {**self.headers, **({"Mcp-Session-Id": self._session()} if opens else {})}
        if not self.sse:
            status = 400 if self.modern and "error" in reply else 200
            return web.json_response(reply, headers=made, status=status)
        stream = await open_stream(request, made)
        await send(stream, reply)
        return stream

    def _session(self) -> str:
        self._made += 1
        self.open.add(made := f"session-{self._made}")
        return made

    async def _reply(self, seen: Seen) -> dict[str, Any]:
        made = await self._result(seen.method, seen.message.get("params") or {})
        return {"jsonrpc": "2.0", "id": seen.message["id"], **made}

    async def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """`{"result": …}` or `{"error": …}`."""
        about = {"name": "fake", "version": "1"}
        offers: dict[str, Any] = {"tools": {}}
        complete = {"resultType": "complete"} if self.modern else {}
        cached = {**complete, "ttlMs": 0, "cacheScope": "private"} if self.modern else {}
        if method == "initialize" and not self.modern:
            version = params["protocolVersion"]
            return {
                "result": {
                    "protocolVersion": version, "capabilities": offers, "serverInfo": about
                }
            }  # fmt: skip
        if method == "server/discover" and self.modern:
            return {"result": {"supportedVersions": [MODERN], "capabilities": offers, **cached}}
        if method == "tools/list":
            start = int(params.get("cursor", 0))
            end = start + self.page_size
            more = {"nextCursor": str(end)} if end < len(self.tools) else {}
            return {"result": {"tools": self.tools[start:end], **more, **cached}}
        if method == "tools/call":
            return {"result": {**await self._run(params), **complete}}
        if self.modern:
            data = {"supported": [MODERN], "requested": HANDSHAKE}
            return {"error": {"code": -32022, "message": "unsupported version", "data": data}}
        return {"error": {"code": -32601, "message": "no such method"}}

    async def _run(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["name"]
        if name in self.before_result:
            await self.before_result[name]()
        self.ran.append((name, params.get("arguments")))
        return self.results.get(name, text(f"{name} done"))


async def open_stream(
    request: web.Request, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    """The head of an answer in events."""
    kind = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    stream = web.StreamResponse(headers={**kind, **(headers or {})})
    await stream.prepare(request)
    return stream


async def send(stream: web.StreamResponse, message: dict[str, Any], *, id: str = "") -> None:
    """One event; with an id it can be resumed after, at once."""
    head = f"id: {id}\nretry: 1\n" if id else ""
    await stream.write(f"{head}event: message\ndata: {json.dumps(message)}\n\n".encode())


# --- faults ---------------------------------------------------------------------------------------
def status(code: int, body: Any = None, **headers: str) -> Fault:
    """This status, with this JSON if any."""

    async def fault(_fake: FakeMcp, _request: web.Request, _answer: Answer) -> web.StreamResponse:
        if body is None:
            return web.Response(status=code, headers=headers)
        return web.json_response(body, status=code, headers=headers)

    return fault


def error(code: int, message: str, *, status: int = 200) -> Fault:
    """An error of JSON-RPC."""

    async def fault(_fake: FakeMcp, request: web.Request, _answer: Answer) -> web.StreamResponse:
        told = {"code": code, "message": message}
        asked = json.loads(await request.read()).get("id")
        return web.json_response({"jsonrpc": "2.0", "id": asked, "error": told}, status=status)

    return fault


def result(made: dict[str, Any]) -> Fault:
    """This result, whatever the right one is."""

    async def fault(_fake: FakeMcp, request: web.Request, _answer: Answer) -> web.StreamResponse:
        asked = json.loads(await request.read()).get("id")
        return web.json_response({"jsonrpc": "2.0", "id": asked, "result": made})

    return fault


def raw(body: bytes, content_type: str = "application/json") -> Fault:
    """These bytes as a good answer."""

    async def fault(_fake: FakeMcp, _request: web.Request, _answer: Answer) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type)

    return fault


def cut(*, after: bool) -> Fault:
    """The connection is reset, after the request was carried out or before."""

    async def fault(_fake: FakeMcp, request: web.Request, answer: Answer) -> web.StreamResponse:
        if after:
            await answer()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return fault


def hang() -> Fault:
    """No answer, ever."""

    async def fault(_fake: FakeMcp, _request: web.Request, _answer: Answer) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return fault


def events(
    *messages: dict[str, Any], id: str = "", endless: bool = False, reset: bool = False
) -> Fault:
    """A stream of these messages and not the answer: it ends, goes on, or the connection does.

    `id` is the last message's.
    """

    async def fault(_fake: FakeMcp, request: web.Request, _answer: Answer) -> web.StreamResponse:
        stream = await open_stream(request)
        for message in messages:
            await send(stream, message, id=id)
        while endless:
            await send(stream, {"jsonrpc": "2.0", "method": "notifications/message", "params": {
                "level": "info", "data": "x" * 1000
            }})  # fmt: skip
        if reset:
            assert request.transport is not None
            request.transport.abort()
        return stream

    return fault
