"""Connections and the tenant transaction, the only way to a tenant's rows.

Everything here also holds behind a transaction pooler (RDS Proxy, PgBouncer): no session SET, no
named prepared statements, no LISTEN, no temporary tables. The tenant is set by `pal.enter`, a
function, since RDS Proxy pins a connection whose client it sees calling SET or set_config.
"""

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from chalicelib.db.connections import Connections, Tx, bounded, name_of
from chalicelib.db.login import Login, as_login
from chalicelib.errors import Unavailable

Row = TupleRow

_log = logging.getLogger(__name__)


class Database:
    """A pool of connections as one login, for one event loop.

    `process` names this process among the watchers of a session; `transactions` counts those begun.
    """

    def __init__(
        self, login: Login | str, *, size: int = 16, wait: float = 5.0, longest: float = 60.0
    ) -> None:
        self._connections = Connections(as_login(login).connect, size=size, wait=wait)
        # beyond what the roles' own timeouts allow a statement: for a server that is gone
        self._longest = longest
        self.process = secrets.token_hex(6)
        self.transactions = 0

    async def open(self) -> None:
        """Let transactions begin; connections are made as they are asked for."""
        self._connections.open()

    async def close(self) -> None:
        """Close every connection."""
        self._connections.close()

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
        conn = await self._connections.take(begin)
        self.transactions += 1
        try:
            with bounded(conn, self._longest):
                try:
                    yield conn
                    done = await conn.execute("COMMIT")
                    if done.statusmessage != "COMMIT":
                        raise psycopg.errors.InFailedSqlTransaction("the transaction had failed")
                finally:
                    if conn.pgconn.transaction_status != TransactionStatus.IDLE:
                        with suppress(psycopg.Error):  # if it is broken, it is not kept
                            await conn.rollback()
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as exc:
            _log.warning("database error", extra={"action": "db_error", "error": name_of(exc)})
            if isinstance(exc, psycopg.errors.ReadOnlySqlTransaction):
                # a failover made a reader of the server, and all that are kept lead to it
                conn.pgconn.finish()
                self._connections.forget()
            raise Unavailable("The database did not answer; try again.", retry_after=1) from exc
        finally:
            self._connections.give(conn)
