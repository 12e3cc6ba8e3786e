"""Connections: a dead one costs no request, a pooler loses no state, a failure leaves no trace."""

import ast
import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from chalicelib.config import Secret
from chalicelib.db import Database, Tx
from chalicelib.db.login import CONNECTION
from chalicelib.db.queries import load_queries
from chalicelib.errors import Unavailable
from chalicelib.gateway.postgres import embedded, prepare
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import HttpClient
from tests.support.postgres import Cluster, TestDatabase
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack
from tests.support.waiting import be_cancelled_at_work, until

BACKENDS = "FROM pg_stat_activity WHERE datname = %s AND usename = 'pal_app'"


@pytest.fixture
def between(postgres: Cluster) -> Iterator[Proxy]:
    """A proxy before the server, or before its pooler if there is one."""
    with proxy(postgres) as made:
        yield made


@asynccontextmanager
async def opened(url: str, **how: float) -> AsyncIterator[Database]:
    db = Database(url, **how)  # type: ignore[arg-type]
    await db.open()
    try:
        async with asyncio.timeout(60):
            yield db
    finally:
        await db.close()


async def warm(db: Database, count: int) -> None:
    """Have this many connections kept: as many transactions at once."""
    together = asyncio.Barrier(count)

    async def one() -> None:
        async with db.system() as tx:
            await tx.execute("SELECT 1")
            await together.wait()

    await asyncio.gather(*(one() for _ in range(count)))


async def ask(db: Database) -> object:
    async with db.system() as tx:
        return await (await tx.execute("SELECT 1")).fetchone()


def kill_backends(database: TestDatabase) -> int:
    killed = database.rows(f"SELECT pg_terminate_backend(pid) {BACKENDS}", database.name)
    until(lambda: database.one(f"SELECT count(*) {BACKENDS}", database.name) == 0)
    return len(killed)


def open_session(http: HttpClient) -> str:
    return str(http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"])


# ── DB-3: connections that died ──────────────────────────────────────────────────────────────


def test_killed_backends_fail_no_request(stack: Stack) -> None:
    """Lost if red: requests, after each restart of the database or thaw of a frozen function."""
    http = stack.http()
    session = open_session(http)
    for path, body in [
        (f"/v1/sessions/{session}", None),
        (f"/v1/sessions/{session}/messages", {"content": "hello"}),
    ]:
        stack.node.run(warm(stack.node.services.db, 4))
        assert kill_backends(stack.database) >= 4
        reply = http.call("POST" if body else "GET", path, body)
        assert reply.status in (200, 202), reply.body
    events = http.stream("GET", f"/v1/sessions/{session}/events?after=0")
    assert events.read_until("message_completed")[-1].data["text"] == "echo: hello"
    events.close()


def test_whole_pool_killed_at_once_is_replaced(database: TestDatabase) -> None:
    """Lost if red: as many requests as a process had connections."""

    async def run() -> None:
        async with opened(database.app, size=4) as db:
            await warm(db, 4)
            await asyncio.to_thread(kill_backends, database)
            assert await asyncio.gather(*(ask(db) for _ in range(4))) == [(1,)] * 4
            await warm(db, 4)
            await asyncio.to_thread(kill_backends, database)
            assert await ask(db) == (1,)

    asyncio.run(run())


def test_half_open_connections_are_given_up_together(
    database: TestDatabase, between: Proxy
) -> None:
    """Lost if red: minutes of waiting for a server that is gone without a word."""

    async def run() -> None:
        url = between.url("pal_app", database.name)
        async with opened(url, size=4, wait=2.0) as db:
            await warm(db, 4)
            between.fall_silent()
            assert await ask(db) == (1,)
            # the first silent one condemned the others: none of them was waited for
            assert between.sent(b"BEGIN") == 4 + 1 + 1
            assert between.accepted == 4 + 1

    asyncio.run(run())


def test_silent_server_is_a_bounded_failure_and_then_recovers(
    database: TestDatabase, between: Proxy
) -> None:
    """Lost if red: every request of a process, for as long as its oldest one waits."""

    async def run() -> None:
        url = between.url("pal_app", database.name)
        async with opened(url, size=2, wait=0.5, longest=0.5) as db:
            await warm(db, 2)
            between.fall_silent(new_ones=True)
            for _ in range(2):
                with pytest.raises(Unavailable) as told:
                    await ask(db)
                assert told.value.headers == {"Retry-After": "1"}
            between.speak()
            assert await ask(db) == (1,)
            with pytest.raises(Unavailable):
                await fall_silent_in_the_middle(db, between)
            assert await ask(db) == (1,)

    asyncio.run(run())


async def fall_silent_in_the_middle(db: Database, between: Proxy) -> None:
    async with db.system() as tx:
        await tx.execute("SELECT 1")
        between.fall_silent()
        await tx.execute("SELECT 1")


def test_interrupted_rollback_gives_its_connection_back(
    database: TestDatabase, between: Proxy
) -> None:
    """Lost if red: the process, one connection at a time, until it has none left to give."""

    async def hold(db: Database, begun: asyncio.Event) -> None:
        async with db.system():
            begun.set()
            await asyncio.Event().wait()

    async def run() -> None:
        url = between.url("pal_app", database.name)
        async with opened(url, size=1) as db:
            begun = asyncio.Event()
            holding = asyncio.create_task(hold(db, begun))
            await begun.wait()
            between.fall_silent()
            holding.cancel()
            await asyncio.to_thread(between.wait_sent, b"ROLLBACK")
            while not holding.done():
                holding.cancel()
                await asyncio.sleep(0)
            assert holding.cancelled()
            assert await ask(db) == (1,)

    asyncio.run(run())


def test_request_that_gets_no_connection_is_told_to_come_again(database: TestDatabase) -> None:
    """Lost if red: requests that hang behind a busy process for ever."""

    async def run() -> None:
        async with opened(database.app, size=1, wait=0.1) as db:
            async with db.system():
                with pytest.raises(Unavailable) as told:
                    await ask(db)
            assert told.value.headers == {"Retry-After": "1"}
            assert await ask(db) == (1,)

    asyncio.run(run())


def test_server_restart_costs_only_the_requests_it_was_down_for(provider: FakeOpenAI) -> None:
    """Lost if red: a process that must be restarted after its database was."""
    with (
        ExitStack() as ends,
        tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder,
    ):
        running = ExitStack()
        ends.callback(running.close)
        master = running.enter_context(embedded(Path(folder)))
        logins = asyncio.run(prepare(master))
        database = TestDatabase(
            name="palimpsest",
            app=logins.app,
            direct=logins.app,
            owner=logins.owner or "",
            master=master,
        )
        stack = Stack(database, provider.base_url)
        ends.callback(stack.close)
        http = stack.http()
        session = open_session(http)
        stack.node.run(warm(stack.node.services.db, 4))
        slow = Reply(pieces=["still ", "here"], hold_at=1)
        provider.script(slow)
        posted = http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
        assert posted.status == 202
        assert slow.held.wait(15)

        running.close()
        for path in (f"/v1/sessions/{session}", "/v1/sessions"):
            refused = http.call("GET", path)
            assert refused.status == 503, refused.body
            assert refused.json["code"] == "unavailable"
            assert refused.headers["retry-after"] == "1"
        assert http.call("GET", "/healthz").status == 503
        running.enter_context(embedded(Path(folder)))

        assert http.call("GET", "/healthz").status == 200
        assert http.call("GET", f"/v1/sessions/{session}").status == 200
        events = http.stream("GET", f"/v1/sessions/{session}/events")
        slow.gate.set()
        # the turn that was running has outlived the server
        assert events.read_until("message_completed")[-1].data["text"] == "still here"
        events.close()


def test_write_of_unknown_outcome_is_not_repeated(
    make_stack: Callable[..., Stack], between: Proxy, database: TestDatabase
) -> None:
    """Lost if red: a second session, message or charge for one request."""
    stack = make_stack(
        database_url=Secret(between.url("pal_app", database.name)), database_listen_url=Secret("")
    )
    http = stack.http()
    assert http.call("GET", "/v1/sessions").json == []  # the key is known from now on
    between.lose_answer_to(b"COMMIT")
    once = {"Idempotency-Key": "one"}
    lost = http.call("POST", "/v1/sessions", {"agentName": "guide"}, headers=once)
    assert lost.status == 503
    assert lost.headers["retry-after"] == "1"
    assert database.rows("SELECT agent_name FROM pal.sessions") == [("guide",)]
    # whoever repeats it with its key gets what the first one made
    again = http.call("POST", "/v1/sessions", {"agentName": "guide"}, headers=once)
    assert again.status == 201
    assert database.rows("SELECT id FROM pal.sessions") == [(again.json["id"],)]


# ── DB-4: nothing that a pooler would lose ───────────────────────────────────────────────────


def test_same_query_again_and_again_through_the_pooler(database: TestDatabase) -> None:
    """Lost if red: every fifth request or so, behind RDS Proxy."""

    async def run() -> None:
        async with opened(database.app, size=2) as db:
            async with db.system() as tx:
                assert tx.prepare_threshold is None
            for _ in range(12):
                assert await named(db, "SELECT %s + 1", 1) == 2
            async with db.system() as tx:  # holds the backend that all of them ran on
                await tx.execute("SELECT 1")
                for _ in range(12):
                    assert await named(db, "SELECT %s + 1", 1) == 2
                    assert (
                        await named(db, "SELECT count(*) + %s FROM pg_prepared_statements", 0) == 0
                    )

    async def named(db: Database, query: str, value: int) -> object:
        async with db.system() as tx:
            cur = await tx.execute(query, (value,))
            return (await cur.fetchone() or [None])[0]

    asyncio.run(run())


def test_every_connection_is_made_as_one_place_says(root: Path) -> None:
    """Lost if red: prepared statements and endless waits, in the one script that forgot."""
    assert CONNECTION["prepare_threshold"] is None
    assert CONNECTION["connect_timeout"]
    assert CONNECTION["tcp_user_timeout"]
    made = []
    for path in sorted((root / "chalicelib").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = [ast.unparse(one) for one in (node.func, *node.args)]
            if any(re.search(r"\bpsycopg(\.\w*Connection)?\.connect$", one) for one in called):
                spread = [ast.unparse(one.value) for one in node.keywords if one.arg is None]
                made.append((path.name, node.lineno, spread == ["CONNECTION"]))
            pools = [one for one in called if re.search(r"\b(Async)?ConnectionPool$", one)]
            assert pools == [], path
    assert len(made) >= 6
    assert [one for one in made if not one[2]] == []


def test_no_query_leaves_state_in_its_session(root: Path) -> None:
    """Lost if red: state that the next transaction on that backend, anyone's, runs under."""
    files = [one for one in (root / "chalicelib").rglob("*.sql") if "db" not in one.parts]
    assert {one.name for one in files} >= {"queries.sql", "auth.sql", "idempotency.sql"}
    for file in files:
        for name, text in load_queries(str(file), file.name).items():
            verb = text.split()[0]
            assert verb in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"), (file.name, name)
            assert ";" not in text.replace("';'", ""), (file.name, name)
            kept = re.search(
                r"set_config|advisory_(?!xact)|\b(LISTEN|PREPARE|DECLARE|TEMP|TEMPORARY)\b", text
            )
            assert kept is None, (file.name, name, kept)
            # RDS Proxy keeps a longer statement's session to its client
            assert len(text.encode()) < 16_000, (file.name, name)


# ── DB-5: a failure is over when its transaction is ──────────────────────────────────────────


async def break_a_constraint(tx: Tx, database: TestDatabase) -> None:
    await tx.execute("INSERT INTO sessions SELECT * FROM sessions")


async def run_out_of_time(tx: Tx, database: TestDatabase) -> None:
    await tx.execute("SET LOCAL statement_timeout = '20ms'; SELECT pg_sleep(60)")


async def swallow_an_error(tx: Tx, database: TestDatabase) -> None:
    with suppress(psycopg.errors.UniqueViolation):
        await break_a_constraint(tx, database)


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        pytest.param(break_a_constraint, psycopg.errors.UniqueViolation, id="constraint"),
        pytest.param(run_out_of_time, Unavailable, id="statement-timeout"),
        pytest.param(be_cancelled_at_work, asyncio.CancelledError, id="cancelled"),
        pytest.param(swallow_an_error, psycopg.errors.InFailedSqlTransaction, id="swallowed"),
    ],
)
def test_failed_transaction_is_over(
    fail: Callable[[Tx, TestDatabase], Awaitable[None]],
    error: type[BaseException],
    make_stack: Callable[..., Stack],
) -> None:
    """Lost if red: every later request of a process, after one that failed."""
    stack = make_stack(database_pool=1, database_listen_url=Secret(""))
    http, other = stack.http(), stack.http(stack.other_key)
    session, theirs = open_session(http), open_session(other)

    async def fail_half_way() -> None:
        async with stack.node.services.db.tenant(stack.tenant) as tx:
            await tx.execute("UPDATE sessions SET summary = 'half'")
            await fail(tx, stack.database)

    async def run() -> None:
        with pytest.raises(error):
            await fail_half_way()

    stack.node.run(run())
    read = http.call("GET", f"/v1/sessions/{session}")
    assert read.status == 200, read.body
    assert "summary" not in read.json
    assert other.call("POST", f"/v1/sessions/{theirs}/stop").json == {"status": "stopped"}
    assert open_transactions(stack.database) == 0


def open_transactions(database: TestDatabase) -> object:
    return database.one(f"SELECT count(*) {BACKENDS} AND xact_start IS NOT NULL", database.name)


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_no_transaction_is_open_while_the_model_answers(
    accept: str, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the database's connections, one for each answer that a model takes long for."""
    http = stack.http()
    session = open_session(http)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    events.read_until("connected")
    slow = Reply(pieces=["one ", "two"], hold_at=1)
    provider.script(slow)
    path, body = f"/v1/sessions/{session}/messages", {"content": "hello"}
    posted = http.stream("POST", path, body, headers={"Accept": accept})
    assert posted.status in (200, 202)
    assert slow.held.wait(15)
    events.read_until("message_delta")
    # the heartbeat's transactions come and go; one that waits for the model would stay
    until(lambda: open_transactions(stack.database) == 0)
    assert not slow.finished.is_set()
    slow.gate.set()
    events.read_until("message_completed")
    events.close()
    posted.close()
