"""The server under test, its provider and its database's own counters."""

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg
from benchlib.meters import Bench
from benchlib.processes import ROOT, Program, Server, clean_environment
from benchlib.transactions import DATABASE, socket_dsn
from benchlib.wire import Client


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What Postgres has counted for the server's database so far."""

    transactions: int
    blocks: int
    rows: int


class Database:
    """The server's database as its superuser."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def counts(self) -> Counts:
        """Read from another database, so that reading does not count.

        A backend that goes idle reports what it did within 10 s.
        """
        query = (
            "SELECT xact_commit + xact_rollback, blks_read + blks_hit,"
            " tup_returned + tup_fetched FROM pg_stat_database WHERE datname = %s"
        )
        with psycopg.connect(socket_dsn(self._data, "postgres"), autocommit=True) as conn:
            row = conn.execute(query, [DATABASE]).fetchone()
        assert row is not None
        return Counts(transactions=int(row[0]), blocks=int(row[1]), rows=int(row[2]))

    def analyse(self) -> None:
        """Have what is there looked at, as it will have been on a server that is an hour old."""
        with self.connect() as conn:
            conn.autocommit = True
            conn.execute("VACUUM ANALYZE")

    def merge(self) -> None:
        """Have words that wait for it put into the search's index.

        It happens at once for what a hundred turns said: a few would have it all to pay, or none.
        """
        with self.connect() as conn:
            conn.execute("SELECT gin_clean_pending_list('pal.memory_index_keys')")

    def housekeeping(self, word: Literal["on", "off"]) -> None:
        """Let Postgres vacuum by itself or not, in this throwaway cluster."""
        with psycopg.connect(socket_dsn(self._data, "postgres"), autocommit=True) as conn:
            conn.execute(f"ALTER SYSTEM SET autovacuum = {word}".encode())
            conn.execute("SELECT pg_reload_conf()")

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A connection to the server's database, past its row-level security."""
        return psycopg.connect(socket_dsn(self._data, DATABASE))


@contextlib.contextmanager
def _provider() -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="bench-provider-") as folder:
        env = clean_environment() | {"PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "contextbench.provider"]
        program = Program(command, Path(folder) / "log", env)
        try:
            yield program.wait_ready(30)[1], program.pid
        finally:
            program.stop(5)


@contextlib.asynccontextmanager
async def place(**settings: str) -> AsyncIterator[tuple[Bench, Database]]:
    """A server with these variables on a database of its own, which goes away."""
    with _provider() as (url, pid):
        server = Server(
            ["scripts/dev"],
            url,
            "bench",
            {"PAL_PROVIDERS_FAST": "openai:fast", "PAL_EMBEDDINGS": "off", **settings},
        )
        try:
            server.start()
            key = {"Authorization": f"Bearer {server.key}"}
            clients = (Client(url), Client(url.removesuffix("/v1")), Client(server.url, key))
            try:
                yield (
                    Bench(
                        server=server,
                        provider=clients[0],
                        provider_admin=clients[1],
                        provider_pid=pid,
                        client=clients[2],
                    ),
                    Database(server.data),
                )
            finally:
                for client in clients:
                    client.close()
        finally:
            server.remove()


async def asked(bench: Bench) -> int:
    """How many requests the provider has had."""
    return int(str((await bench.provider_stats())["requests"]))
