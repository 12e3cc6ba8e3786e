"""A fake of what tools call over HTTP: an API that echoes, and that can misbehave as scripted.

In a test it runs in its own thread on a free port of 127.0.0.1 and keeps what it was asked:

    with ToolServer() as server:
        server.on("/slow", Answer(pieces=[b"a", b"b"], hold_at=1))
        ...                       # call server.url("/slow"); "b" waits for server's end

A path without a script answers with what came, as JSON: method, path, query, headers, body.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came. Header names are lower case; `path` is raw, with its query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A scripted answer. `endless` repeats the last piece until the caller hangs up.

    `hold_at` stops before that piece until the server ends; `reset` drops the connection there,
    and with `pieces` empty before anything was answered.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain"})
    pieces: Sequence[bytes] = (b"ok",)
    endless: bool = False
    hold_at: int | None = None
    reset: bool = False


def redirect(status: int, location: str) -> Answer:
    """An answer that sends the caller elsewhere."""
    return Answer(status=status, headers={"Location": location}, pieces=())


Script = Answer | Callable[[Asked], Answer]


class ToolServer:
    """The server in a background thread; a context manager."""

    def __init__(self) -> None:
        self._scripts: dict[str, deque[Script]] = {}
        self.asked: list[Asked] = []
        self.arrived = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="tool-server", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake tool server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(10)

    @property
    def host(self) -> str:
        """Host and port, as PAL_TOOL_PRIVATE_HOSTS names them."""
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        """The address of this path."""
        return f"http://{self.host}{path}"

    def on(self, path: str, *scripts: Script) -> None:
        """Answer calls of this path (without query) by these in turn, the last one again."""
        self._scripts[path] = deque(scripts)

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            server = web.Server(self._handle, access_log=None, handler_cancellation=True)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._until.wait()
            await runner.cleanup()

        asyncio.run(serve())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = Asked(
            method=request.method,
            path=request.raw_path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.read(),
        )
        self.asked.append(asked)
        self.arrived.set()
        answer = self._pick(request.path, asked)
        response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
        if answer.reset and not answer.pieces and request.transport is not None:
            request.transport.abort()
            return response
        await response.prepare(request)
        try:
            await self._play(answer, response)
        except ConnectionError:
            return response
        if answer.reset and request.transport is not None:
            request.transport.abort()
        else:
            await response.write_eof()
        return response

    async def _play(self, answer: Answer, response: web.StreamResponse) -> None:
        for place, piece in enumerate(answer.pieces):
            if place == answer.hold_at:
                await self._until.wait()
            await response.write(piece)
        while answer.endless:
            await response.write(answer.pieces[-1])

    def _pick(self, path: str, asked: Asked) -> Answer:
        scripts = self._scripts.get(path)
        if not scripts:
            return _echo(asked)
        script = scripts.popleft() if len(scripts) > 1 else scripts[0]
        return script if isinstance(script, Answer) else script(asked)


def _echo(asked: Asked) -> Answer:
    told = {
        "method": asked.method,
        "path": asked.path,
        "headers": asked.headers,
        "body": asked.body.decode("utf-8", "replace"),
    }
    return Answer(headers={"Content-Type": "application/json"}, pieces=[json.dumps(told).encode()])
