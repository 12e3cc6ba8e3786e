"""Migrations beside traffic: they add without a scan, give up instead of waiting, and hold nothing.

The first seven were there before anyone had a database.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from chalicelib.db import Login, Tx
from chalicelib.db.lock_watch import LockedTooLong, no_long_locks
from chalicelib.db.migrate import (
    FOLDER,
    MigrationError,
    bootstrap,
    migrate,
    pending,
    read_migrations,
)
from tests.migration.ddl import faults
from tests.support.postgres import Cluster, TestDatabase
from tests.support.waiting import until

FIRST = 7
LOOKS: LiteralString = (
    "SELECT query_start FROM pg_stat_activity WHERE datname = %s AND query LIKE %s"
)


@contextmanager
def suppress_lock_timeout() -> Iterator[None]:
    """Go on after a migration that has given up; any other failure is one."""
    try:
        yield
    except MigrationError as exc:
        if "lock timeout" not in str(exc):
            raise


@pytest.fixture
def before(postgres: Cluster, tmp_path: Path) -> Iterator[TestDatabase]:
    """A database as it was when the rule began."""
    made = postgres.create("template1")
    folder = tmp_path / "first"
    folder.mkdir()
    for one in read_migrations()[:FIRST]:
        shutil.copy(FOLDER / f"{one.full_name}.sql", folder)
    asyncio.run(bootstrap(made.master))
    asyncio.run(migrate(made.owner, folder))
    yield made
    postgres.drop(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE INDEX x ON sessions (summary)", "builds x on a table in use"),
        ("ALTER TABLE sessions ALTER summary TYPE varchar(9)", "rewrites sessions"),
        ("ALTER TABLE sessions ALTER summary SET NOT NULL", "scans sessions.summary for nulls"),
        ("ALTER TABLE sessions ADD n serial", "rewrites sessions"),
        ("ALTER TABLE sessions ADD CONSTRAINT c CHECK (id <> '')", "checks c on a table in use"),
        ("ALTER TABLE sessions DROP summary", "drops sessions.summary"),
        ("ALTER TABLE sessions RENAME summary TO s", "renames sessions.summary"),
        ("ALTER TABLE sessions RENAME TO s", "renames sessions"),
        ("DROP TABLE open_streams", "drops open_streams"),
    ],
)
def test_check_finds_what_holds_others_up(
    text: LiteralString, said: str, database: TestDatabase
) -> None:
    """Lost if red: minutes of traffic, to the first migration that no one looked at closely."""
    with psycopg.connect(database.owner) as conn:
        assert said in faults(conn, text)


def test_check_lets_pass_what_only_adds(database: TestDatabase) -> None:
    """Lost if red: the rule, for a check that cries wolf is soon passed by."""
    adds: LiteralString = """
        ALTER TABLE sessions ADD colour text, ADD size integer NOT NULL DEFAULT 0;
        ALTER TABLE sessions ADD CONSTRAINT sized CHECK (size >= 0) NOT VALID;
        CREATE TABLE more (id text PRIMARY KEY, tenant_id text REFERENCES tenants (id));
        CREATE INDEX more_idx ON more (tenant_id);
    """
    takes_away: LiteralString = (
        "-- contract: nobody reads it since 0007\nALTER TABLE sessions DROP summary;"
    )
    with psycopg.connect(database.owner) as conn:
        assert faults(conn, adds) == []
        assert faults(conn, takes_away) == []


def test_new_migrations_only_add(before: TestDatabase) -> None:
    """Lost if red: the requests of the version that still runs, or its seconds behind a lock."""
    with psycopg.connect(before.owner, autocommit=True) as conn:
        for one in read_migrations()[FIRST:]:
            assert faults(conn, one.text) == [], one.full_name
            conn.execute(one.text)


def test_new_migrations_give_up_beside_a_long_transaction(before: TestDatabase) -> None:
    """Lost if red: every request, queued behind a migration that is queued behind a report."""
    wanted = [one.full_name for one in read_migrations()[FIRST:]]
    limit = sql.SQL("ALTER ROLE pal_owner IN DATABASE {} SET lock_timeout = '100ms'")
    with psycopg.connect(before.master, autocommit=True) as conn:
        conn.execute(limit.format(sql.Identifier(before.name)))
    tables = before.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pal'::regnamespace"
        " AND relkind = 'r' AND relname <> 'schema_migrations'"
    )
    with ExitStack() as busy:
        writer = busy.enter_context(psycopg.connect(before.master))
        for (name,) in tables:
            writer.execute(
                sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.Identifier("pal", name))
            )
        with suppress_lock_timeout():
            assert asyncio.run(asyncio.wait_for(migrate(before.owner), 20)) == wanted
        writer.rollback()
    left = asyncio.run(pending(before.direct))
    assert asyncio.run(migrate(before.owner)) == left
    assert asyncio.run(pending(before.direct)) == []


def test_migration_that_keeps_a_table_is_cancelled(database: TestDatabase, tmp_path: Path) -> None:
    """Lost if red: all of a table's readers, for as long as a rewrite takes."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "migrations"))
    name = f"{len(read_migrations(folder)) + 1:04}_slow"
    file = folder / f"{name}.sql"
    slow = "CREATE TABLE pal.half (); ALTER TABLE pal.{} ADD colour text; SELECT pg_sleep(3600);"
    file.write_text(slow.format("sessions"))
    with pytest.raises(MigrationError, match=f"^Migration {name} .* kept sessions from others"):
        asyncio.run(asyncio.wait_for(migrate(database.owner, folder, longest_lock=0.2), 20))
    assert database.one("SELECT to_regclass('pal.half') IS NULL")
    assert database.one("SELECT count(*) FROM pal.sessions") == 0

    # what only it can see, it may keep for as long as it likes
    gate = "DO $$ BEGIN WHILE NOT pg_try_advisory_xact_lock(42) LOOP PERFORM pg_sleep(0.01);"
    file.write_text(f"CREATE TABLE pal.half (); {gate} END LOOP; END $$;")

    seen: set[object] = set()

    def has_looked() -> bool:
        """Whether the second connection has looked at the locks a few times."""
        seen.update(database.rows(LOOKS, database.name, "%FROM pg_locks l JOIN%"))
        return len(seen) > 3

    async def run() -> list[str]:
        with psycopg.connect(database.master, autocommit=True) as closed:
            closed.execute("SELECT pg_advisory_lock(42)")
            running = asyncio.create_task(migrate(database.owner, folder, longest_lock=0.0))
            await asyncio.to_thread(until, lambda: running.done() or has_looked())
            closed.execute("SELECT pg_advisory_unlock(42)")
            return await running

    assert asyncio.run(run()) == [name]


class Late:
    """A login that the server has no room for at first, and that then loses its connection."""

    def __init__(self, url: str) -> None:
        self._login, self.tried = Login(url), 0

    async def connect(self) -> Tx:
        self.tried += 1
        if self.tried == 1:
            raise psycopg.OperationalError("sorry, too many clients already")
        conn = await self._login.connect()
        if self.tried == 2:
            await conn.close()
        return conn


def test_locks_are_watched_by_whatever_connection_there_is(database: TestDatabase) -> None:
    """Lost if red: the same, where the server was full when the migration began."""
    login = Late(database.owner)

    async def run() -> None:
        async with (
            await Login(database.owner).connect() as conn,
            conn.transaction(),
            no_long_locks(login, conn, longest=0.2),  # type: ignore[arg-type]
        ):
            await conn.execute("LOCK TABLE pal.sessions; SELECT pg_sleep(3600)")

    with pytest.raises(LockedTooLong, match=r"^sessions$"):
        asyncio.run(asyncio.wait_for(run(), 20))
    assert login.tried == 3
