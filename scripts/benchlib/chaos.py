"""Vendors that fail at random under talking sessions: what is told and stored is the wire's truth.

The same run as the suite's, longer, against the server as a process.
"""

import asyncio
import gc
import re
from collections import Counter
from pathlib import Path

from benchlib.figures import Figure, Table
from benchlib.processes import NotStarted, Server
from tests.fakes.chaos import Chaos
from tests.support.chaos import run_chaos
from tests.support.http import HttpClient
from tests.support.verdict import Evidence, Tally, faults_of, tally

# what the server says only of faults of its own
BROKE = re.compile(rb'"action":\s*"(\w+_broke|turn_cut|lease_lost|turn_put_off)"')


async def chaos(command: list[str], turns: int, seed: int, keep_log: Path | None) -> list[Table]:
    """So many turns over three vendors that fail; how many tries they took, and what failed."""
    with Chaos(seed) as vendors:
        server = Server(command, "", "none", vendors.environ())
        try:
            await asyncio.to_thread(server.start)
            http = HttpClient(server.url, server.key)
            gc.disable()  # a collection here would keep the vendors from answering in time
            sessions, broken = await asyncio.to_thread(run_chaos, vendors, http, turns)
            evidence = Evidence(
                sessions=sessions,
                served=vendors.served,
                ran=vendors.ran,
                refused=vendors.refused,
                broken=broken,
            )
            told, failures = tally(evidence), faults_of(evidence)
            logged = Counter(one.decode() for one in BROKE.findall(server.log.read_bytes()))
        except (NotStarted, OSError, AssertionError) as exc:
            return [Table.of_failure("chaos", exc)]
        finally:
            gc.enable()
            if keep_log and server.log.exists():
                keep_log.write_bytes(server.log.read_bytes())
            await asyncio.to_thread(server.remove)
    failures += [f"the log says {times} × {action}" for action, times in logged.items()]
    return [_attempts(told, failures, seed), _faults(told)]


def _attempts(told: Tally, failures: list[str], seed: int) -> Table:
    plain, tools = told.attempts[False], told.attempts[True]
    columns = ["plain", "with tools", "all"]

    def row(name: str, values: tuple[int, int]) -> Figure:
        return Figure(name=name, values=[*values, sum(values)], digits=0, compare=False)

    figures = [
        row(f"turns of {n} attempt{'s' if n > 1 else ''}", (plain[n], tools[n]))
        for n in range(1, max([*plain, *tools], default=0) + 1)
    ]
    most = 10
    return Table(
        scenario="chaos",
        title=f"{told.turns} turns over three vendors that fail at random, seed {seed}",
        columns=columns,
        figures=figures,
        remarks=[
            f"{told.messages} messages; completed {told.completed}; failed because all three "
            f"vendors did {told.all_failed}, because one broke behind its first delta "
            f"{told.broke_late}",
            f"{told.rounds} rounds of {told.calls} tool calls; {told.left_out} times the first "
            "vendor was left out by its breaker",
            "an attempt more than one is a try that failed; a turn with tools asks the model "
            "several times",
            *(
                ["every message stored once, every answer one vendor's whole, every call run once"]
                if not failures
                else []
            ),
        ],
        failures=[
            *failures[:most],
            *([f"and {len(failures) - most} more"] if len(failures) > most else []),
        ],
        parameters={"turns": told.turns, "seed": seed},
    )


def _faults(told: Tally) -> Table:
    return Table(
        scenario="chaos faults",
        title="by what it was that failed",
        columns=["tries", "turns", "of them completed"],
        figures=[
            Figure(
                name=name,
                values=[tries, told.struck[name], told.survived[name]],
                digits=0,
                compare=False,
            )
            for name, tries in sorted(told.played.items(), key=lambda one: (-one[1], one[0]))
        ],
        remarks=[],
        failures=[],
        parameters={},
    )
