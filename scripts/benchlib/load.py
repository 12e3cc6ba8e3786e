"""Many sessions at once: how late deltas are, what a turn costs, and whether all of it arrives."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.meters import Bench, Costs, Meter, loop_lag
from benchlib.turns import WAYS, Cadence, Session, Turn, new_session, run_turn

RAMP_SECONDS = 1.2  # sessions start spread over this long, as callers would


@dataclass(kw_only=True)
class Run:
    """One way at one number of streams."""

    turns: list[Turn]
    failures: Counter[str]
    costs: Costs
    rss_mb: float
    lag: Spread
    cadence: Cadence

    @property
    def whole(self) -> int:
        return len(self.turns) - self.failures.total()

    def late(self) -> Spread:
        return Spread.of(ms for turn in self.turns for ms in turn.late_ms)

    def first_late(self) -> Spread:
        return Spread.of(turn.late_ms[0] for turn in self.turns if turn.late_ms)

    def first_over(self) -> Spread:
        return Spread.of(
            turn.first_ms - self.cadence.first_ms
            for turn in self.turns
            if turn.first_ms is not None
        )


def message(session: int, turn: int) -> str:
    return f"Session {session}, message {turn}: how do things stand? A short answer will do."


async def run_way(
    bench: Bench, way: str, streams: int, turns: int, cadence: Cadence, ramp: float
) -> Run:
    """Drive so many sessions through so many turns each."""
    await bench.set_cadence(cadence)
    client = bench.origin(way)
    sessions = [await new_session(client, way) for _ in range(streams)]
    warm = await new_session(client, way)
    limit = cadence.turn_ms / 1e3 * 2 + 60
    await run_turn(warm, message(0, 0), limit)
    done: list[Turn] = []
    failures: Counter[str] = Counter()
    spread = random.Random(streams)

    async def drive(number: int, session: Session) -> None:
        await asyncio.sleep(spread.uniform(0, ramp) if streams > 1 else 0)
        for k in range(turns):
            turn = await run_turn(session, message(number, k), limit)
            done.append(turn)
            if wrong := turn.wrong(cadence.tokens):
                failures[wrong[:160]] += 1

    with loop_lag() as lags:
        meter = Meter(bench)
        await asyncio.gather(*(drive(n, s) for n, s in enumerate(sessions)))
        costs = meter.costs()
    rss = bench.server.rss_mb()
    for session in [*sessions, warm]:
        session.close()
    return Run(
        turns=done,
        failures=failures,
        costs=costs,
        rss_mb=rss,
        lag=Spread.of(lags),
        cadence=cadence,
    )


async def load(
    bench: Bench,
    streams: int,
    turns: int,
    cadence: Cadence,
    *,
    scenario: str = "load",
    ramp: float = RAMP_SECONDS,
) -> Table:
    """The baseline and both ways at one number of streams."""
    columns = ["baseline", *WAYS]
    runs = [await run_way(bench, way, streams, turns, cadence, ramp) for way in columns]

    def own(name: str, of: Callable[[Run], float], digits: int = 2) -> Figure:
        values = [None, *(of(run) for run in runs[1:])]
        return Figure(name=name, values=values, digits=digits, compare=False)

    def every(name: str, of: Callable[[Run], float], digits: int = 2) -> Figure:
        values = [of(run) for run in runs]
        return Figure(name=name, values=values, digits=digits, compare=False)

    figures = [
        *spread_figures("added to the first delta, ms", [r.first_late() for r in runs]),
        *spread_figures("added to every delta, ms", [r.late() for r in runs]),
        *spread_figures("first token over the provider's, ms", [r.first_over() for r in runs]),
        Figure(name="turns a second", values=[r.whole / r.costs.wall for r in runs]),
        own("server CPU, ms a turn", lambda r: r.costs.server * 1e3 / len(r.turns)),
        own("Postgres CPU, ms a turn", lambda r: r.costs.postgres * 1e3 / len(r.turns)),
        every("provider CPU, ms a turn", lambda r: r.costs.provider * 1e3 / len(r.turns)),
        every("client CPU, ms a turn", lambda r: r.costs.client * 1e3 / len(r.turns)),
        own("server RSS, MB", lambda r: r.rss_mb, 1),
        every("tokens expected", lambda r: len(r.turns) * cadence.tokens, 0),
        every("tokens delivered", lambda r: sum(len(t.seen) for t in r.turns), 0),
        every("deltas received", lambda r: sum(t.deltas for t in r.turns), 0),
        every("client loop late, p99 ms", lambda r: r.lag.p99),
        every("cores taken by others", lambda r: r.costs.others_cores),
    ]
    return Table(
        scenario=scenario,
        title=f"sessions at once: {streams}, turns each: {turns}, cadence {cadence}",
        columns=columns,
        figures=figures,
        remarks=[],
        failures=[
            f"{way}: {count} × {what}"
            for way, run in zip(columns, runs, strict=True)
            for what, count in run.failures.most_common(5)
        ],
        parameters={"streams": streams, "turns": turns, "cadence": cadence},
    )
