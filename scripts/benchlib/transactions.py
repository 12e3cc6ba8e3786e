"""How many database transactions a plain turn takes, by Postgres' own counters."""

import asyncio
import time
from pathlib import Path

import psycopg

from benchlib.figures import Figure, Table
from benchlib.load import message
from benchlib.meters import Bench
from benchlib.turns import WAYS, Cadence, ServerSession, new_session, run_turn

# A backend that goes idle reports what it counted within 10 s.
SETTLE_SECONDS = 11.0
DATABASE = "palimpsest"


def socket_dsn(data: Path, database: str) -> str:
    """How to reach the embedded Postgres of a data folder as its superuser."""
    lines = (data / "postgres" / "postmaster.pid").read_text().splitlines()
    return psycopg.conninfo.make_conninfo(
        host=lines[4].strip(), port=lines[3].strip(), user="postgres", dbname=database
    )


class Counters:
    """Commits of the server's database; read from another one, so that reading does not count."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._conn = psycopg.connect(socket_dsn(data, "postgres"), autocommit=True)

    def commits(self) -> int:
        """Transactions committed in the server's database, those that only read included."""
        query = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
        self._conn.execute("SELECT pg_stat_clear_snapshot()")
        row = self._conn.execute(query, [DATABASE]).fetchone()
        assert row is not None
        return int(row[0])

    def writes(self) -> int:
        """The next transaction id: only transactions that write take one."""
        query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        row = self._conn.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def flushes(self, session_id: str) -> tuple[int, int]:
        """Delta rows of the session's event log, and the transactions that wrote nothing else.

        A row's xmin is the transaction that wrote it; one that also wrote another event is the
        turn's claim or commit.
        """
        query = """
            SELECT coalesce(sum(deltas), 0)::int, (count(*) FILTER (WHERE deltas = events))::int
            FROM (
                SELECT count(*) FILTER (WHERE kind = 'delta') AS deltas, count(*) AS events
                FROM pal.session_events WHERE session_id = %s GROUP BY xmin::text
            ) AS written
        """
        with psycopg.connect(socket_dsn(self._data, DATABASE)) as conn:
            row = conn.execute(query, [session_id]).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def quiet(self) -> None:
        """Keep Postgres' own housekeeping out of the counts, in this throwaway cluster."""
        self._conn.execute("ALTER SYSTEM SET autovacuum = off")
        self._conn.execute("SELECT pg_reload_conf()")

    def close(self) -> None:
        self._conn.close()


async def transactions(bench: Bench, turns: int = 20) -> Table:
    """Transactions of a turn, less the background's and apart from the delta flushes."""
    cadence = Cadence(200, 20, 50)
    await bench.set_cadence(cadence)
    counters = Counters(bench.server.data)
    counters.quiet()
    failures: list[str] = []
    total, writing, rows, flushes = [], [], [], []
    await asyncio.sleep(SETTLE_SECONDS)
    began, before = time.monotonic(), counters.commits()
    await asyncio.sleep(3 * SETTLE_SECONDS)
    background = (counters.commits() - before) / (time.monotonic() - began)
    for way in WAYS:
        session = await new_session(bench.client, way)
        assert isinstance(session, ServerSession)
        await run_turn(session, message(0, 0), 60)  # fills the caches
        warm_rows, warm_flushes = counters.flushes(session.id)
        await asyncio.sleep(SETTLE_SECONDS)
        began, before, writes = time.monotonic(), counters.commits(), counters.writes()
        for number in range(1, turns + 1):
            turn = await run_turn(session, message(1, number), 60)
            if wrong := turn.wrong(cadence.tokens):
                failures.append(f"{way}, turn {number}: {wrong}")
        writing.append((counters.writes() - writes) / turns)
        await asyncio.sleep(SETTLE_SECONDS)
        quiet = background * (time.monotonic() - began)
        total.append((counters.commits() - before - quiet) / turns)
        session_rows, session_flushes = counters.flushes(session.id)
        rows.append((session_rows - warm_rows) / turns)
        flushes.append((session_flushes - warm_flushes) / turns)
        session.close()
    counters.close()
    apart = [t - f for t, f in zip(total, flushes, strict=True)]
    return Table(
        scenario="transactions",
        title=f"database transactions of a plain turn, cadence {cadence}, {turns} turns",
        columns=list(WAYS),
        figures=[
            Figure(name="besides delta flushes", values=apart, compare=False),
            Figure(name="delta flushes", values=flushes, compare=False),
            Figure(name="delta rows", values=rows, compare=False),
            Figure(name="that wrote, the flushes included", values=writing, compare=False),
        ],
        remarks=[
            f"taken off: {background:.2f} a second in the background; "
            "left in: what comes with requests but by the clock, such as looking a key up again"
        ],
        failures=failures,
        parameters={"turns": turns, "cadence": cadence},
    )
