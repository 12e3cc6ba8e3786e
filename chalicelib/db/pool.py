"""Connections and the tenant transaction, the only way to a tenant's rows.

Everything here also holds behind a transaction pooler (RDS Proxy, PgBouncer): no session SET, no
named prepared statements, no LISTEN, no temporary tables. The tenant is set by `pal.enter`, a
function, since RDS Proxy pins a connection whose client it sees calling SET or set_config.
"""

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from chalicelib.errors import Unavailable

Tx = psycopg.AsyncConnection[TupleRow]
Row = TupleRow

_log = logging.getLogger(__name__)

CONNECTION: dict[str, Any] = {
    "autocommit": True,
    # a named statement made on one backend does not exist on the next one a pooler hands out
    "prepare_threshold": None,
    "connect_timeout": 5,
    # a server that is gone without a word is noticed within 10 s, not after 15 minutes
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""How every connection of this project is made, scripts and migrations included."""


class Database:
    """A pool of connections as one login, for one event loop.

    `process` names this process among the watchers of a session; `transactions` counts those begun.
    """

    def __init__(self, url: str, *, size: int = 16, wait: float = 5.0) -> None:
        self._size = size
        self._pool = AsyncConnectionPool(
            url,
            kwargs=CONNECTION,
            min_size=min(2, size),
            max_size=size,
            timeout=wait,
            max_idle=300,
            open=False,
            name="pal",
        )
        self.process = secrets.token_hex(6)
        self.transactions = 0

    async def open(self) -> None:
        """Start the pool; connections are made as they are asked for."""
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()

    @asynccontextmanager
    async def tenant(self, tenant_id: str) -> AsyncIterator[Tx]:
        """A transaction that sees this tenant's rows and no others; commits if the block ends.

        A connection that died while it lay idle (a frozen Lambda, a server that restarted) is
        replaced before the block starts. Raises Unavailable when there is no database to be had,
        or when it is lost later: then nothing is repeated, for the commit may have happened.
        """
        begin = sql.SQL("BEGIN; SELECT pal.enter({}, {})").format(
            sql.Literal(tenant_id), sql.Literal(self.process)
        )
        async with self._transaction(begin) as tx:
            yield tx

    @asynccontextmanager
    async def system(self) -> AsyncIterator[Tx]:
        """A transaction of no tenant: sees no tenant's row, may call the `pal.*` functions."""
        async with self._transaction(sql.SQL("BEGIN")) as tx:
            yield tx

    @asynccontextmanager
    async def _transaction(self, begin: sql.SQL | sql.Composed) -> AsyncIterator[Tx]:
        conn = await self._begin(begin)
        self.transactions += 1
        try:
            yield conn
            done = await conn.execute("COMMIT")
            if done.statusmessage != "COMMIT":
                raise psycopg.errors.InFailedSqlTransaction("the transaction had already failed")
        except psycopg.OperationalError as exc:
            _log.warning("database error", extra={"action": "db_error", "error": _name(exc)})
            raise Unavailable("The database did not answer; try again.", retry_after=1) from exc
        finally:
            await self._give_back(conn)

    async def _give_back(self, conn: Tx) -> None:
        if conn.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):  # if it is broken, the pool throws it away
                await conn.rollback()
        await self._pool.putconn(conn)

    async def _begin(self, begin: sql.SQL | sql.Composed) -> Tx:
        # as many tries as the pool may hold dead connections, and one for a fresh one
        for _ in range(self._size + 1):
            try:
                conn = await self._pool.getconn()
            except (PoolTimeout, psycopg.OperationalError) as exc:
                raise Unavailable("The database is not reachable.", retry_after=1) from exc
            try:
                await conn.execute(begin)
                return conn
            except psycopg.OperationalError as exc:
                await self._pool.putconn(conn)
                if not conn.broken and not conn.closed:
                    raise Unavailable("The database refused to begin.", retry_after=1) from exc
                _log.info("stale connection replaced", extra={"action": "db_reconnect"})
            except BaseException:
                await self._pool.putconn(conn)
                raise
        raise Unavailable("The database is not reachable.", retry_after=1)


def _name(exc: psycopg.Error) -> str:
    return exc.sqlstate or type(exc).__name__
