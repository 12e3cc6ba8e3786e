"""What a round of the tool loop costs: turns of several rounds less turns of none.

Vendor and tool answer at once, from a process of their own. What a round cannot do without is
taken off, as long as it takes a bare client in the same run: the two calls, and as many commits as
a round has, which are mostly the disk's.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchlib.figures import Figure, Spread, Table
from benchlib.meters import Bench, Meter
from benchlib.processes import ROOT, Program, Server, clean_environment
from benchlib.rounds_vendor import READY
from benchlib.transactions import SETTLE_SECONDS, Counters, socket_dsn
from benchlib.wire import Client, Refused

MANY = 4  # and at most five are allowed
_PARTS = 5


@contextlib.contextmanager
def _vendor() -> Iterator[tuple[str, str, int]]:
    """The vendor's base URL, the tool's, and the process id of both."""
    with tempfile.TemporaryDirectory(prefix="bench-rounds-") as folder:
        env = clean_environment() | {"PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "benchlib.rounds_vendor"]
        program = Program(command, Path(folder) / "log", env)
        try:
            ready = program.wait_ready(20, READY)
            yield ready[1], ready[2], program.pid
        finally:
            program.stop(5)


@dataclass(kw_only=True)
class _Block:
    """So many turns of one number of rounds."""

    took_ms: list[float] = field(default_factory=list)
    server: float = 0.0
    postgres: float = 0.0
    commits: float = 0.0
    writes: float = 0.0


class _Turns:
    """Turns of agents that take so many rounds, each in a session of its own."""

    def __init__(self, bench: Bench, counters: Counters, tool: str) -> None:
        self._bench, self._counters, self._tool = bench, counters, tool
        self._ready: dict[int, list[str]] = {}
        self.failures: list[str] = []

    async def prepare(self, rounds: int, turns: int) -> None:
        """Define the agent and open the sessions, which are not to be counted."""
        name = f"rounds{rounds}"
        schema = {"type": "object", "properties": {"id": {"type": "string"}}}
        tool = {"kind": "http", "name": "note", "method": "POST", "url": self._tool}
        body = {
            "name": name,
            "models": {"primary": [f"openai:rounds-{rounds}"]},
            "tools": [{**tool, "parameters": schema}],
        }
        (await self._bench.client.call("POST", "/v1/agents", body)).json(201)
        made = [
            await self._bench.client.call("POST", "/v1/sessions", {"agentName": name})
            for _ in range(turns)
        ]
        self._ready[rounds] = [str(one.json(201)["id"]) for one in made]

    async def run(self, rounds: int, turns: int, block: _Block) -> None:
        """Have them, one after the other; their times go into the block."""
        meter, writes = Meter(self._bench), self._counters.writes()
        for _ in range(turns):
            began = time.monotonic_ns()
            took = await self._turn(self._ready[rounds].pop(), rounds, began)
            block.took_ms.append(took)
        costs = meter.costs()
        block.server += costs.server
        block.postgres += costs.postgres
        block.writes += self._counters.writes() - writes

    async def _turn(self, session_id: str, rounds: int, began: int) -> float:
        names: list[bytes] = []
        ended = began

        def sink(name: bytes, _: bytes, at: int) -> None:
            nonlocal ended
            names.append(name)
            ended = at

        exchange = await self._bench.client.start(
            "POST", f"/v1/sessions/{session_id}/messages", body={"content": "go"}, sink=sink
        )
        await exchange.ended
        calls = names.count(b"tool_call_completed")
        if names[-1:] != [b"message_completed"] or calls != rounds:
            self.failures.append(f"a turn of {rounds} rounds told {names}")
        return (ended - began) / 1e6


class _Bare:
    """What the parts of a round take by themselves, in milliseconds."""

    def __init__(self, bench: Bench, tool: Client) -> None:
        self._vendor, self._tool = bench.provider, tool
        dsn = socket_dsn(bench.server.data, "postgres")  # not counted there
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._conn.execute("CREATE TABLE bare (n integer)")
        self.calls: list[float] = []
        self.commits: list[float] = []

    async def run(self, times: int) -> None:
        """A call of the vendor and of the tool, then a commit, by clients that do no more."""
        function = {"name": "note", "description": "Calls note.", "parameters": {"type": "object"}}
        ask = {
            "model": f"rounds-{MANY}",
            "messages": [{"role": "user", "content": "go"}],
            "stream": False,
            "tools": [{"type": "function", "function": function}],
        }
        for _ in range(times):
            began = time.monotonic_ns()
            (await self._vendor.call("POST", "/chat/completions", ask)).json(200)
            if (await self._tool.call("POST", "", {"id": "0"})).status != 200:
                raise Refused("the tool did not answer")
            called = time.monotonic_ns()
            self._conn.execute("INSERT INTO bare VALUES (1)")
            self.calls.append((called - began) / 1e6)
            self.commits.append((time.monotonic_ns() - called) / 1e6)

    def close(self) -> None:
        self._conn.close()


@contextlib.asynccontextmanager
async def _bench(command: list[str]) -> AsyncIterator[tuple[Bench, str, list[Client]]]:
    with _vendor() as (url, tool, pid):
        host = tool.removeprefix("http://").partition("/")[0]
        server = Server(command, url, "rounds-0", {"PAL_TOOL_PRIVATE_HOSTS": host})
        try:
            await asyncio.to_thread(server.start)
            key = {"Authorization": f"Bearer {server.key}"}
            clients = [Client(url), Client(tool), Client(server.url, key)]
            bench = Bench(
                server=server,
                provider=clients[0],
                provider_admin=clients[0],
                provider_pid=pid,
                client=clients[2],
            )
            yield bench, tool, clients
            for one in clients:
                one.close()
        finally:
            await asyncio.to_thread(server.remove)


async def rounds(command: list[str], turns: int = 100) -> Table:
    """Time, CPU and transactions of one round with one call."""
    async with _bench(command) as (bench, tool, clients):
        counters = Counters(bench.server.data)
        counters.quiet()
        driver = _Turns(bench, counters, tool)
        blocks = {0: _Block(), MANY: _Block()}
        for number in blocks:
            await driver.prepare(number, 2 * turns + 10)
            await driver.run(number, 10, _Block())  # fills the caches
        bare = _Bare(bench, clients[1])
        for _ in range(_PARTS):
            await bare.run(turns // _PARTS)
            for number, block in blocks.items():
                await driver.run(number, turns // _PARTS, block)
        bare.close()
        await asyncio.sleep(SETTLE_SECONDS)
        began, before = time.monotonic(), counters.commits()
        await asyncio.sleep(3 * SETTLE_SECONDS)
        background = (counters.commits() - before) / (time.monotonic() - began)
        for number, block in blocks.items():
            began, before = time.monotonic(), counters.commits()
            await driver.run(number, turns, _Block())
            await asyncio.sleep(SETTLE_SECONDS)
            quiet = background * (time.monotonic() - began)
            block.commits = counters.commits() - before - quiet
        counters.close()
    return _table(blocks[0], blocks[MANY], bare, turns, driver.failures)


def _table(none: _Block, many: _Block, bare: _Bare, turns: int, failures: list[str]) -> Table:
    def row(name: str, *values: float) -> Figure:
        """Of a turn without and one with rounds, hence of a round; or of a round alone."""
        a_round = values[0] if len(values) == 1 else (values[1] - values[0]) / MANY
        given = values if len(values) == 2 else (None, None)
        return Figure(name=name, values=[*given, a_round], compare=False)

    turn = [Spread.of(one.took_ms).p50 for one in (none, many)]
    commits = [one.commits / turns for one in (none, many)]
    needed = Spread.of(bare.calls).p50, Spread.of(bare.commits).p50
    own = (turn[1] - turn[0] - (commits[1] - commits[0]) * needed[1]) / MANY - needed[0]
    return Table(
        scenario="rounds",
        title=f"{turns} turns without and with {MANY} rounds of one HTTP tool call, one at a time",
        columns=["no round", f"{MANY} rounds", "a round"],
        figures=[
            row("a turn, ms, p50", *turn),
            row("a bare call of vendor and tool, ms, p50", needed[0]),
            row("a bare commit, ms, p50", needed[1]),
            row("the loop's own beside those, ms", own),
            row("server CPU, ms", *(one.server * 1e3 / turns for one in (none, many))),
            row("Postgres CPU, ms", *(one.postgres * 1e3 / turns for one in (none, many))),
            row("transactions", *commits),
            row("that wrote", *(one.writes / turns for one in (none, many))),
        ],
        remarks=[],
        failures=failures[:5],
        parameters={"turns": turns, "rounds": MANY},
    )
