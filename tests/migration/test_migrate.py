"""Migrations and the bootstrap before them: once, whole or not at all, owned by no superuser."""

import ast
import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from chalicelib import auth
from chalicelib.db import Database
from chalicelib.db.migrate import (
    FOLDER,
    MigrationError,
    bootstrap,
    migrate,
    pending,
    read_migrations,
)
from chalicelib.gateway.postgres import NotReady, embedded, prepare
from tests.support.postgres import Cluster, TestDatabase
from tests.support.waiting import until

ONCE = "CREATE TABLE pal.once (n integer PRIMARY KEY); INSERT INTO pal.once VALUES (1);"
RUN = "import asyncio, pathlib, sys; from chalicelib.db.migrate import migrate; " + (
    "asyncio.run(migrate(sys.argv[1], pathlib.Path(sys.argv[2])))"
)
WORKING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'PgSleep'"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the migrations, to which a test adds."""
    return Path(shutil.copytree(FOLDER, tmp_path / "migrations"))


@pytest.fixture
def bare(postgres: Cluster) -> Iterator[TestDatabase]:
    """A database with nothing in it."""
    made = postgres.create("template1")
    yield made
    postgres.drop(made)


def add(folder: Path, name: str, text: str) -> Path:
    """A migration more in the folder, numbered as the next one."""
    file = folder / f"{len(read_migrations(folder)) + 1:04}_{name}.sql"
    file.write_text(text)
    return file


def owner_of(postgres: Cluster, database: TestDatabase) -> str:
    """`pal_owner`'s way to it: through the pooler if there is one."""
    return postgres.pooled("pal_owner", database.name) if postgres.pooler else database.owner


async def run_five(url: str, folder: Path) -> list[list[str]]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*(migrate(url, folder) for _ in range(5)))


def applied_in(database: TestDatabase) -> list[str]:
    rows = database.rows("SELECT version, name FROM pal.schema_migrations ORDER BY version")
    return [f"{version:04}_{name}" for version, name in rows]


@pytest.mark.parametrize("behind", ["everything", "one"])
def test_five_runs_at_once_apply_each_file_once(
    behind: str, postgres: Cluster, bare: TestDatabase, folder: Path
) -> None:
    """Lost if red: a deployment of several instances, which would collide or apply a file twice."""
    url = owner_of(postgres, bare)
    asyncio.run(bootstrap(bare.master))
    if behind == "one":
        asyncio.run(migrate(url, folder))
    before = applied_in(bare) if behind == "one" else []
    add(folder, "once", ONCE)
    runs = asyncio.run(run_five(url, folder))
    names = [one.full_name for one in read_migrations(folder)]
    assert sorted(name for run in runs for name in run) == names[len(before) :]
    assert applied_in(bare) == names
    assert bare.rows("SELECT n FROM pal.once") == [(1,)]
    assert asyncio.run(migrate(url, folder)) == []


def test_bootstrap_runs_again_and_at_once(bare: TestDatabase) -> None:
    """Lost if red: `scripts/pal` beside a starting `scripts/dev`, and the second start of both."""

    async def at_once() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(bootstrap(bare.master) for _ in range(5)))

    asyncio.run(at_once())
    asyncio.run(at_once())
    assert asyncio.run(migrate(bare.owner)) == [one.full_name for one in read_migrations()]


def test_runs_wait_for_a_long_migration(
    postgres: Cluster, database: TestDatabase, folder: Path
) -> None:
    """Lost if red: the other instances' start, while one is at a migration of some seconds."""
    database.rows("ALTER ROLE pal_owner SET lock_timeout = '200ms'")
    long = add(
        folder,
        "long",
        "CREATE TABLE pal.limits AS SELECT current_setting('lock_timeout') AS lock_timeout;"
        "DO $$ BEGIN WHILE NOT pg_try_advisory_xact_lock(42) LOOP"
        " PERFORM pg_sleep(0.01); END LOOP; END $$;",
    )
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'advisory'"
        " AND now() - query_start > interval '400 milliseconds'"
    )
    # the pooler of the suite has four connections to give
    others = 3 if postgres.pooler else 4

    async def run() -> list[list[str]]:
        runs = asyncio.create_task(run_five(owner_of(postgres, database), folder))
        with psycopg.connect(database.master, autocommit=True) as gate:
            gate.execute("SELECT pg_advisory_lock(42)")
            enough = lambda: runs.done() or database.one(waiting, database.name) == others  # noqa: E731
            await asyncio.to_thread(until, enough)
            gate.execute("SELECT pg_advisory_unlock(42)")
            return await runs

    try:
        runs = asyncio.run(run())
    finally:
        database.rows("ALTER ROLE pal_owner SET lock_timeout = '5s'")
    assert sorted(runs) == [[], [], [], [], [long.stem]]
    # what the migration itself may wait for stays limited: its locks hold up every request
    assert database.one("SELECT lock_timeout FROM pal.limits") == "200ms"


def test_memory_of_before_is_indexed_beside_a_request(
    postgres: Cluster, bare: TestDatabase, folder: Path
) -> None:
    """Lost if red: a deployment that ends in a deadlock; what was said before it, for search."""
    for later in read_migrations(folder)[3:]:
        (folder / f"{later.full_name}.sql").rename(folder.parent / f"{later.full_name}.sql")
    asyncio.run(bootstrap(bare.master))
    asyncio.run(migrate(bare.owner, folder))
    tell = (
        "INSERT INTO memory_events (id, tenant_id, occurred_at, channel, kind, person_id, content)"
        " VALUES (%s::text, pal.tenant(), now(), 'sms', 'message', 'per_1', 'Ann: Hello.')"
    )
    bare.rows("INSERT INTO pal.tenants (id, name) VALUES ('ten_a', 'a'), ('ten_b', 'b')")
    with psycopg.connect(bare.direct) as request:
        for tenant in ("ten_a", "ten_b"):
            request.execute("SELECT pal.enter(%s, '')", (tenant,))
            request.execute(
                "INSERT INTO people (id, tenant_id, name) VALUES ('per_1', pal.tenant(), 'Ann')"
            )
            for number in range(3):
                request.execute(tell, (number,))
            request.commit()

        async def run() -> list[str]:
            request.execute("SELECT pal.enter('ten_a', '')")
            request.execute("SELECT count(*) FROM memory_events")
            upgrade = asyncio.create_task(migrate(owner_of(postgres, bare)))
            oid = bare.one("SELECT oid FROM pg_database WHERE datname = %s", bare.name)
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = %s"
            await asyncio.to_thread(until, lambda: bare.one(waiting, oid))
            request.execute(tell, (3,))
            request.commit()
            return await upgrade

        assert asyncio.run(run())[:2] == ["0004_distillates", "0005_search"]
    rows = bare.rows(
        "SELECT i.tenant_id, count(*), bool_and(i.keys @> ARRAY[pal.word_key(i.tenant_id, 'hello')]"
        " AND NOT i.keys @> ARRAY[pal.word_key(i.tenant_id, 'ann')])"
        " FROM pal.memory_index i GROUP BY 1 ORDER BY 1"
    )
    assert rows == [("ten_a", 4, True), ("ten_b", 3, True)]


def test_killed_run_leaves_nothing_and_the_next_succeeds(
    postgres: Cluster, database: TestDatabase, folder: Path, root: Path
) -> None:
    """Lost if red: the database, after a deployment that was killed in the middle."""
    url = owner_of(postgres, database)
    file = add(folder, "once", "CREATE TABLE pal.half (); SELECT pg_sleep(3600);")
    process = subprocess.Popen([sys.executable, "-c", RUN, url, str(folder)], cwd=root)
    try:
        until(lambda: database.one(WORKING, database.name) == 1)
    finally:
        process.kill()
        process.wait(10)
    file.write_text(ONCE)
    assert asyncio.run(asyncio.wait_for(migrate(url, folder), 30)) == [file.stem]
    assert database.one("SELECT to_regclass('pal.half') IS NULL")
    assert database.one(WORKING, database.name) == 0


def test_failing_migration_leaves_nothing_and_names_itself(
    database: TestDatabase, folder: Path
) -> None:
    """Lost if red: the way back from a migration that was wrong."""
    before = applied_in(database)
    once = add(folder, "once", ONCE)
    wrong = add(folder, "wrong", "CREATE TABLE pal.half (); INSERT INTO pal.once VALUES (1);")
    said = rf"^Migration {wrong.stem} could not be applied: .*once"
    with pytest.raises(MigrationError, match=said):
        asyncio.run(migrate(database.owner, folder))
    assert applied_in(database) == [*before, once.stem]
    assert database.one("SELECT to_regclass('pal.half') IS NULL")
    wrong.write_text("CREATE TABLE pal.half ();")
    assert asyncio.run(migrate(database.owner, folder)) == [wrong.stem]


def test_changed_file_is_refused_by_its_name(database: TestDatabase, folder: Path) -> None:
    """Lost if red: two databases that say they are the same and are not."""
    add(folder, "once", ONCE)
    file = next(folder.glob("0001_*.sql"))
    file.write_text(file.read_text() + "\n-- changed\n")
    with pytest.raises(MigrationError, match=rf"^Migration {file.stem} was changed"):
        asyncio.run(migrate(database.owner, folder))
    assert database.one("SELECT to_regclass('pal.once') IS NULL")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param(["0001_a", "0003_c"], "0003_c stands where 0002", id="gap"),
        pytest.param(["0002_b"], "0002_b stands where 0001", id="no-first"),
        pytest.param(["0001_a", "0001_b"], "0001_b stands where 0002", id="twice"),
        pytest.param(["0001_a", "notes"], r"notes\.sql is not named", id="no-number"),
        pytest.param(["1_a"], r"1_a\.sql is not named", id="short-number"),
        pytest.param(["0001-a"], r"0001-a\.sql is not named", id="hyphen"),
    ],
)
def test_misnumbered_files_are_refused(names: list[str], said: str, tmp_path: Path) -> None:
    """Lost if red: a migration that no database ever gets, or that each gets in another order."""
    for name in names:
        (tmp_path / f"{name}.sql").write_text("SELECT 1;")
    with pytest.raises(MigrationError, match=said):
        read_migrations(tmp_path)


def test_older_code_goes_on_with_a_newer_database(database: TestDatabase, folder: Path) -> None:
    """Lost if red: the old instances, which still start while the new ones come."""
    add(folder, "once", ONCE)
    asyncio.run(migrate(database.owner, folder))
    assert asyncio.run(migrate(database.owner)) == []
    assert asyncio.run(pending(database.app)) == []


def test_pending_goes_by_number(bare: TestDatabase) -> None:
    """Lost if red: a gateway that starts on a database it does not fit, or refuses one it fits."""
    names = [one.full_name for one in read_migrations()]
    assert asyncio.run(pending(bare.master)) == names
    asyncio.run(bootstrap(bare.master))
    assert asyncio.run(pending(bare.direct)) == names
    asyncio.run(migrate(bare.owner))
    assert asyncio.run(pending(bare.direct)) == []
    bare.rows("UPDATE pal.schema_migrations SET name = 'renamed'")
    assert asyncio.run(pending(bare.direct)) == []


@pytest.mark.parametrize("login", ["master", "direct"])
def test_only_the_owner_migrates(login: str, database: TestDatabase, folder: Path) -> None:
    """Lost if red: policies, which a superuser's tables and functions are free of."""
    add(folder, "once", ONCE)
    with pytest.raises(MigrationError, match="as pal_owner, not as p"):
        asyncio.run(migrate(getattr(database, login), folder))
    assert database.one("SELECT to_regclass('pal.once') IS NULL")


def test_database_without_bootstrap_is_told_what_it_needs(bare: TestDatabase) -> None:
    """Lost if red: a person who would be shown a stack trace in its place."""
    with pytest.raises(MigrationError, match="no schema pal yet: run"):
        asyncio.run(migrate(bare.owner))


def test_nothing_is_owned_by_a_superuser(database: TestDatabase) -> None:
    """Lost if red: isolation on a cluster whose master is no superuser, or everywhere."""
    owned = database.rows("""
        SELECT r.rolname, r.rolsuper, o.what FROM pg_roles r JOIN (
            SELECT relowner AS owner, relname::text AS what FROM pg_class
            WHERE relnamespace = 'pal'::regnamespace
            UNION ALL SELECT proowner, proname FROM pg_proc
            WHERE pronamespace = 'pal'::regnamespace
            UNION ALL SELECT typowner, typname FROM pg_type
            WHERE typnamespace = 'pal'::regnamespace
            UNION ALL SELECT nspowner, nspname FROM pg_namespace WHERE nspname = 'pal'
        ) o ON o.owner = r.oid
    """)
    assert len(owned) > 20
    assert [one for one in owned if one[1] or not one[0].startswith("pal_")] == []
    roles = database.rows(
        "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole, rolcanlogin FROM pg_roles"
        " WHERE starts_with(rolname, 'pal_') ORDER BY rolname"
    )
    assert roles == [
        ("pal_app", False, False, False, True),
        ("pal_owner", False, False, False, True),
        ("pal_search", False, False, False, False),
        ("pal_system", False, False, False, False),
    ]


def test_definer_functions_are_safe_to_call(database: TestDatabase) -> None:
    """Lost if red: every tenant's rows, to whoever shadows a name or may call what is not his."""
    functions = database.rows("""
        SELECT p.proname, pg_get_userbyid(p.proowner), p.prosecdef, p.proconfig,
               has_function_privilege('public', p.oid, 'EXECUTE')
        FROM pg_proc p WHERE p.pronamespace = 'pal'::regnamespace
    """)
    definers = [one for one in functions if one[2]]
    assert {one[0] for one in definers} >= {"authenticate", "due_sessions", "purge"}
    # extensions are in public, where nobody but its owner makes anything
    assert database.one("SELECT has_schema_privilege('public', 'public', 'CREATE')") is False
    paths = {"pal_system": "pal, pg_temp", "pal_search": "pal, public, pg_temp"}
    for name, owner, _, config, public in definers:
        assert owner in paths, name
        assert [one for one in config if one.startswith("search_path=")] == [
            f"search_path={paths[owner]}"
        ], name
        assert not public, name
    assert {owner for _, owner, definer, _, _ in functions if not definer} == {"pal_owner"}


def test_owner_has_no_share_in_the_policies_of_system(database: TestDatabase) -> None:
    """Lost if red: every tenant's rows, to a migration or a command that forgot to enter one."""
    shares = "SELECT pg_has_role(%s, %s, 'USAGE')"
    assert database.one(shares, "pal_owner", "pal_system") is False
    assert database.one(shares, "pal_app", "pal_system") is False
    assert database.one(shares, "pal_owner", "pal_search") is False
    assert database.one(shares, "pal_app", "pal_search") is False
    assert database.one(shares, "pal_app", "pal_owner") is False
    to_system = "SELECT count(*) FROM pg_policies WHERE schemaname = 'pal' AND 'pal_system' = ANY"
    assert int(str(database.one(to_system + " (roles)"))) > 10

    async def fill() -> str:
        db = Database(database.owner, size=1)
        await db.open()
        try:
            tenant_id = await auth.create_tenant(db, name="one")
            await auth.create_key(db, tenant_id=tenant_id, name="key", scopes=["admin"])
            return tenant_id
        finally:
            await db.close()

    tenant_id = asyncio.run(fill())
    assert database.one("SELECT count(*) FROM pal.api_keys") == 1
    with psycopg.connect(database.owner, autocommit=True) as conn:
        for table in ("tenants", "api_keys", "salt"):
            assert conn.execute(f"SELECT count(*) FROM pal.{table}").fetchone() == (0,)
        with conn.transaction():
            conn.execute("SELECT pal.enter(%s, '')", (tenant_id,))
            assert conn.execute("SELECT count(*) FROM pal.api_keys").fetchone() == (1,)
            assert conn.execute("SELECT count(*) FROM pal.salt").fetchone() == (0,)


@pytest.fixture(scope="module")
def rds() -> Iterator[str]:
    """The URL of a database whose master, as on RDS, owns it and may make roles: no superuser.

    On a server of its own: the roles of the suite's were made by a superuser.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder,
        embedded(Path(folder)) as url,
    ):
        master = url.replace("postgres:@", "rds_master:a%2Fb@")
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE ROLE rds_master LOGIN CREATEROLE CREATEDB PASSWORD 'a/b'")
        with psycopg.connect(master.replace("/palimpsest?", "/postgres?"), autocommit=True) as conn:
            conn.execute("CREATE DATABASE app")
        yield master.replace("/palimpsest?", "/app?")


def test_master_without_superuser_prepares_its_database(rds: str) -> None:
    """Lost if red: RDS, whose master is no superuser, and a second start anywhere."""

    async def at_once() -> list[str]:
        async with asyncio.timeout(60):
            logins = await asyncio.gather(*(prepare(rds) for _ in range(4)))
        return [name for one in logins for name in one.applied]

    assert sorted(asyncio.run(at_once())) == [one.full_name for one in read_migrations()]
    logins = asyncio.run(prepare(rds))
    assert logins.owner is not None
    assert logins.applied == ()
    assert "a/b" not in logins.app
    assert "a%2Fb" not in logins.app
    assert "pal_app" not in repr(logins)  # it holds passwords

    async def use() -> str:
        db = Database(logins.owner or "", size=1)
        await db.open()
        try:
            return await auth.create_tenant(db, name="first")
        finally:
            await db.close()

    tenant_id = asyncio.run(use())
    with psycopg.connect(logins.app, autocommit=True) as conn:
        assert conn.execute("SELECT count(*) FROM tenants").fetchone() == (0,)
        with conn.transaction():
            conn.execute("SELECT pal.enter(%s, '')", (tenant_id,))
            assert conn.execute("SELECT id FROM tenants").fetchall() == [(tenant_id,)]
    with psycopg.connect(rds, autocommit=True) as conn:
        assert conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        # the master may act as the owner, and sees no more than the owner does
        assert conn.execute("SELECT count(*) FROM pal.tenants").fetchone() == (0,)


def test_master_that_may_not_says_so(rds: str) -> None:
    """Lost if red: a person who would be shown a stack trace in its place."""
    with psycopg.connect(rds, autocommit=True) as conn:
        conn.execute("CREATE ROLE maker LOGIN CREATEROLE PASSWORD 'x'")
    with pytest.raises(NotReady, match=r"^The database could not be prepared: .+\.$"):
        asyncio.run(prepare(rds.replace("rds_master:a%2Fb@", "maker:x@")))


def test_request_handlers_never_migrate() -> None:
    """Lost if red: cold starts, each of which would take the migrations' lock."""
    rooms = FOLDER.parents[1]
    todo = [path for room in ("api", "stream") for path in (rooms / room).glob("*.py")]
    found: set[str] = set()
    while todo:
        imported = {
            name
            for node in ast.walk(ast.parse(todo.pop().read_text()))
            for name in names_imported(node)
        }
        # the API's description is made from the whole `app`, which has its functions' jobs as well
        for name in {one for one in imported - found if one.startswith("chalicelib.")}:
            path = rooms.parent.joinpath(*name.split("."))
            files = [path.with_suffix(".py"), path / "__init__.py"]
            todo += [file for file in files if file.exists()]
            found.add(name)
    assert {"chalicelib.db.pool", "chalicelib.services"} <= found
    assert "chalicelib.db.migrate" not in found


def names_imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        # `from package import module` imports the module as well
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
