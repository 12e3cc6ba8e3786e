"""One tenant's rows from another's, by Postgres itself: every table there is, every login."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from chalicelib.config import Secret
from chalicelib.db import Database, Tx
from chalicelib.memory.schedule import fill_index
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import EventStream
from tests.support.postgres import TestDatabase
from tests.support.sealing import plant
from tests.support.stack import Stack
from tests.support.waiting import be_cancelled_at_work

LOGINS = ["app", "owner"]
GATED = {"kind": "builtin", "name": "current_time", "approval": "always"}
VAULT_KEY = Secret("a2V5IG9mIDMyIGJ5dGVzLCBmb3IgdGhlIHRlc3RzISE=")


@pytest.fixture
def filled(make_stack: Callable[..., Stack], provider: FakeOpenAI) -> Iterator[Stack]:
    """Two tenants that have used everything there is, each with a stream that is still open."""
    stack = make_stack(streams_per_key=5, vault_key=VAULT_KEY, memory_distill=True)
    streams = [use_everything(stack, key, provider) for key in (stack.key, stack.other_key)]
    assert stack.node.services.indexer is not None
    stack.node.run(fill_index(stack.node.services.indexer))
    yield stack
    for stream in streams:
        stream.close()


def use_everything(stack: Stack, key: str, provider: FakeOpenAI) -> EventStream:
    http = stack.http(key)
    once = {"Idempotency-Key": "the same for both"}
    keys = {"providers": {"openai": {"apiKey": "sk-of-its-own"}}}
    assert http.call("PUT", "/v1/admin/providers", keys).status == 200
    assert http.call("POST", "/v1/agents", {"name": "guide", "tools": [GATED]}).status == 201
    new = {"agentName": "guide", "userId": "ann"}
    session = http.call("POST", "/v1/sessions", new, headers=once).json["id"]
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    stream.read_until("connected")
    provider.script(Reply(tool_calls=[Call("current_time", {})]))
    assert http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hi"}).status == 202
    assert stream.read_until("message_completed")[-1].data["finishReason"] == "awaiting_approval"
    assert http.call("POST", "/v1/stream-tokens", {"sessionId": session}).status == 201
    person = {"channel": "user", "handle": "ann", "name": "Ann"}
    said = {"channel": "sms", "kind": "message", "content": "hi", "person": person}
    batch = {"events": [{**said, "occurredAt": "2026-01-01T00:00:00Z"}]}
    assert http.call("POST", "/v1/memory/events", batch).status == 200
    remember = "/v1/memory/remember"
    for content in ("Likes the window.", "Likes the aisle.", "Likes tea."):
        fact = {"content": content, "topic": "tea" if "tea" in content else "seat"}
        kept = http.call("POST", remember, fact)
        assert kept.status == 201
    assert http.call("DELETE", f"/v1/memory/distillates/{kept.json['id']}").status == 204
    assert http.call("POST", "/v1/memory/distill").json["enabled"] is True
    asking = {"form": {"stated": "approve"}}
    assert http.call("PUT", "/v1/memory/policy", asking).status == 200
    said |= {"content": "I live in Oslo.", "occurredAt": "2026-01-02T00:00:00Z"}
    batch = {"events": [said]}
    assert http.call("POST", "/v1/memory/events", batch).status == 200
    read = {"topic": "home", "content": "Lives in Oslo.", "confidence": 0.9}
    provider.script(Reply(pieces=[json.dumps({"distillates": [read]})]))
    assert http.call("POST", "/v1/memory/distill").json["found"] == 0
    assert len(http.call("GET", "/v1/memory/candidates").json["candidates"]) == 1
    # a round is there only while its turn runs, so this one stands for a turn that was cut
    stack.database.rows(
        "INSERT INTO pal.turn_rounds (turn_id, round, tenant_id, session_id, content, provider,"
        " model) SELECT id, 9, tenant_id, session_id, '', '', '' FROM pal.turns"
        " WHERE session_id = %s",
        session,
    )
    # no VM is started here, so this row stands for one that could not be ended yet
    stack.database.rows(
        "INSERT INTO pal.session_vms (id, tenant_id, session_id, driver, state, reason)"
        " SELECT 'vm_' || id, tenant_id, id, 'other', 'ending', 'closed' FROM pal.sessions"
        " WHERE id = %s",
        session,
    )
    # what came of the session, and its state
    stack.node.run(stack.node.services.engine.wait_idle())
    if not stack.database.one(
        "SELECT count(*) FROM pal.session_nodes WHERE session_id = %s", session
    ):
        plant(stack, session)
    assert http.call("PUT", f"/v1/sessions/{session}/pins", {"pins": ["x"]}).status == 200
    assert http.call("POST", f"/v1/sessions/{session}/end").json["promoted"] > 0
    return stream


def tables(database: TestDatabase) -> dict[str, str | None]:
    """Every table of the schema, with the column that tells its rows' tenant if it has one."""
    found = database.rows("""
        SELECT c.relname, (
            SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid
              AND a.attname = CASE c.relname WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END)
        FROM pg_class c
        WHERE c.relnamespace = 'pal'::regnamespace AND c.relkind IN ('r', 'p', 'm', 'f')
          AND c.relname <> 'schema_migrations'
    """)
    assert len(found) > 15
    return dict(found)


def connect(database: TestDatabase, login: str) -> psycopg.Connection:
    return psycopg.connect(getattr(database, login), autocommit=True, prepare_threshold=None)


def enter(conn: psycopg.Connection, tenant: str) -> None:
    conn.execute("SELECT pal.enter(%s, '')", (tenant,))


def rows_seen(conn: psycopg.Connection, table: str, column: str | None) -> set[str]:
    """Whose rows this connection sees in the table; nobody's if it may not look."""
    what = sql.Identifier(column) if column else sql.Literal("someone")
    query = sql.SQL("SELECT {} FROM pal.{}").format(what, sql.Identifier(table))
    try:
        with conn.transaction():
            return {str(owner) for (owner,) in conn.execute(query)}
    except psycopg.errors.InsufficientPrivilege:
        return set()


def attempt(conn: psycopg.Connection, query: sql.Composed, *values: object) -> int | None:
    """How many rows a statement changed, None if it was refused for want of rights."""
    try:
        with conn.transaction():
            return conn.execute(query, values).rowcount
    except psycopg.errors.InsufficientPrivilege:
        return None


def test_every_table_forces_row_level_security(database: TestDatabase) -> None:
    """Lost if red: every tenant's rows of a table that was forgotten."""
    open_tables = database.rows("""
        SELECT relname FROM pg_class
        WHERE relnamespace = 'pal'::regnamespace AND relkind IN ('r', 'p', 'm', 'f')
          AND relname <> 'schema_migrations' AND NOT (relrowsecurity AND relforcerowsecurity)
    """)
    assert open_tables == []


def test_references_stay_within_a_tenant(database: TestDatabase) -> None:
    """Lost if red: a row of one tenant that hangs on another's: policies bind no foreign keys."""
    with_tenant = {name for name, column in tables(database).items() if column == "tenant_id"}
    keys = database.rows("""
        SELECT conrelid::regclass::text, confrelid::regclass::text, conkey[1] = (
                   SELECT attnum FROM pg_attribute WHERE attrelid = conrelid
                     AND attname = 'tenant_id')
               AND confkey[1] = (
                   SELECT attnum FROM pg_attribute WHERE attrelid = confrelid
                     AND attname = 'tenant_id')
        FROM pg_constraint WHERE contype = 'f' AND connamespace = 'pal'::regnamespace
    """)
    within = [
        one
        for one in keys
        if {one[0].removeprefix("pal."), one[1].removeprefix("pal.")} <= with_tenant
    ]
    assert len(within) >= 6
    assert [one for one in within if not one[2]] == []


@pytest.mark.parametrize("login", LOGINS)
def test_without_a_tenant_no_row_is_seen(login: str, filled: Stack) -> None:
    """Lost if red: every tenant's rows, to the first line of code that forgets to enter one."""
    found = tables(filled.database)
    with connect(filled.database, "master") as everything:
        for table, column in found.items():
            owners = {filled.tenant, filled.other_tenant} if column else {"someone"}
            # a table that stays empty here proves nothing: have `use_everything` fill it
            assert rows_seen(everything, table, column) == owners, table
    with connect(filled.database, login) as conn:
        assert {table: rows_seen(conn, table, column) for table, column in found.items()} == {
            table: set() for table in found
        }


@pytest.mark.parametrize("login", LOGINS)
def test_with_a_tenant_only_its_rows_are_seen(login: str, filled: Stack) -> None:
    """Lost if red: what one customer said, to another."""
    found = tables(filled.database)
    for tenant in (filled.tenant, filled.other_tenant):
        with connect(filled.database, login) as conn, conn.transaction():
            enter(conn, tenant)
            for table, column in found.items():
                assert rows_seen(conn, table, column) == ({tenant} if column else set()), table


@pytest.mark.parametrize("login", LOGINS)
def test_no_row_of_another_tenant_can_be_written(login: str, filled: Stack) -> None:
    """Lost if red: what one customer has, to another's writes."""
    own, other = filled.tenant, filled.other_tenant
    found = {name: column for name, column in tables(filled.database).items() if column}
    before = {table: whole(filled.database, table) for table in found}
    for table, column in found.items():
        names: dict[str, sql.Composable] = {
            "table": sql.Identifier(table),
            "column": sql.Identifier(column),
        }
        touch = sql.SQL("UPDATE pal.{table} SET {column} = {column} WHERE {column} = %s")
        delete = sql.SQL("DELETE FROM pal.{table} WHERE {column} = %s")
        move = sql.SQL("UPDATE pal.{table} SET {column} = %s WHERE {column} = %s")
        names["columns"] = columns_of(filled.database, table)
        insert = sql.SQL(
            "INSERT INTO pal.{table} ({columns})"
            " SELECT {columns} FROM json_populate_record(NULL::pal.{table}, %s)"
        )
        theirs = next(row for row in before[table] if row[column] == other)
        with connect(filled.database, login) as conn, conn.transaction(force_rollback=True):
            enter(conn, own)
            assert not attempt(conn, touch.format(**names), other), table
            assert not attempt(conn, delete.format(**names), other), table
            assert attempt(conn, move.format(**names), other, own) is None, table
            assert attempt(conn, insert.format(**names), json.dumps(theirs)) is None, table
            if table == "messages":
                hung = json.dumps({**theirs, "id": "msg_new", "tenant_id": own})
                with pytest.raises(psycopg.errors.ForeignKeyViolation):
                    attempt(conn, insert.format(**names), hung)
    assert {table: whole(filled.database, table) for table in found} == before


def columns_of(database: TestDatabase, table: str) -> sql.Composed:
    """The columns of a table that can be written."""
    rows = database.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = ('pal.' || %s)::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        table,
    )
    return sql.SQL(", ").join(sql.Identifier(row[0]) for row in rows)


def whole(database: TestDatabase, table: str) -> list[dict[str, object]]:
    query = sql.SQL("SELECT to_json(t) FROM pal.{} t ORDER BY t::text")
    with psycopg.connect(database.master, autocommit=True) as conn:
        return [row for (row,) in conn.execute(query.format(sql.Identifier(table)))]


@pytest.mark.parametrize("login", LOGINS)
def test_tenant_ends_with_its_transaction(login: str, filled: Stack) -> None:
    """Lost if red: one customer's rows, to whoever gets the connection next."""
    count: LiteralString = "SELECT count(*) FROM pal.sessions"
    endings: list[LiteralString] = ["COMMIT", "ROLLBACK"]
    with connect(filled.database, login) as conn:
        for ending in endings:
            conn.execute("BEGIN")
            enter(conn, filled.tenant)
            assert conn.execute(count).fetchone() == (1,)
            conn.execute(ending)
            assert not conn.execute("SELECT pal.tenant()").fetchall()[0][0]
            assert conn.execute(count).fetchone() == (0,)
        # outside of a transaction the tenant holds for its own statement and no longer
        enter(conn, filled.tenant)
        assert conn.execute(count).fetchone() == (0,)


def test_whoever_is_above_the_policies_cannot_enter(database: TestDatabase) -> None:
    """Lost if red: isolation, silently, where PAL_DATABASE_URL names a superuser."""
    with (
        connect(database, "master") as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="connect as pal_app"),
    ):
        enter(conn, "ten_any")


async def break_a_constraint(tx: Tx, database: TestDatabase) -> None:
    await tx.execute("INSERT INTO sessions SELECT * FROM sessions")


async def raise_something(tx: Tx, database: TestDatabase) -> None:
    raise LookupError


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize(
    ("fail", "error"),
    [
        pytest.param(break_a_constraint, psycopg.errors.UniqueViolation, id="constraint"),
        pytest.param(raise_something, LookupError, id="code"),
        pytest.param(be_cancelled_at_work, asyncio.CancelledError, id="cancelled"),
    ],
)
def test_failed_request_leaves_no_tenant_on_its_connection(
    fail: Callable[[Tx, TestDatabase], Awaitable[None]],
    error: type[BaseException],
    login: str,
    filled: Stack,
) -> None:
    """Lost if red: the rows of the customer whose request failed, to the next one's."""
    seen: list[set[str]] = []
    connections: set[Tx] = set()

    async def look(tx: Tx) -> None:
        connections.add(tx)
        cur = await tx.execute("SELECT tenant_id FROM pal.session_events")
        seen.append({owner for (owner,) in await cur.fetchall()})

    async def fail_half_way(db: Database) -> None:
        async with db.tenant(filled.tenant) as tx:
            await look(tx)
            await tx.execute("UPDATE sessions SET summary = 'half'")
            await fail(tx, filled.database)

    async def run() -> None:
        db = Database(getattr(filled.database, login), size=1)
        await db.open()
        try:
            with pytest.raises(error):
                await fail_half_way(db)
            async with db.tenant(filled.other_tenant) as tx:
                await look(tx)
            async with db.system() as tx:
                await look(tx)
        finally:
            await db.close()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert seen == [{filled.tenant}, {filled.other_tenant}, set()]
    assert len(connections) == 1
    assert filled.database.one("SELECT count(*) FROM pal.sessions WHERE summary = 'half'") == 0
