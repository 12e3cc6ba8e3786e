"""What is known, through every way in: distilled, listed, remembered, searched, forgotten."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.http import Reply as Answered
from tests.support.stack import Stack

EVENTS, PEOPLE = "/v1/memory/events", "/v1/people"
LIST, DISTILL = "/v1/memory/distillates", "/v1/memory/distill"
REMEMBER, SEARCH = "/v1/memory/remember", "/v1/memory/search"
NO_ONE = "per_00000000000000000000000000"
NOTHING = "mem_00000000000000000000000000"
ANN = {"channel": "user", "handle": "ann", "name": "Ann"}
SAID = "I moved to Oslo last year and I am allergic to walnuts."
OSLO = {"topic": "home city", "content": "Moved to Oslo last year.", "confidence": 0.9}
NUTS = {"topic": "allergies", "content": "Is allergic to walnuts.", "confidence": 0.95}
EVERYTHING = (
    "SELECT (SELECT count(*) FROM pal.memory_distillates),"
    " (SELECT count(*) FROM pal.memory_passes), (SELECT count(*) FROM pal.memory_forgotten)"
)
KINDS = ["http", "chalice", "function-url", "rest-api"]


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system with distillation on, and without vectors, which these tests are not about."""
    return make_stack(memory_distill=True, embeddings="off")


def say(door: Door, *contents: str, **more: Any) -> None:
    """Have Ann say these on the timeline."""
    one = {"channel": "chat", "kind": "message", "direction": "in", "person": ANN}
    one |= {"occurredAt": "2026-01-05T10:00:00Z", **more}
    batch = {"events": [{**one, "content": content} for content in contents]}
    reply = door.call("POST", EVENTS, batch)
    assert (reply.status, reply.json["inserted"]) == (200, len(contents)), reply.body


def answer(*items: dict[str, Any]) -> Reply:
    """A model's answer to a distillation."""
    return Reply(pieces=[json.dumps({"distillates": items})])


def person(door: Door) -> str:
    """Ann's id."""
    [found] = door.call("GET", PEOPLE + "?channel=user&handle=ann").json["people"]
    return str(found["id"])


def ok(reply: Answered, status: int = 200) -> Any:
    """The body of an answer with this status."""
    assert reply.status == status, reply.body
    return reply.json


def remember(door: Door, content: str, **more: Any) -> dict[str, Any]:
    """Have something remembered."""
    return dict(ok(door.call("POST", REMEMBER, {"content": content, **more}), 201))


def listed(door: Door, query: str = "") -> list[str]:
    """The contents of the facts that are listed."""
    return [one["content"] for one in ok(door.call("GET", LIST + query))["distillates"]]


# ── off ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", KINDS)
def test_off_is_answered_and_does_nothing(
    kind: str, make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: what is said to an agent whose operator wants nothing distilled from it."""
    stack = make_stack(embeddings="off")
    door = open_door(kind, stack, stack.key)
    say(door, SAID)
    assert ok(door.call("GET", LIST)) == {"enabled": False, "distillates": []}
    assert ok(door.call("GET", LIST + "?personId=x&limit=1")) == {
        "enabled": False,
        "distillates": [],
    }
    assert ok(door.call("POST", DISTILL)) == {"enabled": False, "found": 0}
    assert stack.node.run(stack.node.services.distill_due()) == 0
    assert provider.requests == []
    assert stack.database.rows(EVERYTHING) == [(0, 0, 0)]


def test_off_what_was_remembered_can_be_found_and_forgotten(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: the caller's own words, kept where no one can reach them."""
    stack = make_stack(embeddings="off")
    door = open_door("http", stack, stack.key)
    made = remember(door, "The gate code is written on the blue door.")
    [found] = ok(door.call("GET", SEARCH + "?q=gate+code"))["results"]
    assert (found["id"], found["tier"], found["source_kind"]) == (
        made["id"],
        "semantic",
        "remember",
    )
    history = ok(door.call("GET", f"{LIST}/{made['id']}/history"))["distillates"]
    assert [one["id"] for one in history] == [made["id"]]
    assert listed(door) == []
    assert door.call("DELETE", f"{LIST}/{made['id']}").status == 204
    assert ok(door.call("GET", SEARCH + "?q=gate+code")) == {"results": []}
    refused(door.call("DELETE", f"{LIST}/{made['id']}"), 404, "not_found")
    refused(door.call("GET", f"{LIST}/{made['id']}/history"), 404, "not_found")
    assert provider.requests == []


# ── a pass on demand ─────────────────────────────────────────────────────────────────────────
def test_what_was_said_becomes_known(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: memory."""
    say(door, SAID)
    provider.script(answer(OSLO, NUTS, {**NUTS, "topic": "guess", "confidence": 0.59}))
    assert ok(door.call("POST", DISTILL)) == {"enabled": True, "found": 2, "more": False}
    assert len(provider.requests) == 1
    known = ok(door.call("GET", LIST))
    assert known["enabled"] is True
    facts = {one["topic"]: one for one in known["distillates"]}
    assert set(facts) == {"home city", "allergies"}
    fact = facts["allergies"]
    assert {"id", "person_id", "topic", "content", "confidence", "source_kind", "source_ref"} | {
        "created_at",
        "updated_at",
    } <= set(fact)
    assert fact["person_id"] == person(door)
    assert (fact["content"], fact["confidence"]) == (NUTS["content"], NUTS["confidence"])
    assert fact["source_kind"] == "events"
    assert fact["source_ref"].startswith("evt_")
    # a second pass has nothing to read
    assert ok(door.call("POST", DISTILL)) == {"enabled": True, "found": 0, "more": False}
    assert len(provider.requests) == 1


def test_what_is_known_changes_and_is_forgotten(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: the old truth beside the new one, or for ever what someone wants forgotten."""
    say(door, SAID)
    provider.script(answer(OSLO, NUTS))
    door.call("POST", DISTILL)
    say(door, "These days I live in Bergen.", occurredAt="2026-02-01T10:00:00Z")
    bergen = {"topic": "Home_City", "content": "Lives in Bergen these days.", "confidence": 0.8}
    provider.script(answer(bergen))
    assert ok(door.call("POST", DISTILL))["found"] == 1
    assert sorted(listed(door)) == [NUTS["content"], bergen["content"]]
    [now] = ok(door.call("GET", LIST + "?topic=home%20city"))["distillates"]
    chain = ok(door.call("GET", f"{LIST}/{now['id']}/history"))["distillates"]
    assert [one["content"] for one in chain] == [bergen["content"], OSLO["content"]]
    assert chain[1]["superseded_by"] == now["id"]
    assert "superseded_by" not in chain[0]

    assert door.call("DELETE", f"{LIST}/{now['id']}").status == 204
    assert listed(door) == [NUTS["content"]]
    for one in chain:
        refused(door.call("GET", f"{LIST}/{one['id']}/history"), 404, "not_found")
    told = ok(door.call("GET", SEARCH + "?q=Bergen+Oslo&tiers=semantic"))["results"]
    assert [one["content"] for one in told if "Bergen" in one["content"]] == []


def test_facts_are_listed_by_what_is_asked(door: Door) -> None:
    """Lost if red: the one fact among thousands that an operator looks for."""
    ann = ok(door.call("POST", PEOPLE, {"name": "Ann"}), 201)["id"]
    for topic, content in (("pets", "Has two cats."), ("Tea", "Takes 100%_ green tea.")):
        remember(door, content, topic=topic, personId=ann)
    remember(door, "The office is closed on Fridays.")
    assert len(listed(door)) == 3
    assert listed(door, f"?personId={ann}") == ["Takes 100%_ green tea.", "Has two cats."]
    assert listed(door, f"?personId={NO_ONE}") == []
    assert listed(door, "?topic=PETS") == ["Has two cats."]
    assert listed(door, "?q=fridays") == ["The office is closed on Fridays."]
    assert listed(door, "?q=%25_") == ["Takes 100%_ green tea."]
    first = door.call("GET", LIST + "?limit=2")
    assert len(first.json["distillates"]) == 2
    token = first.headers["x-next-page-token"]
    assert listed(door, f"?limit=2&pageToken={token}") == ["Has two cats."]
    assert listed(door, f"?pageSize=2&pageToken={token}") == ["Has two cats."]
    assert "x-next-page-token" not in door.call("GET", LIST + "?limit=3").headers
    for wrong in ("0", "201", "x", "-1", "1.5", "%D9%A3"):
        refused(door.call("GET", f"{LIST}?limit={wrong}"), 422, "invalid_field", "limit")
    for wrong in ("x", "W10", "WyJ4IiwgIngiXQ", "WzEsIDJd"):
        refused(door.call("GET", f"{LIST}?pageToken={wrong}"), 422, "invalid_field", "pageToken")
    refused(door.call("GET", LIST + "?q=%00"), 422, "invalid_field", "q")


def test_passes_of_a_tenant_are_one_at_a_time(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the same talk paid for twice, and its facts written twice."""
    door = open_door("http", stack, stack.key)
    say(door, SAID)
    held = answer(OSLO)
    held.hold_at = 0
    provider.script(held)
    answers: list[Answered] = []
    first = threading.Thread(target=lambda: answers.append(door.call("POST", DISTILL)))
    first.start()
    assert held.held.wait(10)
    second = door.call("POST", DISTILL)
    refused(second, 409, "in_progress")
    assert int(second.headers["retry-after"]) > 0
    # another tenant's is its own
    other = open_door("http", stack, stack.other_key)
    assert ok(other.call("POST", DISTILL))["found"] == 0
    held.gate.set()
    first.join(20)
    assert [ok(one)["found"] for one in answers] == [1]
    assert ok(door.call("POST", DISTILL))["found"] == 0


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        pytest.param(Reply(status=500), "provider_unavailable", id="model-down"),
        pytest.param(Reply(pieces=["I will not say."]), "unreadable_answer", id="no-answer"),
    ],
)
def test_failed_pass_writes_nothing_and_is_made_again(
    reply: Reply, code: str, door: Door, provider: FakeOpenAI
) -> None:
    """Lost if red: half of what was said, or what was said while the model was away."""
    say(door, SAID)
    provider.default(reply)
    body = refused(door.call("POST", DISTILL), 502)
    assert body["code"] == code
    assert SAID not in body["error"]
    assert listed(door) == []
    provider.default(answer(OSLO))
    assert ok(door.call("POST", DISTILL)) == {"enabled": True, "found": 1, "more": False}


def test_facts_outlive_their_session_without_its_id(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: what an agent knows of its users, with the first session that is tidied away."""
    session = new_session(door, userId="ann")
    url = f"/v1/sessions/{session}"
    door.stream("POST", f"{url}/messages", {"content": SAID}).rest()
    provider.script(answer(NUTS))
    assert ok(door.call("POST", DISTILL))["found"] == 1
    [fact] = ok(door.call("GET", LIST))["distillates"]
    assert (fact["source_kind"], fact["source_ref"]) == ("session", session)
    assert ok(door.call("GET", SEARCH + "?q=walnuts&tiers=episodic"))["results"]
    assert door.call("DELETE", url).status == 204
    [after] = ok(door.call("GET", LIST))["distillates"]
    assert after == {name: value for name, value in fact.items() if name != "source_ref"}
    assert ok(door.call("GET", SEARCH + "?q=walnuts&tiers=episodic"))["results"] == []


# ── remember ─────────────────────────────────────────────────────────────────────────────────
def test_what_a_caller_has_remembered_is_found(door: Door) -> None:
    """Lost if red: the one thing that a caller says is to be kept."""
    ann = ok(door.call("POST", PEOPLE, {"name": "Ann"}), 201)["id"]
    once = {"Idempotency-Key": "k"}
    body = {"content": "  Prefers the window seat. ", "topic": " seat ", "personId": ann}
    reply = door.call("POST", REMEMBER, body, headers=once)
    made = ok(reply, 201)
    assert (made["content"], made["topic"]) == ("Prefers the window seat.", "seat")
    assert (made["person_id"], made["source_kind"], made["confidence"]) == (ann, "remember", 1.0)
    assert made["id"].startswith("mem_")
    again = door.call("POST", REMEMBER, body, headers=once)
    assert (again.status, again.json) == (201, made)
    assert again.headers["idempotent-replayed"] == "true"
    other = {**body, "content": "Prefers the aisle."}
    refused(door.call("POST", REMEMBER, other, headers=once), 409, "idempotency_conflict")
    [found] = ok(door.call("GET", f"{SEARCH}?q=window&personId={ann}"))["results"]
    assert (found["id"], found["person_id"]) == (made["id"], ann)

    ben = ok(door.call("POST", PEOPLE, {"name": "Ben"}), 201)["id"]
    assert door.call("POST", PEOPLE + "/merge", {"from": ann, "into": ben}).status == 200
    later = remember(door, "Prefers the aisle.", topic="Seat", personId=ann)
    assert later["person_id"] == ben
    assert listed(door, f"?personId={ann}") == ["Prefers the aisle."]
    [found] = ok(door.call("GET", f"{SEARCH}?q=aisle&personId={ann}"))["results"]
    assert found["id"] == later["id"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        pytest.param({}, 422, "content", id="nothing"),
        pytest.param({"content": " \n\t "}, 422, "content", id="blank"),
        pytest.param({"content": "\x1c"}, 422, "content", id="odd-blank"),
        pytest.param({"content": "x" * 2_001}, 422, "content", id="long"),
        pytest.param({"content": "a\x00"}, 422, "content", id="nul"),
        pytest.param({"content": "\ud800"}, 422, "content", id="surrogate"),
        pytest.param({"content": 1}, 422, "content", id="number"),
        pytest.param({"content": "x", "topic": " "}, 422, "topic", id="blank-topic"),
        pytest.param({"content": "x", "topic": "_ _"}, 422, "topic", id="no-topic"),
        pytest.param({"content": "x", "topic": "t" * 81}, 422, "topic", id="long-topic"),
        pytest.param({"content": "x", "groupId": ""}, 422, "groupId", id="empty-group"),
        pytest.param({"content": "x", "person_id": NO_ONE}, 422, "person_id", id="snake-case"),
        pytest.param({"content": "x", "confidence": 1}, 422, "confidence", id="unknown-field"),
        pytest.param({"content": "x", "personId": NO_ONE}, 404, "", id="unknown-person"),
        pytest.param({"content": "x", "personId": "x"}, 404, "", id="no-person"),
        pytest.param({"content": "My password is hunter2-horse"}, 422, "content", id="secret"),
    ],
)
def test_what_cannot_be_remembered_is_refused(
    body: Any, status: int, field: str, stack: Stack
) -> None:
    """Lost if red: a 500, or a fact that says nothing."""
    refused(stack.http().call("POST", REMEMBER, body), status, field=field)
    assert stack.database.one("SELECT count(*) FROM pal.memory_distillates") == 0


def test_longest_texts_are_remembered_whole(stack: Stack) -> None:
    """Lost if red: an off-by-one that cuts what was promised."""
    door = open_door("http", stack, stack.key)
    content, topic = "ä" * 1_999 + "👍", "Ж" * 80
    made = remember(door, content, topic=topic, groupId="g")
    assert (made["content"], made["topic"]) == (content, topic)


# ── search ───────────────────────────────────────────────────────────────────────────────────
def test_what_was_said_and_what_is_known_are_found(door: Door) -> None:
    """Lost if red: the shape that clients read, or the filters that keep two groups apart."""
    say(door, "The ferry to Stavanger leaves at nine.", groupId="family", externalId="m-1")
    say(door, "The ferry was late.", groupId="work", occurredAt="2026-03-01T08:00:00Z")
    remember(door, "Gets seasick on any ferry.", topic="ferry", personId=person(door))
    found = ok(door.call("GET", SEARCH + "?q=ferry"))["results"]
    assert len(found) == 3
    assert {"tier", "id", "content", "score", "occurred_at", "source_kind"} <= set(found[0])
    assert {one["tier"] for one in found} == {"episodic", "semantic"}
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)

    def contents(query: str) -> list[str]:
        results = ok(door.call("GET", f"{SEARCH}?q=ferry&{query}"))["results"]
        return sorted(one["content"] for one in results)

    [told] = ok(door.call("GET", SEARCH + "?q=ferry&groupId=family"))["results"]
    assert (told["externalId"], told["person_id"]) == ("m-1", person(door))
    assert told["occurred_at"].startswith("2026-01-05T10:00:00")
    assert contents("tiers=semantic") == ["Gets seasick on any ferry."]
    assert len(contents("tiers=episodic,narrative")) == 2
    assert contents("tiers=episodic&since=2026-02-01T00:00:00Z") == ["The ferry was late."]
    assert contents("tiers=episodic&until=2026-02-01T00:00:00%2B01:00") == [
        "The ferry to Stavanger leaves at nine."
    ]
    assert len(contents("limit=1")) == 1
    assert len(contents(f"personId={person(door)}")) == 3


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        pytest.param("", 422, "q", id="no-query"),
        pytest.param("?q=", 422, "q", id="empty"),
        pytest.param("?q=%20%09", 422, "q", id="blank"),
        pytest.param("?q=a%00", 422, "q", id="nul"),
        pytest.param("?q=" + "x" * 2_001, 422, "q", id="long"),
        pytest.param("?q=x&tiers=episodic,all", 422, "tiers", id="unknown-tier"),
        pytest.param("?q=x&limit=0", 422, "limit", id="none"),
        pytest.param("?q=x&limit=201", 422, "limit", id="too-many"),
        pytest.param("?q=x&limit=ten", 422, "limit", id="word"),
        pytest.param("?q=x&since=yesterday", 422, "since", id="no-time"),
        pytest.param("?q=x&until=2026-01-01", 422, "until", id="date"),
        pytest.param(
            "?q=x&since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", 422, "until", id="swapped"
        ),
        pytest.param(f"?q=x&personId={NO_ONE}", 404, "", id="unknown-person"),
        pytest.param("?q=x&personId=x", 404, "", id="no-person"),
        pytest.param("?q=x&groupId=%00", 422, "groupId", id="bad-group"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    query: str, status: int, field: str, stack: Stack
) -> None:
    """Lost if red: an answer to another question than the one that was asked."""
    refused(stack.http().call("GET", SEARCH + query), status, field=field)


@pytest.mark.parametrize("text", ["'", '"a" & !b:*', "%", "\\", "👍", "?", "a" * 2_000, "the"])
def test_any_text_can_be_searched_for(text: str, stack: Stack) -> None:
    """Lost if red: a 500 for whoever searches for a quote."""
    from urllib.parse import quote

    reply = stack.http().call("GET", f"{SEARCH}?q={quote(text)}")
    assert ok(reply) == {"results": []}


def test_index_without_vectors_says_so(door: Door) -> None:
    """Lost if red: someone who waits for vectors that no one makes."""
    reply = ok(door.call("GET", "/v1/memory/index"))
    assert reply == {"embeddings": {"model": None, "done": 0, "total": 0}}
