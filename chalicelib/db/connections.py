"""The connections a process keeps, and how a dead one costs its finder no failed request.

There is no upkeep in the background: a Lambda is frozen between invocations, so nothing may rest
on timers, and a server that comes back must be found by the next request and not by the next
attempt of a back-off. A kept connection is tried by the very BEGIN it is taken for. If that fails,
nothing has happened yet: the next one is tried, and then a fresh one is made. A server that says
nothing (a half-open socket) counts as gone after half of the wait.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from chalicelib.errors import Unavailable

Tx = psycopg.AsyncConnection[TupleRow]

IDLE_SECONDS: Final = 300.0
"""A connection that no one needed for so long is closed, the next time one is given back."""

_log = logging.getLogger(__name__)


class Connections:
    """At most `size` connections on one event loop; the one used last is taken first."""

    def __init__(self, connect: Callable[[], Awaitable[Tx]], *, size: int, wait: float) -> None:
        self._connect, self._wait = connect, wait
        self._slots = asyncio.Semaphore(size)
        self._kept: deque[tuple[Tx, float]] = deque()
        self._open = False

    def open(self) -> None:
        """Let connections be taken; they are made as they are asked for."""
        self._open = True

    def close(self) -> None:
        """Close what is kept now, and the rest as it is given back."""
        self._open = False
        self.forget()

    def forget(self) -> None:
        """Close what is kept; whoever comes next gets a fresh one."""
        while self._kept:
            _close(self._kept.pop()[0])

    async def take(self, begin: sql.SQL | sql.Composed) -> Tx:
        """A connection on which `begin` was done; raises Unavailable after `wait` at the latest."""
        deadline = asyncio.get_running_loop().time() + self._wait
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError as exc:
            raise _unavailable("every connection is in use") from exc
        try:
            return await self._begin(begin, deadline)
        except BaseException:
            self._slots.release()
            raise

    def give(self, conn: Tx) -> None:
        """Take a connection back; it is closed unless it is idle. Never waits, so never cut off."""
        now = asyncio.get_running_loop().time()
        if self._open and conn.pgconn.transaction_status == TransactionStatus.IDLE:
            self._kept.append((conn, now))
        else:
            _close(conn)
        while self._kept and self._kept[0][1] < now - IDLE_SECONDS:
            _close(self._kept.popleft()[0])
        self._slots.release()

    async def _begin(self, begin: sql.SQL | sql.Composed, deadline: float) -> Tx:
        clock = asyncio.get_running_loop().time
        while self._open:
            was_kept = bool(self._kept)
            conn = self._kept.pop()[0] if was_kept else await self._make(deadline)
            patience = max(0.0, deadline - clock()) / (2 if was_kept else 1)
            ends = clock() + patience
            try:
                with bounded(conn, patience):
                    await conn.execute(begin)
                return conn
            except psycopg.OperationalError as exc:
                _close(conn)
                if not was_kept:
                    raise _unavailable(name_of(exc)) from exc
                if clock() >= ends:
                    self.forget()  # they have been without a word for longer than this one
                _log.info("stale connection replaced", extra={"action": "db_reconnect"})
            except BaseException:
                _close(conn)
                raise
        raise _unavailable("closed")

    async def _make(self, deadline: float) -> Tx:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._connect()
        except (psycopg.OperationalError, TimeoutError) as exc:
            raise _unavailable(name_of(exc)) from exc


@contextmanager
def bounded(conn: Tx, seconds: float) -> Iterator[None]:
    """Whatever waits for the server after `seconds` in this block gets an OperationalError.

    TCP keeps faith with a peer that acknowledges and does not answer, such as a stuck proxy. The
    socket is shut rather than the task cancelled: psycopg would ask that server to cancel, too.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _shut, conn)
    try:
        yield
    finally:
        timer.cancel()


def _shut(conn: Tx) -> None:
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(conn.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def _close(conn: Tx) -> None:
    conn.pgconn.finish()  # what `close` does, without an await


def _unavailable(why: str) -> Unavailable:
    _log.warning("no connection", extra={"action": "db_unreachable", "error": why})
    return Unavailable("The database is not reachable.", retry_after=1)


def name_of(exc: Exception) -> str:
    """What a log may say of an error: its SQLSTATE or its class, for its text may hold data."""
    return getattr(exc, "sqlstate", None) or type(exc).__name__
