"""`POST …/context` in a tenant with a large memory: how long it takes, without any model."""

import random
import time

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.meters import Bench, Costs, Meter

from contextbench.memories import Sizes, fill, user
from contextbench.place import asked, place
from contextbench.talk import Conversation, define_agent

BOUND_MS = 30.0
_TURNS = 18  # messages of a session that is about to be compacted
_PEOPLE = 8
_WARM = 20


async def contexts(memories: int, requests: int) -> Table:
    """Milliseconds over HTTP, for average people and for the one of whom most is known."""
    sizes = Sizes.of(memories)
    settings = {"PAL_SESSION_TREE": "plain", "PAL_MEMORY_DISTILL": "on"}
    async with place(**settings) as (bench, database):
        began = time.monotonic()
        fill(database, sizes)
        filled = time.monotonic() - began
        agent = await define_agent(bench.client, "bench")
        chance = random.Random(5)
        few = chance.sample(range(1, sizes.people), min(_PEOPLE, sizes.people - 1))
        average = [await _conversation(bench, agent, number) for number in few]
        heaviest = [await _conversation(bench, agent, 0)]
        before = await asked(bench)
        found = [await _ask(bench, some, requests) for some in (average, heaviest)]
        calls = await asked(bench) - before
    return _table(sizes, filled, found, calls)


async def _conversation(bench: Bench, agent: str, number: int) -> Conversation:
    talk = await Conversation.begin(bench.client, agent, user(number), seed=100 + number)
    for _ in range(_TURNS):
        await talk.turn()
    return talk


class _Asked:
    """Times, the last answer's sections in tokens, and what it cost."""

    def __init__(self, times: list[float], tokens: dict[str, int], costs: Costs) -> None:
        self.spread, self.tokens, self.costs = Spread.of(times), tokens, costs


async def _ask(bench: Bench, talks: list[Conversation], requests: int) -> _Asked:
    times, tokens = [], {}
    meter = Meter(bench)
    for number in range(requests + _WARM):
        if number == _WARM:
            meter = Meter(bench)
        talk = talks[number % len(talks)]
        body = {"query": talk.question()}
        began = time.perf_counter()
        answer = await bench.client.call("POST", f"/v1/sessions/{talk.id}/context", body)
        took = (time.perf_counter() - began) * 1e3
        shown = answer.json(200)
        if number >= _WARM:
            times.append(took)
        sections = shown["sections"]
        assert isinstance(sections, list)
        tokens = {one["kind"]: one["tokens"] for one in sections}
    return _Asked(times, tokens, meter.costs())


def _table(sizes: Sizes, filled: float, found: list[_Asked], calls: int) -> Table:
    late = [one.spread.p95 for one in found]
    told = ("narrative", "facts", "episodes", "tree", "turns")
    names = ("average person", "heaviest person")
    failures = [
        f"{name}: p95 {ms:.1f} ms, more than {BOUND_MS:g} ms"
        for name, ms in zip(names, late, strict=True)
        if ms > BOUND_MS
    ]
    failures += [f"the provider was called {calls} times"] if calls else []
    failures += [
        f"{name} was told nothing of: {kind}"
        for name, one in zip(names, found, strict=True)
        for kind in told
        if not one.tokens.get(kind)
    ]
    return Table(
        scenario="context",
        title=f"POST …/context among {sizes.events:,} events, {sizes.facts:,} facts and "
        f"{sizes.episodes:,} episodes of {sizes.people:,} people",
        columns=names,
        figures=[
            *spread_figures("a context, ms", [one.spread for one in found]),
            *(
                Figure(
                    name=name,
                    values=[cost(one.costs) * 1e3 / one.spread.n for one in found],
                )
                for name, cost in (
                    ("server CPU, ms each", lambda costs: costs.server),
                    ("Postgres CPU, ms each", lambda costs: costs.postgres),
                )
            ),
            *(
                Figure(
                    name=f"{kind}, tokens",
                    values=[one.tokens.get(kind, 0) for one in found],
                    digits=0,
                    compare=False,
                )
                for kind in told
            ),
            Figure(
                name="cores taken by others",
                values=[one.costs.others_cores for one in found],
                compare=False,
            ),
        ],
        remarks=[
            f"bound: p95 of {BOUND_MS:g} ms; {found[0].spread.n} requests each, one after another;"
            f" the heaviest has {sizes.heaviest_facts:,} facts and {sizes.heaviest_episodes:,}"
            f" episodes; calls of the provider: {calls}; filled in {filled:.0f} s"
        ],
        failures=failures,
        parameters={**vars(sizes), "requests": found[0].spread.n},
    )
