"""What a turn takes of the database and the log, measured on a server of its own."""

import asyncio

from benchlib.meters import Meter
from benchlib.transactions import SETTLE_SECONDS
from contextbench.place import Database, place
from contextbench.talk import Conversation, define_agent

_WARM = 50


async def measure(turns: int) -> str:
    """The measured lines of usage.toml."""
    async with place(PAL_SESSION_TREE="model") as (bench, database):
        agent = await define_agent(bench.client, "bench")
        warm = await Conversation.begin(bench.client, agent, "warm", seed=2)
        for _ in range(_WARM):
            await warm.turn()
        database.analyse()
        size, logged = _size(database), bench.server.log.stat().st_size
        reads, meter = _reads(database), Meter(bench)
        talk = await Conversation.begin(bench.client, agent, "ann")
        for _ in range(turns):
            await talk.turn()
        await asyncio.sleep(SETTLE_SECONDS)
        costs = meter.costs()
        database.analyse()
        return "\n".join(
            [
                f"own_seconds = {costs.server / turns:.4f}",
                f"database_cpu_seconds = {costs.postgres / turns:.4f}",
                f"database_ios = {(_reads(database) - reads) / turns:.1f}",
                f"stored_kb = {(_size(database) - size) / turns / 1e3:.1f}",
                f"log_kb = {(bench.server.log.stat().st_size - logged) / turns / 1e3:.2f}",
            ]
        )


def _size(database: Database) -> int:
    with database.connect() as conn:
        row = conn.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(str(row[0]))


def _reads(database: Database) -> int:
    """Blocks read past the cache, and what of the log was written in blocks of 4 KB.

    Aurora counts a read per page and a write per 4 KB of log.
    """
    with database.connect() as conn:
        row = conn.execute(
            "SELECT (SELECT sum(blks_read) FROM pg_stat_database)"
            " + (SELECT wal_bytes FROM pg_stat_wal) / 4096"
        ).fetchone()
    assert row is not None
    return int(float(str(row[0])))
