"""SIGKILL at random moments: nothing accepted is lost, and nothing is answered twice.

The provider's replies name the messages they answer (every user message behind the last reply),
so the transcript alone shows how often each one was answered.
"""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import quote

import orjson

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.processes import NotStarted, Server
from benchlib.wire import Client, Refused
from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply

TAG = re.compile(r"<m\d+-\d+>")
PIECES = 20


def name_the_asked(recorded: Recorded) -> Reply:
    """A reply of half a second that names every message since the last reply."""
    asked: list[str] = []
    for entry in recorded.body["messages"]:
        if entry["role"] == "assistant":
            asked.clear()
        elif entry["role"] == "user":
            asked += TAG.findall(orjson.dumps(entry).decode())
    filler = [f"word{n} " for n in range(PIECES - 1)]
    return Reply(pieces=[*filler, "answers " + " ".join(asked)], first_ms=50, inter_ms=20)


@dataclass
class Journal:
    """What the callers were promised and what became of the server."""

    accepted: list[tuple[str, str]] = field(default_factory=list)  # session id, tag
    interrupted: int = 0
    down_seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Caller:
    """One session's user: posts, waits for the answer, posts on, whatever happens to the server."""

    def __init__(self, server: Server, number: int, journal: Journal) -> None:
        self._server, self._number, self._journal = server, number, journal
        self._client = Client(server.url, {"Authorization": f"Bearer {server.key}"})
        self._random = random.Random(number)
        self._sent = 0
        self.id = ""

    async def _insist(
        self, method: str, path: str, body: object = None, key: str = ""
    ) -> dict[str, object]:
        """The answer of a call repeated until one comes; `key` makes a POST safe to repeat."""
        headers = f"Idempotency-Key: {key}\r\n" if key else ""
        until = time.monotonic() + 90
        while True:
            try:
                answer = await asyncio.wait_for(
                    self._client.call(method, path, body, headers=headers), 15
                )
                if answer.status not in (409, 429, 503):
                    return answer.json(200, 201, 202)
                problem = f"{answer.status} {answer.body[:200]!r}"
            except (OSError, TimeoutError) as exc:
                problem = repr(exc)
            if time.monotonic() > until:
                raise Refused(f"{method} {path}: no answer in 90 s, the last was {problem}")
            await asyncio.sleep(0.1)

    async def open(self) -> None:
        created = await self._insist("POST", "/v1/sessions", {"agentName": "bench"})
        self.id = str(created["id"])

    async def post(self) -> str:
        """Post a message until it is accepted; its tag."""
        self._sent += 1
        tag = f"<m{self._number}-{self._sent}>"
        key = f"{self.id}-{self._sent}"
        body = {"content": f"{tag} please answer"}
        await self._insist("POST", f"/v1/sessions/{self.id}/messages", body, key)
        self._journal.accepted.append((self.id, tag))
        return tag

    async def transcript(self) -> list[dict[str, str]]:
        """All messages of the session, through all pages."""
        messages: list[dict[str, str]] = []
        token = ""
        while True:
            path = f"/v1/sessions/{self.id}/messages?pageSize=200"
            answer = await self._client.call("GET", path + (token and f"&pageToken={token}"))
            messages += answer.json(200)["messages"]  # type: ignore[arg-type]
            token = quote(answer.headers.get(b"x-next-page-token", b"").decode(), safe="")
            if not token:
                return messages

    async def settled(self, tag: str, seconds: float) -> bool:
        """Wait for the answer to a message; False if the session is interrupted, and says so."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(OSError, Refused):
                messages = await self.transcript()
                if any(tag in m["content"] for m in messages if m["role"] == "assistant"):
                    return True
                session = (await self._client.call("GET", f"/v1/sessions/{self.id}")).json(200)
                if session["status"] == "interrupted":
                    self._journal.interrupted += 1
                    return False
            await asyncio.sleep(0.1)
        self._journal.failures.append(f"{tag} of {self.id}: no answer in {seconds:g} s")
        return True

    async def run(self, stop: asyncio.Event) -> None:
        """Talk until told to stop, then until everything accepted is answered."""
        await self.open()
        while True:
            tag = await self.post()
            if self._random.random() < 0.3:  # a second message in mid-turn
                await asyncio.sleep(self._random.uniform(0, 0.3))
                tag = await self.post()
            # An interrupted session takes its cut messages up with the next one.
            if await self.settled(tag, 90) and stop.is_set():
                return

    async def check(self) -> None:
        """Hold the transcript against what was accepted."""
        messages = await self.transcript()
        asked = Counter(
            t for m in messages if m["role"] == "user" for t in TAG.findall(m["content"])
        )
        replies = [m for m in messages if m["role"] == "assistant"]
        answered = Counter(t for m in replies for t in TAG.findall(m["content"]))
        turns = Counter(m["turnId"] for m in replies)
        bad = self._journal.failures
        for session_id, tag in self._journal.accepted:
            if session_id == self.id and (asked[tag], answered[tag]) != (1, 1):
                bad.append(f"{tag}: stored {asked[tag]} times, answered {answered[tag]} times")
        bad += [f"turn {turn} has {n} answers" for turn, n in turns.items() if n > 1]


async def _wait_up(server: Server, seconds: float) -> None:
    """Wait until a server that restarts by itself answers again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client = Client(server.url)
        with contextlib.suppress(OSError, Refused):
            (await client.call("GET", "/healthz")).json(200)
            return
        client.close()
        await asyncio.sleep(0.05)
    raise NotStarted("it did not come back by itself")


async def _kill_often(server: Server, times: int, journal: Journal) -> None:
    moments = random.Random(times)
    for _ in range(times):
        await asyncio.sleep(moments.uniform(0.05, 1.5))
        began = time.monotonic()
        server.kill_gateway()
        if await asyncio.to_thread(server.ended, 3.0):
            await asyncio.to_thread(server.start)
        else:
            await _wait_up(server, 60)
        journal.down_seconds.append(time.monotonic() - began)


async def kill(command: list[str], times: int, callers: int = 6) -> Table:
    """Kill the gateway so many times under so many talking sessions, and check every message."""
    journal = Journal()
    with FakeOpenAI() as fake:
        fake.default(name_the_asked)
        server = Server(command, fake.base_url, "bench", {"PAL_TURN_LEASE": "2s"})
        try:
            await asyncio.to_thread(server.start)
            stop = asyncio.Event()
            talking = [Caller(server, n, journal) for n in range(callers)]
            runs = [asyncio.create_task(caller.run(stop)) for caller in talking]
            try:
                await _kill_often(server, times, journal)
                stop.set()
                await asyncio.gather(*runs)
                for caller in talking:
                    await caller.check()
            except (NotStarted, Refused, OSError) as exc:
                journal.failures.append(f"{type(exc).__name__}: {exc}")
            finally:
                for run in runs:
                    run.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
            model_calls = len(fake.requests)
        finally:
            await asyncio.to_thread(server.remove)
    return Table(
        scenario="kill",
        title=f"{times} × SIGKILL under {callers} talking sessions, lease 2 s",
        columns=["kill"],
        figures=[
            Figure(name="messages accepted", values=[len(journal.accepted)], digits=0),
            Figure(name="model calls", values=[model_calls], digits=0),
            Figure(name="interrupted sessions seen", values=[journal.interrupted], digits=0),
            *spread_figures("from kill to ready, s", [Spread.of(journal.down_seconds)]),
        ],
        remarks=["every accepted message was stored once and answered once"]
        if not journal.failures
        else [],
        failures=journal.failures,
        parameters={"times": times, "callers": callers},
    )
