"""Waiting for something to become true that sends no word when it does."""

import asyncio
import time
from collections.abc import Callable

from chalicelib.db import Tx
from tests.support.postgres import TestDatabase


def until(holds: Callable[[], object], *, seconds: float = 15) -> None:
    """Return once `holds()` is true; an AssertionError when it is not in time."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.01)


async def be_cancelled_at_work(tx: Tx, database: TestDatabase) -> None:
    """Raises CancelledError, as the server is at a statement of this transaction."""
    working = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'PgSleep'"
    asleep = asyncio.create_task(tx.execute("SELECT pg_sleep(60)"))
    await asyncio.to_thread(until, lambda: database.one(working, database.name))
    asleep.cancel()
    await asleep
