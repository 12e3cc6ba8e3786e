"""People on a real Postgres: made once, merged whole, whoever comes at the same time."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg
import pytest

from chalicelib.db import Database
from chalicelib.memory.handles import read_handle
from chalicelib.memory.people import resolve_people
from tests.support.http import HttpClient
from tests.support.stack import Stack
from tests.support.waiting import until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return stack.http()


def make(http: HttpClient, **body: Any) -> dict[str, Any]:
    reply = http.call("POST", "/v1/people", body)
    assert reply.status == 201, reply.body
    return dict(reply.json)


def person(http: HttpClient, person_id: str) -> dict[str, Any]:
    reply = http.call("GET", f"/v1/people/{person_id}")
    assert reply.status == 200, reply.body
    return dict(reply.json)


def merge(http: HttpClient, source: str, into: str) -> dict[str, Any]:
    reply = http.call("POST", "/v1/people/merge", {"from": source, "into": into})
    assert reply.status == 200, reply.body
    return dict(reply.json)


def handles(one: dict[str, Any]) -> set[str]:
    return {handle["handle"] for handle in one["handles"]}


def event(handle: str, **more: Any) -> dict[str, Any]:
    person = {"channel": "phone", "handle": handle}
    at = "2026-01-01T00:00:00Z"
    return {"channel": "sms", "kind": "message", "content": "x", "occurredAt": at, **more} | {
        "person": person
    }


@pytest.fixture
def hold(stack: Stack) -> Iterator[Callable[[], psycopg.Connection]]:
    """Begins a transaction of the tenant on a connection of its own, for a test to keep open."""
    made: list[psycopg.Connection] = []

    def begin() -> psycopg.Connection:
        made.append(psycopg.connect(stack.database.direct, prepare_threshold=None))
        made[-1].execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        return made[-1]

    yield begin
    for conn in made:
        conn.close()


def test_one_handle_is_one_person_however_many_ask_at_once(stack: Stack) -> None:
    """Lost if red: one customer, who is two from the first moment on (two webhooks at once)."""
    found: list[set[str]] = []

    async def ask(number: int, start: asyncio.Barrier, db: Database) -> str:
        handle = read_handle("phone", f"+6281234567{number:03}")
        await start.wait()
        async with db.tenant(stack.tenant) as tx:
            return (await resolve_people(tx, {handle: f"Caller {number}"}))[handle.key]

    async def ask_all() -> None:
        db = Database(stack.database.app, size=12)
        await db.open()
        try:
            for number in range(30):
                start = asyncio.Barrier(12)
                found.append(
                    set(await asyncio.gather(*(ask(number, start, db) for _ in range(12))))
                )
        finally:
            await db.close()

    stack.node.run(ask_all(), 60)
    assert [len(one) for one in found] == [1] * 30
    assert stack.database.one("SELECT count(*) FROM pal.people") == 30
    assert stack.database.one("SELECT count(*) FROM pal.person_handles") == 30
    assert stack.database.one("SELECT count(DISTINCT name) FROM pal.people") == 30


def test_who_waits_for_the_making_of_a_person_gets_that_one(
    stack: Stack, http: HttpClient, hold: Callable[[], psycopg.Connection]
) -> None:
    """Lost if red: the same, at the moment that luck seldom hits."""
    first = hold()
    first.execute("INSERT INTO pal.people (id, tenant_id) VALUES ('per_first', pal.tenant())")
    first.execute(
        "INSERT INTO pal.person_handles VALUES (pal.tenant(), 'user', 'ann', 'ann', NULL,"
        " 'per_first')"
    )
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(
            http.call, "POST", "/v1/sessions", {"agentName": "guide", "userId": "ann"}
        )
        until(lambda: stack.database.one(WAITING, stack.database.name) == 1)
        first.commit()
        session = later.result(20).json["id"]
    owner = stack.database.one("SELECT person_id FROM pal.sessions WHERE id = %s", session)
    assert owner == "per_first"
    assert stack.database.one("SELECT count(*) FROM pal.people") == 1


def test_two_batches_with_the_same_people_in_other_orders_do_not_block_one_another(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: batches that fail with a deadlock whenever two sources know the same people."""
    numbers = [f"+6281234567{n:03}" for n in range(60)]
    batches = [
        {"events": [event(n, externalId=n) for n in order]}
        for order in (numbers, numbers[::-1]) * 6
    ]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda b: http.call("POST", "/v1/memory/events", b), batches))
    assert {one.status for one in replies} == {200}
    assert sum(one.json["inserted"] for one in replies) == 60
    assert stack.database.one("SELECT count(*) FROM pal.people") == 60


def test_merge_moves_everything_and_leaves_a_redirect(stack: Stack, http: HttpClient) -> None:
    """Lost if red: half of what is known of a person, from the moment they are recognised."""
    phone = {"channel": "phone", "handle": "+6281234567890"}
    ann = make(http, handles=[phone], metadata={"vip": True, "city": "Ubud"})
    made = http.call("POST", "/v1/sessions", {"agentName": "guide", "userId": "ann@example.com"})
    session = made.json["id"]
    user = http.call("GET", "/v1/people?channel=user&handle=ann@example.com").json["people"][0]
    named = make(http, name="Ann Lee", metadata={"city": "Denpasar"})
    said = {"events": [event("+6281234567890")]}
    assert http.call("POST", "/v1/memory/events", said).json == {"inserted": 1, "duplicates": 0}
    posted = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hi"})
    assert posted.rest()[-1].name == "message_completed"

    assert handles(merge(http, ann["id"], user["id"])) == {"+6281234567890", "ann@example.com"}
    merged = merge(http, user["id"], named["id"])

    assert (merged["id"], merged["name"]) == (named["id"], "Ann Lee")
    assert merged["metadata"] == {"vip": True, "city": "Denpasar"}
    assert handles(merged) == {"+6281234567890", "ann@example.com"}
    for old in (ann["id"], user["id"], named["id"]):
        assert person(http, old) == merged
    for table in ("sessions", "memory_events", "person_handles"):
        query = f"SELECT DISTINCT person_id FROM pal.{table}"
        assert stack.database.rows(query) == [(named["id"],)], table  # type: ignore[arg-type]
    assert [one["id"] for one in http.call("GET", "/v1/people").json["people"]] == [named["id"]]
    # what comes after it finds the survivor
    assert http.call("POST", "/v1/memory/events", said).json["inserted"] == 1
    http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "again"}).rest()
    query = "SELECT count(*) FROM pal.memory_events WHERE person_id = %s"
    assert stack.database.one(query, named["id"]) == 4


def test_merging_again_or_in_a_circle_changes_nothing(http: HttpClient) -> None:
    """Lost if red: a retry that fails, or people who are each the other and none of them there."""
    a, b, c = (make(http, name=name)["id"] for name in ("A", "B", "C"))
    first = merge(http, a, b)
    assert first["id"] == b
    assert merge(http, a, b) == first
    assert merge(http, b, a) == first, "the other way round it is the same two"
    last = merge(http, b, c)
    assert (last["id"], merge(http, a, c), merge(http, c, a)) == (c, last, last)
    assert [person(http, one)["id"] for one in (a, b, c)] == [c, c, c]
    more = {"channel": "user", "handle": "late"}
    assert handles(http.call("POST", f"/v1/people/{a}/handles", more).json) == {"late"}
    assert handles(person(http, c)) == {"late"}


def test_merges_that_cross_leave_one_person(stack: Stack, http: HttpClient) -> None:
    """Lost if red: people who are lost in a circle when two colleagues tidy up at once."""
    for _ in range(6):
        ids = [make(http, name=f"P{n}")["id"] for n in range(4)]
        pairs = [(one, other) for one in ids for other in ids if one != other]
        with ThreadPoolExecutor(6) as pool:
            replies = list(
                pool.map(
                    lambda p: http.call("POST", "/v1/people/merge", {"from": p[0], "into": p[1]}),
                    pairs,
                )
            )
        assert {one.status for one in replies} == {200}
        for source, into in pairs:
            merge(http, source, into)
        [survivor] = {person(http, one)["id"] for one in ids}
        merged_into_merged = stack.database.one(
            "SELECT count(*) FROM pal.people p JOIN pal.people o ON o.id = p.merged_into"
            " WHERE o.merged_into IS NOT NULL"
        )
        assert (survivor in ids, merged_into_merged) == (True, 0)


@pytest.mark.parametrize(
    ("table", "path", "body"),
    [
        pytest.param(
            "memory_events",
            "/v1/memory/events",
            {"events": [{**event("x"), "person": {"channel": "user", "handle": "ann"}}]},
            id="event",
        ),
        pytest.param(
            "sessions", "/v1/sessions", {"agentName": "guide", "userId": "ann"}, id="session"
        ),
    ],
)
def test_what_is_written_while_a_merge_runs_is_the_survivors(
    table: LiteralString,
    path: str,
    body: dict[str, Any],
    stack: Stack,
    http: HttpClient,
    hold: Callable[[], psycopg.Connection],
) -> None:
    """Lost if red: an event or session on someone who is gone, that no search finds again."""
    old = make(http, handles=[{"channel": "user", "handle": "ann"}])["id"]
    new = make(http, name="Ann")["id"]
    stack.database.rows(
        "CREATE FUNCTION pal.wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END'"
    )
    stack.database.rows(
        "CREATE TRIGGER wait BEFORE INSERT ON pal." + table + " EXECUTE FUNCTION pal.wait()"
    )
    gate = hold()
    gate.execute("SELECT pg_advisory_xact_lock(1)")
    with ThreadPoolExecutor(2) as pool:
        # it has found the person, and has not written yet
        writing = pool.submit(http.call, "POST", path, body)
        until(lambda: stack.database.one(WAITING, stack.database.name) == 1)
        merging = pool.submit(merge, http, old, new)
        until(lambda: merging.done() or stack.database.one(WAITING, stack.database.name) == 2)
        gate.rollback()
        assert writing.result(20).status in (200, 201)
        assert merging.result(20)["id"] == new
    owners = stack.database.rows("SELECT person_id FROM pal." + table)
    assert owners == [(new,)]


def test_turn_that_ends_while_a_merge_runs_is_the_survivors(
    stack: Stack, http: HttpClient, hold: Callable[[], psycopg.Connection]
) -> None:
    """Lost if red: what was said in the minute in which a person was recognised."""
    session = http.call("POST", "/v1/sessions", {"agentName": "guide", "userId": "ann"}).json["id"]
    old = http.call("GET", "/v1/people").json["people"][0]["id"]
    new = make(http, name="Ann")["id"]
    said = {**event("x"), "person": {"channel": "user", "handle": "ann"}}
    assert http.call("POST", "/v1/memory/events", {"events": [said]}).status == 200
    block = hold()  # in the way of the merge's next step, once it has moved the session
    block.execute("SELECT FROM pal.memory_events FOR UPDATE")
    with ThreadPoolExecutor(2) as pool:
        merging = pool.submit(merge, http, old, new)
        until(lambda: stack.database.one(WAITING, stack.database.name) == 1)
        url = f"/v1/sessions/{session}/messages"
        turn = pool.submit(lambda: http.stream("POST", url, {"content": "hi"}).rest())
        until(lambda: stack.database.one(WAITING, stack.database.name) == 2)
        block.commit()
        merging.result(20)
        assert turn.result(20)[-1].name == "message_completed"
    owners = stack.database.rows("SELECT kind, person_id FROM pal.memory_events ORDER BY kind")
    assert owners == [("message", new), ("turn", new)]


def test_failed_merge_changes_nothing(stack: Stack, http: HttpClient) -> None:
    """Lost if red: a person in halves, after the one merge that the database cut short."""
    user = {"channel": "user", "handle": "ann"}
    old, new = make(http, handles=[user], name="Old"), make(http, name="New")
    stack.database.rows("ALTER TABLE pal.memory_events RENAME TO gone")
    body = {"from": old["id"], "into": new["id"]}
    assert http.call("POST", "/v1/people/merge", body).status == 500
    stack.database.rows("ALTER TABLE pal.gone RENAME TO memory_events")
    assert (person(http, old["id"]), person(http, new["id"])) == (old, new)
    assert merge(http, old["id"], new["id"])["id"] == new["id"]
