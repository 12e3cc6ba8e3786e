"""A wire-level fake of an OpenAI-compatible Chat Completions server.

In a test it runs in its own thread on a free port, answers what the test scripted and keeps
what it was asked:

    with FakeOpenAI() as fake:
        held = Reply(pieces=["one ", "two ", "three"], hold_at=1)
        fake.script(held, Reply(status=503, retry_after="2"))
        ...                       # point a provider at fake.base_url and start a call
        held.held.wait(5)         # "one " is on the wire, "two " waits
        held.gate.set()

Unscripted calls get `"echo: "` and the last user message, one piece a word. Tools are called with
`Reply(tool_calls=[Call("current_time", {"zone": "UTC"})])`. A request that some real server would
not take is refused with a 400 and uses up no reply; `fake.refused` says why. As a program
(`python tests/fakes/openai_server.py --port 9100`) it is the provider of `scripts/bench`: every
token is `t<seq>@<time.monotonic_ns()> `, stamped right before its socket write, at a cadence of
`<ms to the first>-<ms between>-<tokens>`, set by `POST /admin/cadence?first_ms=&inter_ms=&tokens=`
(without arguments: unset) or else by a model name that ends in `@200-20-50`.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from aiohttp import web

if not __package__:  # started by its path
    sys.path[0] = str(Path(__file__).parents[2])

from tests.fakes.openai_cadence import Cadence, Stats, Wheel, beat
from tests.fakes.openai_replies import Gate, Reply, play
from tests.fakes.openai_rules import refusal
from tests.fakes.openai_wire import Call, Recorded, Wire, error_body, json_answer

__all__ = ["Call", "FakeOpenAI", "Gate", "Recorded", "Reply"]

CADENCE = re.compile(r"@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)-(\d+)$")


class Handlers:
    """The HTTP side: picks a reply for each call and plays it."""

    def __init__(
        self, pick: Callable[[Recorded], Reply], cadence: Cadence | None, keep: bool
    ) -> None:
        self._pick, self._unset, self._keep = pick, cadence, keep
        self._cadence: Cadence | None = None
        self._wheel = Wheel()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stats = Stats()
        self.recorded: list[Recorded] = []
        self.refused: list[str] = []
        self.arrival = threading.Condition()

    async def run(self, port: int, until: asyncio.Event, ready: Callable[[int], None]) -> None:
        """Serve on 127.0.0.1 until the event is set; `ready` gets the port (0 picks a free one)."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/admin/stats", self.admin_stats)
        app.router.add_post("/admin/reset", self.admin_reset)
        app.router.add_post("/admin/cadence", self.admin_cadence)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
            ready(runner.addresses[0][1])
            await until.wait()
            for task in self._tasks:  # held and hanging calls do not hold up the end
                task.cancel()
        finally:
            await runner.cleanup()

    async def models(self, request: web.Request) -> web.Response:
        entry = {"id": "fake", "object": "model", "created": 0, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [entry]})

    async def admin_stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.stats.as_dict())

    async def admin_reset(self, request: web.Request) -> web.Response:
        self.stats = Stats(self.stats.active)
        return web.json_response({})

    async def admin_cadence(self, request: web.Request) -> web.Response:
        q = request.query
        self._cadence = None
        if q:
            self._cadence = Cadence(float(q["first_ms"]), float(q["inter_ms"]), int(q["tokens"]))
        return web.json_response({"cadence": self._cadence})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        began = time.monotonic()
        raw = await request.read()
        try:
            body = json.loads(raw)
            streaming = bool(body.get("stream"))
            headers = {name.lower(): value for name, value in request.headers.items()}
            recorded = Recorded(path=request.path, headers=headers, body=body, raw=raw)
            wire = Wire(recorded)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            return json_answer(400, error_body(400, f"not a chat completion request: {exc!r}"))
        if self._keep:
            with self.arrival:
                self.recorded.append(recorded)
                self.arrival.notify_all()
        if wrong := refusal(body):
            self.refused.append(wrong)
            return json_answer(400, error_body(400, wrong))
        stats = self.stats
        stats.requests += 1
        stats.active += 1
        stats.max_active = max(stats.active, stats.max_active)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        whole = False
        try:
            if cadence := self._cadence_of(wire):
                response, whole = await beat(
                    request, wire, cadence, streaming, self._wheel, self.stats
                )
            else:
                response = await play(request, self._pick(recorded), recorded, wire, streaming)
                whole = True
            return response
        except ConnectionError:
            return web.Response()  # the client is gone: nobody reads this
        finally:
            self._tasks.discard(task)
            self.stats.active -= 1
            self.stats.last_own_ms = (time.monotonic() - began) * 1e3
            self.stats.done += whole
            self.stats.aborted += not whole

    def _cadence_of(self, wire: Wire) -> Cadence | None:
        if self._cadence is None and (named := CADENCE.search(wire.model)):
            return Cadence(float(named[1]), float(named[2]), int(named[3]))
        return self._cadence or self._unset


class FakeOpenAI:
    """The server in a background thread, for tests; a context manager."""

    def __init__(self) -> None:
        self._script: deque[Reply] = deque()
        self._default: Callable[[Recorded], Reply] = lambda _: Reply()
        self._handlers = Handlers(self._pick, cadence=None, keep=True)
        self._thread = threading.Thread(target=self._serve, name="fake-openai", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self.base_url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake provider did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(10)

    def _serve(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._handlers.run(0, self._until, self._opened)

        asyncio.run(serve())

    def _opened(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._ready.set()

    def _pick(self, recorded: Recorded) -> Reply:
        return self._script.popleft() if self._script else self._default(recorded)

    @property
    def requests(self) -> list[Recorded]:
        """Every completion request so far, oldest first."""
        return self._handlers.recorded

    @property
    def refused(self) -> list[str]:
        """Why each request that was refused was, oldest first."""
        return self._handlers.refused

    def wait_requests(self, count: int, seconds: float = 10.0) -> list[Recorded]:
        """The requests so far, once there are `count`; TimeoutError if they do not come."""
        with self._handlers.arrival:
            if not self._handlers.arrival.wait_for(lambda: len(self.requests) >= count, seconds):
                raise TimeoutError(f"{len(self.requests)} requests came, not {count}")
            return list(self.requests)

    def script(self, *replies: Reply) -> None:
        """Let the next calls, in order of arrival, be answered by these."""
        self._script.extend(replies)

    def default(self, answer: Callable[[Recorded], Reply] | Reply | None) -> None:
        """Answer what is not scripted by this reply or by what this function says; None: echo."""
        if isinstance(answer, Reply):
            self._default = lambda _: answer
        else:
            self._default = answer or (lambda _: Reply())


async def _program(port: int, cadence: Cadence) -> None:
    until = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, until.set)
    handlers = Handlers(lambda _: Reply(), cadence=cadence, keep=False)

    def ready(port: int) -> None:
        print(f"ready http://127.0.0.1:{port}/v1", flush=True)

    await handlers.run(port, until, ready)


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser(description="Fake OpenAI Chat Completions server.")
    parser.add_argument("--port", type=int, default=9100, help="0 picks a free one")
    parser.add_argument("--cadence", default="200-20-50", help="<first ms>-<ms between>-<tokens>")
    args = parser.parse_args()
    first, inter, tokens = args.cadence.split("-")
    uvloop.run(_program(args.port, Cadence(float(first), float(inter), int(tokens))))


if __name__ == "__main__":
    main()
