"""What depends on the server: its extensions, wherever they lie, and vectors where it has them."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from chalicelib.db.migrate import bootstrap, migrate, pending
from chalicelib.gateway.postgres import embedded, prepare
from tests.support.postgres import OLDEST, Cluster, TestDatabase, oldest
from tests.support.skipping import skip_except_in_ci

TABLES = {"memory_vectors", "memory_distillate_vectors", "memory_embedded"}
NEAR: LiteralString = (
    "SELECT '[1,0]'::halfvec <=> '[0,1]'::halfvec, similarity('ann', 'anne') > 0, unaccent('é')"
)


@pytest.fixture
def bare(postgres: Cluster) -> Iterator[TestDatabase]:
    """A database with nothing in it."""
    made = postgres.create("template1")
    yield made
    postgres.drop(made)


def tables_in(url: str) -> set[str]:
    with psycopg.connect(url) as conn:
        rows = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'pal'::regnamespace"
            " AND relkind = 'r' AND relname = ANY(%s)",
            (sorted(TABLES),),
        )
        return {row[0] for row in rows}


def extensions_in(database: TestDatabase) -> dict[str, str]:
    rows = database.rows(
        "SELECT extname, extnamespace::regnamespace::text FROM pg_extension"
        " WHERE extname <> 'plpgsql'"
    )
    return dict(rows)


def set_up(database: TestDatabase) -> None:
    asyncio.run(bootstrap(database.master))
    asyncio.run(migrate(database.owner))


def test_server_that_has_vectors_gets_them(bare: TestDatabase) -> None:
    """Lost if red: search by meaning, everywhere."""
    set_up(bare)
    assert tables_in(bare.master) == TABLES
    assert extensions_in(bare) == {"pg_trgm": "public", "unaccent": "public", "vector": "public"}
    for login in (bare.direct, bare.owner):
        with psycopg.connect(login) as conn:
            assert conn.execute(NEAR).fetchone() == (1.0, True, "e")


@pytest.mark.parametrize("schema", ["public", "elsewhere", "Else Where"])
def test_extension_that_is_there_stays_where_it_is(bare: TestDatabase, schema: str) -> None:
    """Lost if red: a database whose extensions someone else has made, and uses."""
    with psycopg.connect(bare.master, autocommit=True) as conn:
        conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')  # type: ignore[arg-type]
        conn.execute(f'CREATE EXTENSION vector SCHEMA "{schema}"')  # type: ignore[arg-type]
    for _ in range(2):
        set_up(bare)
        assert tables_in(bare.master) == TABLES
        assert extensions_in(bare)["vector"].strip('"') == schema
        for login in (bare.direct, bare.owner):
            with psycopg.connect(login) as conn:
                assert conn.execute(NEAR).fetchone() == (1.0, True, "e")
    # back where it is looked for anyway, nothing of the detour is left
    with psycopg.connect(bare.master, autocommit=True) as conn:
        conn.execute("ALTER EXTENSION vector SET SCHEMA public")
    set_up(bare)
    with psycopg.connect(bare.direct) as conn:
        assert conn.execute("SHOW search_path").fetchone() == ("pal, public",)
        assert conn.execute(NEAR).fetchone() == (1.0, True, "e")


def test_vectors_come_with_the_extension_whenever_it_comes(bare: TestDatabase) -> None:
    """Lost if red: vectors, on a server that was brought up to date after the first start."""
    set_up(bare)
    with psycopg.connect(bare.master, autocommit=True) as conn:
        conn.execute("DROP TABLE pal.memory_vectors, pal.memory_distillate_vectors")
        conn.execute("DROP TABLE pal.memory_embedded CASCADE")
        conn.execute("DROP FUNCTION pal.tenants_to_embed")
        conn.execute("DROP POLICY system_look ON pal.memory_distillates")
        conn.execute("DROP EXTENSION vector")
    assert asyncio.run(migrate(bare.owner)) == []
    assert tables_in(bare.master) == set()
    assert asyncio.run(pending(bare.direct)) == []
    set_up(bare)
    assert tables_in(bare.master) == TABLES


def test_five_runs_at_once_make_them_once(bare: TestDatabase) -> None:
    """Lost if red: a deployment of several instances."""

    async def at_once() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(bootstrap(bare.master) for _ in range(5)))
            await asyncio.gather(*(migrate(bare.owner) for _ in range(5)))

    asyncio.run(at_once())
    assert tables_in(bare.master) == TABLES


def test_another_run_waits_for_no_request(database: TestDatabase) -> None:
    """Lost if red: a start beside a long search or ingest, or those beside a start."""
    with psycopg.connect(database.master) as busy:
        for table in sorted(TABLES | {"memory_events", "memory_distillates"}):
            busy.execute(f"LOCK TABLE pal.{table} IN SHARE MODE")  # type: ignore[arg-type]
        assert asyncio.run(asyncio.wait_for(migrate(database.owner), 3)) == []


def test_master_who_may_not_install_them_does_without() -> None:
    """Lost if red: a start, on every server whose master is no superuser and no RDS's."""
    with (
        tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder,
        embedded(Path(folder)) as url,
    ):
        master = url.replace("postgres:@", "maker:x@")
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE ROLE maker LOGIN CREATEROLE CREATEDB PASSWORD 'x'")
            conn.execute("CREATE DATABASE app OWNER maker")
        master = master.replace("/palimpsest?", "/app?")
        logins = asyncio.run(prepare(master))
        assert tables_in(logins.app) == set()
        assert asyncio.run(pending(logins.app)) == []
        # who may, does it for them once, and that is all there is to do
        with psycopg.connect(url.replace("/palimpsest?", "/app?"), autocommit=True) as conn:
            conn.execute("CREATE EXTENSION vector")
        logins = asyncio.run(prepare(master))
        assert tables_in(logins.app) == TABLES
        with psycopg.connect(logins.app) as conn:
            assert conn.execute(NEAR).fetchone() == (1.0, True, "e")


def test_server_without_vectors_does_without() -> None:
    """Lost if red: the oldest Postgres that is supported, as Debian has it."""
    if OLDEST is None:
        skip_except_in_ci("Postgres 15 is missing")
    with (
        tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder,
        oldest(Path(folder)) as url,
    ):
        for _ in range(2):
            logins = asyncio.run(prepare(url))
            assert asyncio.run(pending(logins.app)) == []
        assert tables_in(url) == set()
        with psycopg.connect(logins.app) as conn:
            # what comes with every Postgres is there
            row = conn.execute("SELECT similarity('ann', 'anne') > 0, unaccent('é')").fetchone()
            assert row == (True, "e")
