"""A wire-level fake of the Anthropic Messages API, as strict as the vendor.

It runs in its own thread on a free port, answers what the test scripted and keeps what it was
asked:

    with FakeAnthropic() as fake:
        fake.script(Reply(tool_calls=[Call("current_time")]), Reply(status=529))
        ...                       # point a provider at fake.base_url, which has no /v1

Unscripted calls get `"echo: "` and the last user message, one piece a word. A request that the
vendor would refuse gets its 400 and uses up no reply; `fake.refused` says why.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from tests.fakes.anthropic_replies import ERROR_TYPES, Answer, Reply, error_body, play
from tests.fakes.anthropic_rules import Refused, check
from tests.fakes.openai_replies import Gate
from tests.fakes.openai_wire import Call, Recorded, json_answer

__all__ = ["Call", "FakeAnthropic", "Gate", "Recorded", "Reply"]


class FakeAnthropic:
    """The server in a background thread; a context manager. With a `key` no other is let in."""

    def __init__(self, *, key: str | None = None) -> None:
        self._key = key
        self._script: deque[Reply] = deque()
        self._default: Callable[[Recorded], Reply] = lambda _: Reply()
        self._issued: set[str] = set()  # reasoning that this server signed
        self._recorded: list[Recorded] = []
        self._arrival = threading.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="fake-anthropic", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self.refused: list[str] = []
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

    @property
    def requests(self) -> list[Recorded]:
        """Every request so far, oldest first, those that were refused included."""
        return self._recorded

    def wait_requests(self, count: int, seconds: float = 10.0) -> list[Recorded]:
        """The requests so far, once there are `count`; TimeoutError if they do not come."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: len(self.requests) >= count, seconds):
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

    def forget_signatures(self) -> None:
        """Take no reasoning back that was given out so far."""
        self._issued.clear()

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/messages", self._messages)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()
            await self._until.wait()
            for task in self._tasks:  # held and hanging calls do not hold up the end
                task.cancel()
        finally:
            await runner.cleanup()

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            body = json.loads(raw)
            recorded = Recorded(path=request.path, headers=headers, body=body, raw=raw)
            if refusal := self._refuse(recorded):
                return refusal
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            return self._error(400, f"not a request for a message: {exc!r}")
        with self._arrival:
            self._recorded.append(recorded)
            number = len(self._recorded)
            self._arrival.notify_all()
        reply = self._script.popleft() if self._script else self._default(recorded)
        answer = Answer(reply, recorded, number=number, issued=self._issued)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await play(request, reply, answer, streaming=bool(body.get("stream")))
        except ConnectionError:
            return web.Response()  # the client is gone: nobody reads this
        finally:
            self._tasks.discard(task)

    def _refuse(self, recorded: Recorded) -> web.Response | None:
        refusal = None
        if self._key is not None and recorded.headers.get("x-api-key") != self._key:
            refusal = self._error(401, "invalid x-api-key")
        elif recorded.headers.get("anthropic-version") != "2023-06-01":
            refusal = self._error(400, "anthropic-version: header is required")
        else:
            try:
                check(recorded.body, issued=self._issued)
            except Refused as exc:
                refusal = self._error(400, str(exc))
        if refusal is not None:
            with self._arrival:
                self._recorded.append(recorded)
                self._arrival.notify_all()
        return refusal

    def _error(self, status: int, message: str) -> web.Response:
        self.refused.append(message)
        return json_answer(status, error_body(ERROR_TYPES[status], message))
