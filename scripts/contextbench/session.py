"""A session of two thousand messages: what a turn costs early in it and at its end."""

import asyncio
import time
from dataclasses import dataclass

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.meters import Bench, Costs, Meter
from benchlib.transactions import SETTLE_SECONDS

from contextbench.place import Counts, Database, place
from contextbench.talk import Conversation, Took, define_agent

BOUND = 1.3
EARLY = 100
_WARM = 150  # turns of another session before
_SIDE = 20  # turns on either side of the message that a window is around


@dataclass(frozen=True, kw_only=True)
class _Window:
    turns: list[Took]
    costs: Costs
    counts: Counts

    def each(self, total: float) -> float:
        return total / len(self.turns)


async def session(messages: int, tree: str) -> Table:
    """Milliseconds, CPU and database work of a turn around message 100 and before the last one."""
    async with place(PAL_SESSION_TREE=tree) as (bench, database):
        agent = await define_agent(bench.client, "bench")
        warm = await Conversation.begin(bench.client, agent, "warm", seed=2)
        await _talk(warm, _WARM)
        database.analyse()
        quiet = await _background(database)
        talk = await Conversation.begin(bench.client, agent, "ann")
        first = EARLY // 2 - _SIDE
        await _talk(talk, first)
        early = await _window(bench, database, talk, quiet)
        await _talk(talk, messages // 2 - first - 4 * _SIDE)
        late = await _window(bench, database, talk, quiet)
    return _table(messages, tree, early, late)


async def _talk(talk: Conversation, turns: int) -> list[Took]:
    return [await talk.turn() for _ in range(turns)]


async def _background(database: Database) -> dict[str, float]:
    """What the server has done in a second while no one talks, by the name of the count."""
    database.housekeeping("off")
    await asyncio.sleep(SETTLE_SECONDS)
    began, before = time.monotonic(), database.counts()
    await asyncio.sleep(2 * SETTLE_SECONDS)
    seconds = time.monotonic() - began
    return {name: value / seconds for name, value in _less(database.counts(), before).items()}


def _less(after: Counts, before: Counts) -> dict[str, int]:
    return {name: value - getattr(before, name) for name, value in vars(after).items()}


async def _window(
    bench: Bench, database: Database, talk: Conversation, quiet: dict[str, float]
) -> _Window:
    database.housekeeping("off")  # it is the clock's, and would be in one window or the other
    database.merge()
    await asyncio.sleep(SETTLE_SECONDS)
    began, before, meter = time.monotonic(), database.counts(), Meter(bench)
    turns = await _talk(talk, 2 * _SIDE)
    await asyncio.sleep(0.5)  # the work behind the last reply
    database.merge()
    costs = meter.costs()
    await asyncio.sleep(SETTLE_SECONDS)
    after, seconds = database.counts(), time.monotonic() - began
    database.housekeeping("on")
    made = {
        name: max(0, round(value - quiet[name] * seconds))
        for name, value in _less(after, before).items()
    }
    return _Window(turns=turns, costs=costs, counts=Counts(**made))


def _table(messages: int, tree: str, early: _Window, late: _Window) -> Table:
    both = (early, late)
    spreads = [Spread.of(one.ms for one in window.turns) for window in both]
    tokens = [Spread.of(one.tokens for one in window.turns) for window in both]
    times = spread_figures("a turn, ms", spreads)
    costs = [
        Figure(name=name, values=[window.each(total(window)) for window in both], digits=digits)
        for name, total, digits in (
            ("server CPU, ms a turn", lambda one: one.costs.server * 1e3, 2),
            ("Postgres CPU, ms a turn", lambda one: one.costs.postgres * 1e3, 2),
            ("transactions a turn", lambda one: one.counts.transactions, 2),
            ("blocks a turn", lambda one: one.counts.blocks, 0),
            ("rows read a turn", lambda one: one.counts.rows, 0),
        )
    ]
    prompt = Figure(name="prompt, tokens, p50", values=[one.p50 for one in tokens], digits=0)
    largest = Figure(name="prompt, tokens, most", values=[one.max for one in tokens], digits=0)
    others = Figure(
        name="cores taken by others",
        values=[one.costs.others_cores for one in both],
        compare=False,
    )
    bound = [times[0], *costs, prompt]
    ratios = {one.name: (one.values[1] or 0) / (one.values[0] or 1) for one in bound}
    return Table(
        scenario="session",
        title=f"a compact session of {messages} messages, its tree kept by: {tree}",
        columns=[f"around message {EARLY}", f"up to message {messages}"],
        figures=[*times, *costs, prompt, largest, others],
        remarks=[
            f"bound: ×{BOUND}; windows of {2 * _SIDE} turns with the work behind their replies;"
            " what the server does by itself is taken off the database's counts"
        ],
        failures=[
            f"{name}: ×{ratio:.2f}, more than ×{BOUND}"
            for name, ratio in ratios.items()
            if ratio > BOUND
        ],
        parameters={"messages": messages, "tree": tree},
    )
