"""What is held on a person: all of it given out, and all of it deleted."""

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI
from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.sealing import Planted, plant
from tests.support.stack import Stack
from tests.support.waiting import until

PEOPLE, EVENTS, REMEMBER = "/v1/people", "/v1/memory/events", "/v1/memory/remember"
ANN = {"channel": "user", "handle": "ann"}
BEN = {"channel": "user", "handle": "ben"}
EVENT = {"channel": "chat", "kind": "message", "occurredAt": "2026-01-05T10:00:00Z"}
NO_ONE = "per_00000000000000000000000000"

FACT = (
    "INSERT INTO pal.memory_distillates (id, tenant_id, person_id, said_by, group_id, topic,"
    " topic_key, content, confidence, origin, source_kind, said_at, superseded_by, superseded_at)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 0.9, %s, 'events', %s::timestamptz, %s,"
    " CASE WHEN %s::text IS NOT NULL THEN now() END)"
)


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system without vectors, which these tests are not about."""
    return make_stack(embeddings="off")


def ids(number: int) -> str:
    return f"mem_{number:026}"


def put(
    stack: Stack,
    number: int,
    content: str,
    *,
    about: str | None,
    by: str | None = None,
    group: str | None = None,
    topic: str = "home",
    origin: str = "stated",
    day: int = 1,
    successor: int | None = None,
) -> None:
    """Write a fact as a pass does."""
    end = None if successor is None else ids(successor)
    stack.database.rows(
        FACT,
        *(ids(number), stack.tenant, about, by, group, topic, topic, content, origin),
        *(f"2026-01-{day:02}", end, end),
    )


def promote(stack: Stack, number: int, content: str, *, session: str, **whose: str | None) -> None:
    """Write an episode as an end does."""
    stack.database.rows(
        "INSERT INTO pal.memory_episodes (id, tenant_id, session_id, person_id, group_id, kind,"
        " content, content_key, occurred_at)"
        " VALUES (%s, %s, %s, %s, %s, 'decision', %s, '', now())",
        *(f"epi_{number:026}", stack.tenant, session, whose["person"], whose.get("group")),
        content,
    )


def propose(
    stack: Stack,
    number: int,
    content: str,
    *,
    about: str | None,
    by: str | None = None,
    group: str | None = None,
) -> None:
    """Let a fact wait for approval, as a pass does."""
    stack.database.rows(
        "INSERT INTO pal.memory_candidates (id, tenant_id, tier, person_id, group_id, content,"
        " content_key, proposal) VALUES (%s, %s, 'semantic', %s, %s, %s, '', %s::jsonb)",
        *(f"cand_{number:026}", stack.tenant, about, group, content),
        json.dumps({"said_by": by, "topic": "t"}),
    )


def narrate(
    stack: Stack,
    number: int,
    *lines: tuple[str, str],
    person: str | None = None,
    group: str | None = None,
) -> None:
    """Write a narrative: each line with the id that it rests on."""
    told = [{"text": text, "sources": [source]} for text, source in lines]
    stack.database.rows(
        "INSERT INTO pal.memory_narratives (id, tenant_id, person_id, group_id, lines)"
        " VALUES (%s, %s, %s, %s, %s::jsonb)",
        *(f"nar_{number:026}", stack.tenant, person, group, json.dumps(told)),
    )


def person(door: Door, handle: dict[str, str], **more: Any) -> str:
    """A new person's id."""
    reply = door.call("POST", PEOPLE, {"handles": [handle], **more})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


def say(door: Door, handle: dict[str, str], *contents: str, **more: Any) -> None:
    """Put these on someone's timeline."""
    batch = {"events": [{**EVENT, "person": handle, "content": one, **more} for one in contents]}
    assert door.call("POST", EVENTS, batch).status == 200


def pages(door: Door, person_id: str, size: int) -> Iterator[dict[str, Any]]:
    """Every page of an export."""
    query = f"?pageSize={size}"
    while True:
        reply = door.call("GET", f"{PEOPLE}/{person_id}/export{query}")
        assert reply.status == 200, reply.body
        yield reply.json
        token = reply.headers.get("x-next-page-token")
        if token is None:
            return
        query = f"?pageSize={size}&pageToken={token}"


def talk(door: Door, user: str, *contents: str) -> str:
    """A session in which a user says these: its id."""
    session = new_session(door, userId=user)
    for content in contents:
        door.stream("POST", f"/v1/sessions/{session}/messages", {"content": content}).rest()
    return session


def counts(stack: Stack, word: str) -> dict[str, int]:
    """How many rows of each table hold a word, whatever the column."""
    tables = stack.database.rows(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'pal'::regnamespace"
        " AND c.relkind = 'r' ORDER BY 1"
    )
    found = {}
    for (table,) in tables:
        query = f"SELECT count(*) FROM pal.{table} t WHERE to_jsonb(t)::text LIKE %s"
        if number := stack.database.one(query, f"%{word}%"):  # type: ignore[arg-type]
            found[str(table)] = int(str(number))
    return found


# ── export ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("size", [1, 2, 3, 7, 200])
def test_export_leaves_nothing_out(size: int, stack: Stack) -> None:
    """Lost if red: the part of what is held on someone that did not fit on a page."""
    door = open_door("http", stack, stack.key)
    ann = person(door, ANN, name="Ann", metadata={"vip": True})
    ben = person(door, BEN)
    say(door, ANN, *(f"said {n}" for n in range(4)), groupId="g", direction="in", metadata={"a": 1})
    say(door, BEN, "not Ann's")
    first = talk(door, "ann", "one", "two", "three")
    second, third = new_session(door, userId="ann"), talk(door, "ann", "four")
    talk(door, "ben", "not hers")
    put(stack, 2, "Lives in Bergen.", about=ann, by=ann, day=2)
    put(stack, 1, "Lives in Oslo.", about=ann, by=ann, day=1, successor=2)
    put(stack, 3, "Ben is tall.", about=ben, by=ann, topic="height")
    put(stack, 4, "Ben is small.", about=ben, by=ben, topic="size")
    old = person(door, {"channel": "email", "handle": "ann@example.com"})
    for number in range(3):
        promote(stack, number, f"decided {number}", session=first, person=ann)
        propose(stack, number, f"proposed {number}", about=ann)
    propose(stack, 3, "proposed 3", about=ben, by=ann)
    propose(stack, 9, "proposed of Ben", about=ben)
    pinned = {"pins": ["Her wheelchair comes along."]}
    assert door.call("PUT", f"/v1/sessions/{second}/pins", pinned).status == 200
    plant(stack, second, Planted(kind="task", text="Call the hotel"))
    narrate(stack, 1, ("Moved to Bergen.", ids(2)), person=ann)
    narrate(stack, 2, ("Ben is small.", ids(4)), person=ben)
    assert door.call("POST", PEOPLE + "/merge", {"from": old, "into": ann}).status == 200

    whole: dict[str, list[Any]] = {"distillates": [], "events": []}
    whole |= {"episodes": [], "narratives": [], "candidates": [], "states": []}
    sessions: dict[str, list[Any]] = {}
    for page in pages(door, old, size):
        assert page["person"]["id"] == ann
        assert (page["person"]["name"], page["person"]["merged_ids"]) == ("Ann", [old])
        assert len(page["person"]["handles"]) == 2
        for name, found in whole.items():
            found += page[name]
        for one in page["sessions"]:
            sessions.setdefault(one["id"], []).extend(one.pop("messages"))
            assert one["userId"] == "ann"
    assert [one["content"] for one in whole["distillates"]] == [
        "Lives in Oslo.",
        "Lives in Bergen.",
        "Ben is tall.",
    ]
    assert whole["distillates"][0]["superseded_by"] == ids(2)
    assert whole["distillates"][2]["person_id"] == ben
    assert [one["content"] for one in whole["episodes"]] == [f"decided {n}" for n in range(3)]
    assert {one["session_id"] for one in whole["episodes"]} == {first}
    [narrative] = whole["narratives"]
    assert narrative["lines"] == [{"text": "Moved to Bergen.", "sources": [ids(2)]}]
    assert [one["content"] for one in whole["candidates"]] == [f"proposed {n}" for n in range(4)]
    states = {one["id"]: one for one in whole["states"]}
    assert len(whole["states"]) == len(states)
    assert [one["text"] for one in states[second]["pins"]] == pinned["pins"]
    assert [one["text"] for one in states[second]["nodes"]] == ["Call the hotel"]
    told = [one["content"] for one in whole["events"]]
    assert told[:4] == [f"said {n}" for n in range(4)]
    assert (whole["events"][0]["group_id"], whole["events"][0]["metadata"]) == ("g", {"a": 1})
    assert len(told) == 8
    assert len({one["id"] for one in whole["events"]}) == 8
    said = {
        session: [one["content"] for one in messages if one["role"] == "user"]
        for session, messages in sessions.items()
    }
    assert said == {first: ["one", "two", "three"], second: [], third: ["four"]}
    assert len(sessions[first]) == 6


def test_export_is_bounded_by_its_bytes(stack: Stack) -> None:
    """Lost if red: an answer that Lambda refuses to send, and with it the whole export."""
    door = open_door("http", stack, stack.key)
    ann = person(door, ANN)
    for _ in range(4):
        say(door, ANN, *("x" * 190_000 for _ in range(5)))
    found = list(pages(door, ann, 200))
    assert [len(one["events"]) > 10 for one in found] == [True] * len(found)
    assert sum(len(one["events"]) for one in found) == 20
    say(door, ANN, *("y" * 190_000 for _ in range(5)))
    assert len(list(pages(door, ann, 200))) == 2


def test_export_of_no_one_is_refused(door: Door) -> None:
    """Lost if red: an empty page, which says that nothing is held."""
    refused(door.call("GET", f"{PEOPLE}/{NO_ONE}/export"), 404, "not_found")
    ann = person(door, ANN)
    places: list[Any] = [[], [0, 1, 0, 0], [9, "", 0, 0], [0, "", -1, 0], [True, "", 0, 0]]
    places += [[1, "sess_x", 0, 0], [2, "", 0, 1 << 63], [2, "", 0, 0.5], {}]
    for place in places:
        token = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
        url = f"{PEOPLE}/{ann}/export?pageToken={token}"
        refused(door.call("GET", url), 422, "invalid_field", "pageToken")


# ── delete ───────────────────────────────────────────────────────────────────────────────────
def test_all_of_a_person_is_deleted(door: Door, stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the promise made to whoever asks to be forgotten."""
    once = {"Idempotency-Key": "k"}
    made = {"name": "Zebra", "handles": [{"channel": "user", "handle": "zebra"}]}
    reply = door.call("POST", PEOPLE, made, headers=once)
    ann = reply.json["id"]
    mail = {"channel": "email", "handle": "zebra@example.com"}
    old = door.call("POST", PEOPLE, {"name": "Z", "handles": [mail]}).json["id"]
    assert door.call("POST", PEOPLE + "/merge", {"from": old, "into": ann}).status == 200
    ben = person(door, BEN, name="Ben")
    session = talk(door, "zebra", "My zebra is striped.")
    kept = talk(door, "ben", "Nothing of anyone else.")
    say(door, {"channel": "user", "handle": "zebra"}, "A zebra said this.", groupId="g")
    body = {"content": "The zebra likes grass.", "personId": ann}
    remembered = door.call("POST", REMEMBER, body, headers=once)
    assert remembered.status == 201
    gone = door.call("POST", REMEMBER, {**body, "topic": "zebra's secret"}).json["id"]
    assert door.call("DELETE", f"/v1/memory/distillates/{gone}").status == 204
    put(stack, 1, "Told in the group.", about=ben, by=ann, group="g", topic="a")
    put(stack, 2, "Told by the zebra.", about=ben, by=ann, topic="b")
    put(stack, 3, "Jack is a zebra.", about=None, by=ann, topic=f"kind\x1fjack\x1f{ann}")
    assert door.call("DELETE", f"/v1/memory/distillates/{ids(3)}").status == 204
    promote(stack, 1, "Paint the zebra.", session=session, person=ann)
    promote(stack, 2, "Feed the zebra.", session=session, person=ann, group="g")
    propose(stack, 1, "Is a zebra.", about=ann)
    propose(stack, 2, "The zebra says that Ben is tall.", about=ben, by=ann)
    propose(stack, 3, "The zebra's friend is tall.", about=None, by=old)
    propose(stack, 4, "Ben is tall, as the group heard.", about=ben, by=ann, group="g")
    narrate(stack, 2, ("Feeds the zebra.", f"epi_{2:026}"), ("Told.", ids(1)), group="g")
    held = door.call("GET", f"{PEOPLE}/{ann}/export").json["person"]["forgotten"]
    assert {one["topic"] for one in held} == {"zebra's secret", "kind"}
    assert counts(stack, "ebra")

    assert door.call("DELETE", f"{PEOPLE}/{old}").status == 204
    assert counts(stack, "ebra") == {}
    for one in (ann, old):
        assert counts(stack, one) == {}
        refused(door.call("GET", f"{PEOPLE}/{one}"), 404, "not_found")
        refused(door.call("DELETE", f"{PEOPLE}/{one}"), 404, "not_found")
    refused(door.call("GET", f"/v1/sessions/{session}"), 404, "not_found")
    facts = stack.database.rows("SELECT content, person_id, said_by FROM pal.memory_distillates")
    assert facts == [("Told in the group.", ben, None)]
    query = "SELECT content, person_id, proposal->>'said_by' FROM pal.memory_candidates"
    assert stack.database.rows(query) == [("Ben is tall, as the group heard.", ben, None)]
    query = "SELECT lines, stale_at IS NULL FROM pal.memory_narratives WHERE group_id = 'g'"
    told = [{"text": "Told.", "sources": [ids(1)]}]
    assert stack.database.rows(query) == [(told, False)]
    assert len(door.call("GET", f"/v1/sessions/{kept}").json["messages"]) == 2
    # whoever comes with that handle is someone new
    again = door.call("POST", PEOPLE, made, headers=once)
    assert again.status == 201
    assert again.json["id"] not in (ann, old)


def test_readers_of_a_deleted_persons_session_are_told(stack: Stack) -> None:
    """Lost if red: a page that waits for ever for a session that is gone."""
    door = open_door("http", stack, stack.key)
    session = talk(door, "ann", "hello")
    ann = door.call("GET", PEOPLE + "?channel=user&handle=ann").json["people"][0]["id"]
    stream = door.stream("GET", f"/v1/sessions/{session}/events")
    stream.read_until("connected")
    assert door.call("DELETE", f"{PEOPLE}/{ann}").status == 204
    assert [one.name for one in stream.rest() if one.name == "message_delta"] == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [(1, "Ben's own", "ben", 1, "stated", 2), (2, "Ann's", "ann", 2, "stated", None)],
            [(1, None)],
            id="what-she-superseded-holds-again",
        ),
        pytest.param(
            [
                (1, "first", "ben", 1, "stated", 2),
                (2, "Ann's", "ann", 2, "stated", 3),
                (3, "last", "ben", 3, "stated", None),
            ],
            [(1, 3), (3, None)],
            id="a-chain-is-joined-again",
        ),
        pytest.param(
            [
                (1, "inferred later", "ben", 3, "inferred", 4),
                (2, "stated", "ben", 1, "stated", 4),
                (3, "observed", "ben", 2, "observed", 4),
                (4, "Ann's", "ann", 4, "stated", None),
            ],
            [(1, 2), (2, None), (3, 2)],
            id="the-best-of-several-holds",
        ),
        pytest.param(
            [(1, "one", "ann", 1, "stated", 2), (2, "two", "ann", 2, "stated", None)],
            [],
            id="a-chain-that-is-hers-alone",
        ),
        pytest.param(
            [
                (1, "first", "ben", 1, "stated", 2),
                (2, "one", "ann", 2, "stated", 3),
                (3, "two", "ann", 3, "stated", None),
            ],
            [(1, None)],
            id="behind-two-of-hers",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("about", ["ben", None])
def test_what_else_is_known_stays_whole(
    about: str | None,
    rows: list[tuple[int, str, str, int, str, int | None]],
    expected: list[tuple[int, int | None]],
    stack: Stack,
) -> None:
    """Lost if red: what others said themselves, with the one who spoke of them last."""
    door = open_door("http", stack, stack.key)
    known = {"ann": person(door, ANN), "ben": person(door, BEN)}
    for number, content, by, day, origin, successor in sorted(rows, reverse=True):
        put(
            stack,
            number,
            content,
            about=about and known[about],
            by=known[by],
            day=day,
            origin=origin,
            successor=successor,
        )
    assert door.call("DELETE", f"{PEOPLE}/{known['ann']}").status == 204
    left = stack.database.rows(
        "SELECT id, superseded_by, superseded_at IS NULL FROM pal.memory_distillates ORDER BY id"
    )
    assert left == [(ids(n), end and ids(end), end is None) for n, end in expected]


def test_another_persons_facts_in_a_group_are_apart(stack: Stack) -> None:
    """Lost if red: a fact of no one in one group, in the chain of another group."""
    door = open_door("http", stack, stack.key)
    ann, ben = person(door, ANN), person(door, BEN)
    put(stack, 2, "Ann's, of no one.", about=None, by=ann)
    put(stack, 1, "before it", about=None, by=ben, successor=2)
    put(stack, 3, "in a group", about=None, by=ann, group="g")
    assert door.call("DELETE", f"{PEOPLE}/{ann}").status == 204
    left = stack.database.rows("SELECT id, superseded_by, said_by FROM pal.memory_distillates")
    assert sorted(left) == [(ids(1), None, ben), (ids(3), None, None)]


def test_delete_waits_for_a_writer_and_the_writer_not_for_it(stack: Stack) -> None:
    """Lost if red: a pass, to a deadlock with the deletion of one of its people."""
    door = open_door("http", stack, stack.key)
    ann, ben = person(door, ANN), person(door, BEN)
    put(stack, 1, "Jack hates football.", about=None, by=ann)
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as held:
        held.execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        held.execute("SELECT FROM people WHERE id = %s FOR NO KEY UPDATE", (ann,))
        with ThreadPoolExecutor(1) as pool:
            deleted = pool.submit(door.call, "DELETE", f"{PEOPLE}/{ann}")
            until(lambda: stack.database.one(waiting, stack.database.name) == 1)
            held.execute("INSERT INTO memory_passes (tenant_id) VALUES (pal.tenant())")
            # what Ann told of Ben meanwhile goes with her as well
            held.execute(*_told_of(ben, ann))
            held.commit()
            assert deleted.result(20).status == 204
    assert stack.database.rows("SELECT id FROM pal.memory_distillates") == []


def _told_of(about: str, by: str) -> tuple[LiteralString, tuple[str, ...]]:
    return (
        "INSERT INTO memory_distillates (id, tenant_id, person_id, said_by, topic, topic_key,"
        " content, confidence, origin, source_kind, said_at) VALUES"
        " (%s, pal.tenant(), %s, %s, 'home', 'home', 'Lyon', 0.9, 'observed', 'events', now())",
        (ids(2), about, by),
    )


def test_delete_that_was_cut_off_goes_on(stack: Stack) -> None:
    """Lost if red: a person of whom half is left, whom no call can delete any more."""
    door = open_door("http", stack, stack.key)
    ann = person(door, ANN)
    say(door, ANN, "still here")
    talk(door, "ann", "and here")
    stack.database.rows(
        "CREATE FUNCTION pal.no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'query_canceled'; END $$"
    )
    stack.database.rows(
        "CREATE TRIGGER no BEFORE DELETE ON pal.memory_events FOR EACH ROW"
        " WHEN (OLD.session_id IS NULL) EXECUTE FUNCTION pal.no()"
    )
    refused(door.call("DELETE", f"{PEOPLE}/{ann}"), 503)
    assert door.call("GET", f"{PEOPLE}/{ann}").json["handles"] == []
    stack.database.rows("DROP TRIGGER no ON pal.memory_events")
    assert door.call("DELETE", f"{PEOPLE}/{ann}").status == 204
    assert counts(stack, ann) == {}


def test_person_of_many_events_is_deleted_in_pieces(stack: Stack) -> None:
    """Lost if red: a statement that runs out of time, for whoever has said the most."""
    door = open_door("http", stack, stack.key)
    ann = person(door, ANN)
    stack.database.rows(
        "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, person_id,"
        " content) SELECT 'evt_' || lpad(n::text, 26, '0'), %s, now(), 'c', 'k', %s, 'x'"
        " FROM generate_series(1, 4100) n",
        stack.tenant,
        ann,
    )
    assert door.call("DELETE", f"{PEOPLE}/{ann}").status == 204
    assert stack.database.one("SELECT count(*) FROM pal.memory_events") == 0
