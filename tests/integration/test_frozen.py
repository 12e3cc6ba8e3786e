"""What a function finds when it thaws, and what a failover leaves: no request is answered by a 500.

Through the API's handler and the stream's, behind RDS's proxy as it looks from there: with IAM
tokens, by polling, and with connections that are dropped while nobody looks.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import sql

from chalicelib.config import Secret
from chalicelib.gateway.postgres import embedded, prepare
from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.rds_server import FakeRds, fake_rds
from tests.fakes.runtime_api import FakeRuntimeApi
from tests.integration.test_connections import warm
from tests.support.doors import Door, proxy_event
from tests.support.http import Reply, text_of
from tests.support.postgres import Cluster, TestDatabase
from tests.support.stack import Stack
from tests.support.waiting import until

DOORS = ("chalice", "function-url", "rest-api")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a function's role, as Lambda gives them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


def behind(rds: FakeRds, database: str) -> dict[str, Any]:
    """The settings of a function whose database that is."""
    rds.keys["AKIA1"] = "secret"
    url = Secret(rds.url("pal_app", database))
    return {"database_url": url, "database_iam": True, "database_listen_url": Secret("")}


def open_session(door: Door) -> str:
    made = door.call("POST", "/v1/sessions", {"agentName": "guide"})
    assert made.status == 201, made.body
    return str(made.json["id"])


def say(door: Door, session: str, text: str) -> str:
    """A message, and the reply that is streamed."""
    stream = door.stream("POST", f"/v1/sessions/{session}/messages", {"content": text})
    assert stream.status == 200
    return text_of(stream.rest())


# ── a thaw ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rds(postgres: Cluster, credentials: None) -> Iterator[FakeRds]:
    with fake_rds(postgres.socket_dir) as made:
        yield made


@pytest.mark.parametrize("kind", DOORS)
def test_thawed_function_answers_its_next_request(
    kind: str, rds: FakeRds, make_stack: Callable[..., Stack], database: TestDatabase
) -> None:
    """Lost if red: the first request after each pause, which for some callers is every request."""
    stack = make_stack(**behind(rds, database.name))
    door = open_door(kind, stack, stack.key)
    session = open_session(door)
    assert say(door, session, "one") == "echo: one"
    for text in ("two", "three"):
        stack.node.run(warm(stack.node.services.db, 4))
        logins = len(rds.logins)
        rds.expire()  # a quarter of an hour goes by
        rds.drop()
        read = door.call("GET", f"/v1/sessions/{session}")
        assert read.status == 200, read.body
        rds.drop()
        assert say(door, session, text) == f"echo: {text}"
        assert len(rds.logins) > logins
    # the token that had expired was tried once a thaw, and no request saw it
    assert set(rds.refusals) == {"expired"}
    assert 2 <= len(rds.refusals) <= 4


def test_stopped_stream_function_answers_its_next_invocation(
    rds: FakeRds, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: a stream's first words after each pause, in a process that is really frozen."""
    session = open_session(open_door("chalice", stack, stack.key))
    ours = behind(rds, stack.database.name)
    env = {
        **{name: value for name, value in os.environ.items() if name[:4] != "PAL_"},
        "PAL_DATABASE_URL": ours["database_url"],
        "PAL_DATABASE_IAM": "on",
        "PAL_PROVIDERS": "openai:fake",
        "PAL_SESSION_TREE": "plain",
        "OPENAI_BASE_URL": provider.base_url,
        "OPENAI_API_KEY": "sk-fake",
    }
    headers = {
        "authorization": f"Bearer {stack.key}",
        "accept": "text/event-stream",
        "content-type": "application/json",
    }

    def event(text: str) -> dict[str, Any]:
        body = json.dumps({"content": text}).encode()
        return proxy_event("2.0", "POST", f"/v1/sessions/{session}/messages", headers, body)

    async def run() -> None:
        async with asyncio.timeout(50), FakeRuntimeApi() as api:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chalicelib.stream.runtime"),
                env={**env, "AWS_LAMBDA_RUNTIME_API": api.address},
                stdout=subprocess.DEVNULL,
            )
            process = psutil.Process(child.pid)
            try:
                for number in range(1, 4):
                    while api.asked < number:
                        await asyncio.sleep(0.05)
                    process.suspend()
                    await asyncio.to_thread(rds.expire)
                    rds.drop()
                    call = api.invoke(event(f"message {number}"))
                    process.resume()
                    prelude, *pieces = await call.body()
                    assert prelude.startswith(b'{"statusCode":200,')
                    assert f"echo: message {number}" in b"".join(pieces).decode()
            finally:
                child.kill()
                await child.wait()

    asyncio.run(run())
    assert set(rds.refusals) == {"expired"}


# ── a failover ───────────────────────────────────────────────────────────────────────────────


class Server:
    """A Postgres of the test's own, which can go away and come back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running = ExitStack()
        self.url = self.start()

    def start(self) -> str:
        return self._running.enter_context(embedded(self._folder))

    def stop(self) -> None:
        self._running.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder:
        made = Server(Path(folder))
        yield made
        made.stop()


@pytest.mark.parametrize("kind", DOORS)
def test_writer_that_became_a_reader_is_left(
    kind: str, rds: FakeRds, make_stack: Callable[..., Stack], database: TestDatabase
) -> None:
    """Lost if red: every write of a process whose connections a failover has left where they were.

    The server takes them still, and answers that it only reads.
    """
    stack = make_stack(**behind(rds, database.name))
    door = open_door(kind, stack, stack.key)
    session = open_session(door)
    alter = sql.SQL("ALTER ROLE pal_app IN DATABASE {} {} default_transaction_read_only {}")
    named = sql.Identifier(database.name)
    rds.drop()
    with psycopg.connect(database.master, autocommit=True) as conn:
        conn.execute(alter.format(named, sql.SQL("SET"), sql.SQL("= on")))
    stack.node.run(warm(stack.node.services.db, 4))
    with psycopg.connect(database.master, autocommit=True) as conn:
        conn.execute(alter.format(named, sql.SQL("RESET"), sql.SQL("")))
    posted = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "lost"})
    assert posted.status == 503, posted.body
    assert posted.headers["retry-after"] == "1"
    assert say(door, session, "kept") == "echo: kept"


class Load:
    """Callers who repeat their requests until they are told to stop; each answer is counted."""

    def __init__(self, calls: dict[str, Callable[[], Reply]]) -> None:
        self._calls = calls
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(len(calls))
        self._seen: dict[str, Counter[int]] = {name: Counter() for name in calls}
        self.hasty: list[Reply] = []
        self._running = [self._pool.submit(self._repeat, name) for name in calls]

    def _repeat(self, name: str) -> None:
        while not self._stopped.is_set():
            reply = self._calls[name]()
            self._seen[name][reply.status] += 1
            if reply.status == 503 and reply.headers.get("retry-after") != "1":
                self.hasty.append(reply)

    def everyone(self, *, refused: bool) -> None:
        """Until each caller has been answered anew, by a refusal or by what was asked for."""
        before = {name: self._count(name, refused) for name in self._calls}
        until(
            lambda: (
                all(self._count(name, refused) > before[name] for name in self._calls)
                or any(one.done() for one in self._running)
            ),
            seconds=30,
        )

    def _count(self, name: str, refused: bool) -> int:
        return sum(count for status, count in self._seen[name].items() if (status > 299) == refused)

    def stop(self) -> dict[str, set[int]]:
        """The statuses that each caller has seen."""
        self._stopped.set()
        for one in self._running:
            one.result(30)
        self._pool.shutdown()
        return {name: set(seen) for name, seen in self._seen.items()}


def test_database_restarted_under_load_costs_no_500(
    server: Server, credentials: None, provider: FakeOpenAI
) -> None:
    """Lost if red: errors that no caller repeats, and a process that must be restarted as well."""
    logins = asyncio.run(prepare(server.url))
    database = TestDatabase(
        name="palimpsest",
        app=logins.app,
        direct=logins.app,
        owner=logins.owner or "",
        master=server.url,
    )
    with ExitStack() as ends:
        rds = ends.enter_context(fake_rds(server.url.partition("host=")[2]))
        stack = Stack(database, provider.base_url, **behind(rds, "palimpsest"))
        ends.callback(stack.close)
        api = open_door("chalice", stack, stack.key)
        streaming = open_door("function-url", stack, stack.key)
        session = open_session(api)
        path = f"/v1/sessions/{session}"
        load = Load(
            {
                "read": lambda: api.call("GET", path),
                "create": lambda: api.call("POST", "/v1/sessions", {"agentName": "guide"}),
                "follow": lambda: _hang_up(streaming, path),
            }
        )
        ends.callback(load.stop)
        load.everyone(refused=False)
        server.stop()
        load.everyone(refused=True)
        server.start()
        load.everyone(refused=False)
        seen = load.stop()
        assert load.hasty == []
        assert seen == {
            "read": {200, 503},
            "create": {201, 503},
            "follow": {200, 503},
        }
        assert say(streaming, session, "still here") == "echo: still here"


def _hang_up(door: Door, path: str) -> Reply:
    """Open a stream of events, and leave."""
    stream = door.stream("GET", f"{path}/events")
    stream.close()
    return Reply(status=stream.status, headers=stream.headers, body=b"")
