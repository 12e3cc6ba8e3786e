"""The rates and the growth: session creates, instant turns, long histories, idle streams."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.load import message, run_way
from benchlib.meters import Bench, Meter
from benchlib.turns import WAYS, Cadence, EventsSession, new_session, run_turn
from benchlib.wire import Answer, Client

INSTANT = Cadence(0, 0, 1)


async def create(bench: Bench, total: int = 2000, at_once: int = 16) -> Table:
    """Session creates a second, beside plain GETs of the provider by the same client."""

    async def rate(call: Callable[[], Awaitable[Answer]], allowed: int) -> tuple[float, Spread]:
        took: list[float] = []

        async def caller(share: int) -> None:
            for _ in range(share):
                began = time.monotonic()
                (await call()).json(allowed)
                took.append((time.monotonic() - began) * 1e3)

        await caller(at_once)  # warm
        took.clear()
        began = time.monotonic()
        await asyncio.gather(*(caller(total // at_once) for _ in range(at_once)))
        return len(took) / (time.monotonic() - began), Spread.of(took)

    base_rate, base_took = await rate(lambda: bench.provider.call("GET", "/models"), 200)
    meter = Meter(bench)
    body = {"agentName": "bench"}
    own_rate, own_took = await rate(lambda: bench.client.call("POST", "/v1/sessions", body), 201)
    costs = meter.costs()
    return Table(
        scenario="create",
        title=f"{total} session creates, {at_once} at once (baseline: GET /v1/models)",
        columns=["baseline", "create"],
        figures=[
            Figure(name="a second", values=[base_rate, own_rate], digits=0),
            *spread_figures("each, ms", [base_took, own_took]),
            Figure(name="server CPU, ms each", values=[None, costs.server * 1e3 / total]),
            Figure(name="Postgres CPU, ms each", values=[None, costs.postgres * 1e3 / total]),
        ],
        remarks=[],
        failures=[],
        parameters={"total": total, "at_once": at_once},
    )


async def instant(bench: Bench, sessions: int = 20, turns: int = 25) -> Table:
    """Turns a second when the provider takes no time."""
    columns = ["baseline", *WAYS]
    runs = [await run_way(bench, way, sessions, turns, INSTANT, ramp=0.0) for way in columns]
    served = runs[1:]
    return Table(
        scenario="instant",
        title=f"{sessions} sessions, {turns} turns each, a provider that answers at once",
        columns=columns,
        figures=[
            Figure(name="turns a second", values=[r.whole / r.costs.wall for r in runs], digits=1),
            *spread_figures("a turn, ms", [Spread.of(t.took_ms for t in r.turns) for r in runs]),
            Figure(
                name="server CPU, ms a turn",
                values=[None, *(r.costs.server * 1e3 / len(r.turns) for r in served)],
            ),
            Figure(
                name="Postgres CPU, ms a turn",
                values=[None, *(r.costs.postgres * 1e3 / len(r.turns) for r in served)],
            ),
        ],
        remarks=[],
        failures=[
            f"{way}: {count} × {what}"
            for way, run in zip(columns, runs, strict=True)
            for what, count in run.failures.most_common(5)
        ],
        parameters={"sessions": sessions, "turns": turns},
    )


async def history(bench: Bench, early: int = 10, late: int = 500, around: int = 5) -> Table:
    """What a growing session costs: a turn's time less the provider's own, early and late.

    Each figure is the median of the turns within `around` of the one named.
    """
    cadence = Cadence(0, 0, 5)
    columns = ["baseline", *WAYS]
    medians: dict[str, list[float]] = {}
    failures = []
    for way in columns:
        await bench.set_cadence(cadence)
        session = await new_session(bench.origin(way), way)
        own: dict[int, float] = {}
        for number in range(1, late + around + 1):
            turn = await run_turn(session, message(1, number), 60)
            if wrong := turn.wrong(cadence.tokens):
                failures.append(f"{way}, turn {number}: {wrong}")
                break
            if min(abs(number - early), abs(number - late)) <= around:
                provider = float(str((await bench.provider_stats())["last_own_ms"]))
                own[number] = turn.took_ms - provider
        session.close()
        medians[way] = [
            statistics.median([ms for n, ms in own.items() if abs(n - mark) <= around] or [0.0])
            for mark in (early, late)
        ]
    by_mark = list(zip(*(medians[way] for way in columns), strict=True))
    return Table(
        scenario="history",
        title=f"one session of {late} turns with its full history: our own ms of a turn",
        columns=columns,
        figures=[
            Figure(name=f"turn {early}", values=by_mark[0]),
            Figure(name=f"turn {late}", values=by_mark[1]),
            Figure(
                name="growth", values=[b - a for a, b in zip(*by_mark, strict=True)], compare=False
            ),
        ],
        remarks=[],
        failures=failures,
        parameters={"early": early, "late": late, "around": around},
    )


async def idle(bench: Bench, streams: int = 2000, seconds: float = 20.0) -> Table:
    """What open event streams without a turn cost in memory and CPU."""
    client = Client(bench.server.url, {"Authorization": f"Bearer {bench.server.key}"})
    body = {"agentName": "bench"}
    ids = [
        str((await client.call("POST", "/v1/sessions", body)).json(201)["id"])
        for _ in range(streams)
    ]

    async def core_share() -> float:
        meter = Meter(bench)
        await asyncio.sleep(seconds)
        costs = meter.costs()
        return costs.server / costs.wall * 100

    before_mb, before_share = bench.server.rss_mb(), await core_share()
    sessions = [EventsSession(client, session_id) for session_id in ids]
    began = time.monotonic()
    for start in range(0, streams, 50):
        await asyncio.gather(*(session.listen() for session in sessions[start : start + 50]))
    opening = time.monotonic() - began
    await asyncio.sleep(2)
    open_share, open_mb = await core_share(), bench.server.rss_mb()
    lost = sum(not session.listening for session in sessions)
    for session in sessions:
        session.close()
    client.close()
    return Table(
        scenario="idle",
        title=f"{streams} open event streams without a turn (baseline: none)",
        columns=["baseline", "open"],
        figures=[
            Figure(name="server RSS, MB", values=[before_mb, open_mb], digits=1),
            Figure(name="server CPU, % of a core", values=[before_share, open_share]),
        ],
        remarks=[f"opened in {opening:.1f} s; CPU over {seconds:g} s"],
        failures=[f"{lost} streams ended by themselves"] if lost else [],
        parameters={"streams": streams, "seconds": seconds},
    )
