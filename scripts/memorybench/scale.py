"""Search among a million rows of two thousand tenants, through the store's own function."""

import random
import time
from collections.abc import Sequence

from benchlib.figures import Spread

from chalicelib.memory.handles import read_handle
from chalicelib.memory.timeline import NewEvent
from memorybench.place import Place
from memorybench.words import Language, Said

LARGE, MIDDLE = 0, 1
_BATCH = 500
_GROUP = 500


def sizes(rows: int, tenants: int) -> list[int]:
    """Rows of each tenant: a tenth in one, a hundredth in the next, the rest around 260."""
    chance = random.Random(7)
    weights = [chance.lognormvariate(0, 1) for _ in range(tenants - 2)]
    left = rows - rows // 10 - rows // 100
    small = [max(1, round(left * one / sum(weights))) for one in weights]
    return [rows // 10, rows // 100, *small]


def events(said: Sequence[Said]) -> list[NewEvent]:
    """As they are ingested."""
    return [
        NewEvent(
            channel="bench",
            kind="message",
            content=one.text,
            occurred_at=one.at,
            group_id=one.group,
            person=read_handle("bench", f"{one.group} {one.name}"),
            name=one.name,
        )
        for one in said
    ]


async def fill(at: Place, rows: int, tenants: int) -> dict[str, float]:
    """Ingest it all, if it is not there yet; rows a second."""
    language, began, count = Language(1), time.perf_counter(), 0
    if at.execute("SELECT 1 FROM pal.memory_events LIMIT 1"):
        return {}
    for number, size in enumerate(sizes(rows, tenants)):
        caller = at.tenant(number)
        for start in range(0, size, _BATCH):
            some = language.conversation(f"g{start // _GROUP}", min(_BATCH, size - start))
            await at.timeline.ingest(caller, events(list(some)))
            count += min(_BATCH, size - start)
    seconds = time.perf_counter() - began
    at.execute("VACUUM ANALYZE")
    return {"rows": count, "seconds": seconds, "rows_a_second": count / seconds}


async def ask(at: Place, rows: int, tenants: int, questions: int) -> dict[str, Spread]:
    """Milliseconds a search, by the scope that is searched."""
    every = sizes(rows, tenants)
    small = sorted(range(2, tenants), key=lambda one: abs(every[one] - 260))[:200]
    scopes = {
        "group of 500": [(LARGE, "g7"), (LARGE, "g60"), (LARGE, "g150")],
        "small tenant": [(one, None) for one in small],
        f"tenant of {every[MIDDLE]:,}": [(MIDDLE, None)],
        f"tenant of {every[LARGE]:,}": [(LARGE, None)],
    }
    language, chance = Language(1), random.Random(3)
    asked = Language(2)
    figures = {}
    for name, chosen in scopes.items():
        times = []
        for number in range(questions + 20):
            tenant, group = chance.choice(chosen)
            [said] = language.conversation("any", 1)
            text = asked.question(said)
            began = time.perf_counter()
            await at.search.find(
                at.tenant_id(tenant), text=text, group_id=group, tiers=("episodic",), limit=10
            )
            if number >= 20:  # the first ones warm it up
                times.append((time.perf_counter() - began) * 1000)
        figures[name] = Spread.of(times)
    return figures
