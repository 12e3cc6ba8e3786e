"""What a tenant decides on its memory, through every way in: its policy, what it approves."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import refused
from tests.support.doors import Door
from tests.support.http import Reply as Answered
from tests.support.stack import Stack

POLICY, CANDIDATES = "/v1/memory/policy", "/v1/memory/candidates"
NOTHING = "cand_00000000000000000000000000"
ANN = {"channel": "user", "handle": "ann", "name": "Ann"}
DEFAULT: dict[str, Any] = {
    "timezone": "UTC",
    "promote": dict.fromkeys(("decision", "outcome", "commitment", "answer"), "auto"),
    "form": dict.fromkeys(("stated", "observed", "inferred"), "auto"),
    "keep_days": dict.fromkeys(("sealed", "episodic", "semantic", "narrative", "audit")),
}


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system with distillation on, and without vectors, which these tests are not about."""
    return make_stack(memory_distill=True, embeddings="off")


def ok(reply: Answered) -> Any:
    """The body of an answer with status 200."""
    assert reply.status == 200, reply.body
    return reply.json


def read_facts(door: Door, provider: FakeOpenAI, *contents: str) -> None:
    """Have Ann say these and a pass read them, a topic each."""
    one = {"channel": "chat", "kind": "message", "person": ANN, "direction": "in"}
    one |= {"occurredAt": "2026-01-05T10:00:00Z"}
    ok(
        door.call(
            "POST", "/v1/memory/events", {"events": [{**one, "content": c} for c in contents]}
        )
    )
    read = [{"topic": content, "content": content, "confidence": 0.9} for content in contents]
    provider.script(Reply(pieces=[json.dumps({"distillates": read})]))
    ok(door.call("POST", "/v1/memory/distill"))


def known(door: Door) -> dict[str, Any]:
    """The facts that hold, by their contents."""
    found = ok(door.call("GET", "/v1/memory/distillates"))["distillates"]
    return {one["content"]: one for one in found}


# ── the policy ───────────────────────────────────────────────────────────────────────────────
def test_policy_is_replaced_as_a_whole(door: Door) -> None:
    """Lost if red: what a tenant has decided, and knowing what it is."""
    assert ok(door.call("GET", POLICY)) == DEFAULT
    wanted = {
        "timezone": "asia/JAKARTA",
        "promote": {"commitment": "approve"},
        "form": {"inferred": "never"},
        "keep_days": {"sealed": 1, "audit": 36_500, "semantic": None},
    }
    stands = {
        "timezone": "Asia/Jakarta",
        "promote": {**DEFAULT["promote"], "commitment": "approve"},
        "form": {**DEFAULT["form"], "inferred": "never"},
        "keep_days": {**DEFAULT["keep_days"], "sealed": 1, "audit": 36_500},
    }
    assert ok(door.call("PUT", POLICY, wanted)) == stands
    assert ok(door.call("GET", POLICY)) == stands
    # what it shows can be put back as it is
    assert ok(door.call("PUT", POLICY, stands)) == stands
    other = {"form": {"stated": "approve"}}
    assert ok(door.call("PUT", POLICY, other))["form"] == {**DEFAULT["form"], **other["form"]}
    assert ok(door.call("PUT", POLICY, {})) == DEFAULT


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"timezone": "Mars/Olympus"}, "timezone", id="no-such-zone"),
        pytest.param({"timezone": "posix/UTC"}, "timezone", id="this-servers-own-zone"),
        pytest.param({"timezone": ""}, "timezone", id="no-zone"),
        pytest.param({"timezone": None}, "timezone", id="null"),
        pytest.param({"promote": {"decision": "maybe"}}, "promote.decision", id="no-such-word"),
        pytest.param({"promote": {"topic": "auto"}}, "promote.topic", id="no-such-kind"),
        pytest.param({"form": {"promoted": "auto"}}, "form.promoted", id="not-to-be-decided"),
        pytest.param({"keep_days": {"audit": 0}}, "keep_days.audit", id="no-day"),
        pytest.param({"keep_days": {"audit": 36_501}}, "keep_days.audit", id="too-many-days"),
        pytest.param({"keep_days": {"audit": 1.5}}, "keep_days.audit", id="half-a-day"),
        pytest.param({"keep_days": {"audit": True}}, "keep_days.audit", id="no-number"),
        pytest.param({"keep_days": {"tombstones": 3}}, "keep_days.tombstones", id="no-such-tier"),
        pytest.param({"keepDays": {}}, "keepDays", id="camel-case"),
    ],
)
def test_what_no_policy_may_say_is_named(door: Door, body: Any, field: str) -> None:
    """Lost if red: a typing error that is a policy from then on, and deletes by it."""
    answer = refused(door.call("PUT", POLICY, body), 422, "invalid_field")
    assert [one["field"] for one in answer["details"]] == [field]
    assert ok(door.call("GET", POLICY)) == DEFAULT


def test_policy_is_the_admins(stack: Stack) -> None:
    """Lost if red: what is kept of everyone, to any key that may search."""
    _, key = stack.make_key("memory", "sessions", "chats")
    door = open_door("http", stack, key)
    refused(door.call("GET", POLICY), 403, "forbidden")
    refused(door.call("PUT", POLICY, {}), 403, "forbidden")
    assert ok(door.call("GET", CANDIDATES)) == {"candidates": []}


# ── candidates ───────────────────────────────────────────────────────────────────────────────
def test_what_is_to_be_approved_is_no_memory_before(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: the person who is asked before something is remembered of them."""
    ok(door.call("PUT", POLICY, {"form": {"stated": "approve"}}))
    read_facts(door, provider, "I like tea.", "I like rye.", "I like figs.")
    assert known(door) == {}
    waiting = ok(door.call("GET", CANDIDATES + "?status=pending"))["candidates"]
    ids = {one["content"]: one["id"] for one in waiting}
    assert set(ids) == {"I like tea.", "I like rye.", "I like figs."}
    [person] = {one["person_id"] for one in waiting}
    decided = ok(
        door.call("POST", CANDIDATES, {"ids": [ids["I like tea."]], "decision": "approve"})
    )["decided"]
    assert known(door)["I like tea."]["id"] == decided[0]["memory_id"]
    body = {"ids": [ids["I like rye."]], "decision": "deny"}
    assert ok(door.call("POST", CANDIDATES, body)) == {
        "decided": [{"id": ids["I like rye."], "status": "denied"}]
    }
    assert set(known(door)) == {"I like tea."}
    by_status = {
        status: [
            one["id"]
            for one in ok(door.call("GET", f"{CANDIDATES}?status={status}&personId={person}"))[
                "candidates"
            ]
        ]
        for status in ("pending", "approved", "denied")
    }
    assert by_status == {
        "pending": [ids["I like figs."]],
        "approved": [ids["I like tea."]],
        "denied": [ids["I like rye."]],
    }
    refused(
        door.call("POST", CANDIDATES, {"ids": list(ids.values()), "decision": "approve"}),
        409,
        "already_decided",
    )
    assert set(known(door)) == {"I like tea."}


def test_candidates_are_paged(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: what waits behind the first page."""
    ok(door.call("PUT", POLICY, {"form": {"stated": "approve"}}))
    read_facts(door, provider, *(f"I like drink {n}." for n in range(5)))
    found: list[str] = []
    query: str | None = "?pageSize=2"
    while query:
        reply = door.call("GET", CANDIDATES + query)
        found += [one["id"] for one in ok(reply)["candidates"]]
        token = reply.headers.get("x-next-page-token")
        query = token and f"?pageSize=2&pageToken={token}"
    assert len(found) == 5
    assert found == sorted(set(found), reverse=True)
    refused(door.call("GET", CANDIDATES + "?pageToken=x"), 422, "invalid_field")
    refused(door.call("GET", CANDIDATES + "?status=open"), 422, "invalid_field")
    assert ok(door.call("GET", CANDIDATES + "?personId=x")) == {"candidates": []}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param({"ids": [], "decision": "approve"}, 422, id="none"),
        pytest.param({"ids": [NOTHING] * 101, "decision": "approve"}, 422, id="too-many"),
        pytest.param({"ids": [NOTHING], "decision": "perhaps"}, 422, id="no-decision"),
        pytest.param({"ids": [1], "decision": "deny"}, 422, id="no-id"),
        pytest.param({"ids": [NOTHING], "decision": "deny"}, 404, id="unknown"),
        pytest.param({"ids": ["mem_" + NOTHING[5:]], "decision": "deny"}, 404, id="another-kind"),
        pytest.param({"ids": ["\ud800"], "decision": "deny"}, 404, id="no-unicode"),
    ],
)
def test_what_cannot_be_decided_is_refused(door: Door, body: Any, status: int) -> None:
    """Lost if red: a 500 for a caller's mistake."""
    assert door.call("POST", CANDIDATES, body).status == status


def test_decision_sent_again_is_answered_again(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: a retry that is told of a conflict with itself."""
    ok(door.call("PUT", POLICY, {"form": {"stated": "approve"}}))
    read_facts(door, provider, "I like tea.")
    [one] = ok(door.call("GET", CANDIDATES))["candidates"]
    once = {"Idempotency-Key": "k"}
    body = {"ids": [one["id"]], "decision": "approve"}
    first = ok(door.call("POST", CANDIDATES, body, headers=once))
    again = door.call("POST", CANDIDATES, body, headers=once)
    assert ok(again) == first
    assert again.headers["idempotent-replayed"] == "true"
    assert ok(door.call("POST", CANDIDATES, body)) == first
    other = {**body, "decision": "deny"}
    refused(door.call("POST", CANDIDATES, other, headers=once), 409, "idempotency_conflict")


# ── what each memory tells of itself ─────────────────────────────────────────────────────────
def test_each_memory_tells_its_origin_and_who_may_see_it(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: knowing to whom it would be told, before it is."""
    read_facts(door, provider, "I like tea.")
    person = known(door)["I like tea."]["person_id"]
    for content, whose in (
        ("Closed on Fridays.", {}),
        ("The trip is in May.", {"groupId": "family"}),
        ("Likes rye.", {"personId": person, "topic": "bread"}),
    ):
        made = door.call("POST", "/v1/memory/remember", {"content": content, **whose})
        assert made.status == 201
        assert made.json["visible_to"] == known(door)[content]["visible_to"]
    facts = known(door)
    assert {content: (one["origin"], one["visible_to"]) for content, one in facts.items()} == {
        "I like tea.": ("stated", "person"),
        "Closed on Fridays.": ("stated", "tenant"),
        "The trip is in May.": ("stated", "group"),
        "Likes rye.": ("stated", "person"),
    }
    history = f"/v1/memory/distillates/{facts['I like tea.']['id']}/history"
    [one] = ok(door.call("GET", history))["distillates"]
    assert one["visible_to"] == "person"
