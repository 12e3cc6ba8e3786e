"""A migration beside traffic: one whose locks would hold others up for longer is cancelled.

The role's `lock_timeout` bounds how long a migration waits for a lock, and with it those who wait
behind it. How long it keeps one depends on how much there is to rewrite, which no file can say.
So a second connection looks on. What the migration itself makes is not seen from there, and so
never counts.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from chalicelib.db.connections import Tx
from chalicelib.db.login import Login

LONGEST: Final = 5.0
_EVERY: Final = 0.1

# those that a reader or a writer of the table would wait for
_HELD: Final = """
SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = %s AND l.granted AND c.relnamespace = to_regnamespace('pal')
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
ORDER BY 1 LIMIT 1
"""


class LockedTooLong(Exception):
    """A transaction was cancelled since it had kept this table from others."""


@asynccontextmanager
async def no_long_locks(login: Login, conn: Tx, *, longest: float) -> AsyncIterator[None]:
    """What this connection does in this block; raises LockedTooLong if it was cancelled for it."""
    (pid,) = await (await conn.execute("SELECT pg_backend_pid()")).fetchone() or (0,)
    found: list[str] = []
    watch = asyncio.create_task(_watch(login, pid, longest, found))
    try:
        yield
    except psycopg.errors.QueryCanceled as exc:
        if found:
            raise LockedTooLong(found[0]) from exc
        raise
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _watch(login: Login, pid: int, longest: float, found: list[str]) -> None:
    clock = asyncio.get_running_loop().time
    since: float | None = clock()
    await asyncio.sleep(longest / 5)  # nearly every migration is over by then
    while not found:
        try:
            async with await login.connect() as conn:
                while not found:
                    held = await (await conn.execute(_HELD, (pid,))).fetchone()
                    if held is None:
                        since = None
                    elif since is None:
                        since = clock()
                    elif clock() - since >= longest:
                        found.append(held[0])
                        await conn.execute("SELECT pg_cancel_backend(%s)", (pid,))
                    await asyncio.sleep(_EVERY)
        except psycopg.OperationalError:
            found.clear()  # a server that is full, or drops this connection, does not end the watch
        await asyncio.sleep(_EVERY)
