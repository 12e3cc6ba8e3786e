"""The database that the figures are taken on: embedded, migrated, in a folder that goes away."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg

from chalicelib.auth import Principal
from chalicelib.config import Secret, Settings
from chalicelib.db import Database
from chalicelib.embeddings import make_embedder
from chalicelib.gateway.postgres import Logins, embedded, prepare
from chalicelib.memory.embedder import Indexer
from chalicelib.memory.search import Search
from chalicelib.memory.timeline import Timeline


class Place:
    """One database with the parts of the memory, as pal_app. `master` sees everything."""

    def __init__(self, logins: Logins, master: str, *, embeddings: str) -> None:
        settings = Settings(database_url=Secret(logins.app), embeddings=embeddings)
        self.db = Database(logins.app)
        self.embedder = make_embedder(settings)
        self.indexer = None if self.embedder is None else Indexer(self.db, self.embedder)
        self.timeline = Timeline(self.db, self.indexer)
        self.search = Search(self.db, self.embedder)
        self._master = master

    def execute(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run SQL as the master."""
        with psycopg.connect(self._master, autocommit=True) as conn:
            cur = conn.execute(statement.encode(), values or None)
            return cur.fetchall() if cur.description else []

    def tenant_id(self, number: int) -> str:
        """The id of a tenant."""
        return f"ten_{number:026}"

    def tenant(self, number: int) -> Principal:
        """A tenant, made if need be."""
        name = self.tenant_id(number)
        self.execute(
            "INSERT INTO pal.tenants (id, name) VALUES (%s, %s) ON CONFLICT DO NOTHING", name, name
        )
        return Principal(tenant_id=name, key_id="key_bench", scopes=frozenset({"memory"}))


@contextmanager
def database(keep: Path | None) -> Iterator[tuple[Logins, str]]:
    """An embedded server, in `keep` if that is given, else in a folder that goes away."""
    with (
        tempfile.TemporaryDirectory(prefix="pal-bench-") as folder,
        embedded(keep or Path(folder)) as master,
    ):
        yield asyncio.run(prepare(master)), master


@asynccontextmanager
async def place(logins: Logins, master: str, *, embeddings: str) -> AsyncIterator[Place]:
    """The parts, connected."""
    made = Place(logins, master, embeddings=embeddings)
    await made.db.open()
    try:
        yield made
    finally:
        await made.db.close()
