"""`Idempotency-Key`: the same POST within a day has one effect and one answer. Every way in."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import new_session, refused
from tests.support.doors import Door, HttpDoor
from tests.support.http import PATIENCE, text_of
from tests.support.http import Reply as Answered
from tests.support.stack import Stack

USER_MESSAGES = "SELECT count(*) FROM pal.messages WHERE session_id = %s AND role = 'user'"
TURNS = "SELECT count(*) FROM pal.turns WHERE session_id = %s"
KEPT = "SELECT count(*) FROM pal.idempotency_keys"


def key(name: str, **more: str) -> dict[str, str]:
    """Headers with this idempotency key."""
    return {"Idempotency-Key": name, **more}


def is_replay(reply: Answered) -> bool:
    return reply.headers.get("idempotent-replayed") == "true"


def settle(stack: Stack) -> None:
    """Until no turn runs."""
    stack.node.run(stack.node.services.engine.wait_idle())


def test_the_same_call_gets_the_first_answer_again(door: Door, stack: Stack) -> None:
    """Lost if red: a client that may retry what it does not know to have arrived."""
    session = new_session(door)
    path = f"/v1/sessions/{session}"
    for name, url, body in (
        ("create", "/v1/sessions", {"agentName": "guide", "metadata": {"a": [1]}}),
        ("post", f"{path}/messages", {"content": "hello"}),
        ("cancel", f"{path}/cancel", None),
        ("stop", f"{path}/stop", None),
    ):
        first = door.call("POST", url, body, headers=key(name))
        assert first.status < 300, first.body
        assert not is_replay(first)
        settle(stack)
        for _ in range(2):
            again = door.call("POST", url, body, headers=key(name))
            assert (again.status, again.json) == (first.status, first.json), name
            assert is_replay(again)
            assert again.headers["x-request-id"]
    assert len(door.call("GET", "/v1/sessions").json) == 2
    assert stack.database.one(USER_MESSAGES, session) == 1
    assert stack.database.one(TURNS, session) == 1


def test_the_answer_is_kept_as_it_was_and_not_made_anew(
    door: Door, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: a retry that hears of another turn than the one its message is in."""
    session = new_session(door)
    path = f"/v1/sessions/{session}"
    held = Reply(hold_at=0)
    provider.script(held)
    posted = door.call("POST", f"{path}/messages", {"content": "one"}, headers=key("k"))
    assert held.held.wait(PATIENCE)
    cancelled = door.call("POST", f"{path}/cancel", headers=key("k"))
    assert cancelled.json == {"status": "cancelling", "turnId": posted.json["turnId"]}
    settle(stack)
    door.call("POST", f"{path}/stop")
    assert door.call("POST", f"{path}/messages", {"content": "one"}, headers=key("k")).json == (
        posted.json
    )
    again = door.call("POST", f"{path}/cancel", headers=key("k"))
    assert again.json == cancelled.json
    refused(door.call("POST", f"{path}/messages", {"content": "one"}, headers=key("l")), 409)


def test_a_replayed_cancel_cancels_nothing_new(
    door: Door, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the next answer, cut off by a retry that came late."""
    session = new_session(door)
    path = f"/v1/sessions/{session}"
    assert door.call("POST", f"{path}/cancel", headers=key("k")).json == {"status": "active"}
    held = Reply(hold_at=0)
    provider.script(held)
    door.call("POST", f"{path}/messages", {"content": "one"})
    assert held.held.wait(PATIENCE)
    again = door.call("POST", f"{path}/cancel", headers=key("k"))
    assert (again.json, is_replay(again)) == ({"status": "active"}, True)
    held.gate.set()
    settle(stack)
    told = door.call("GET", path).json["messages"]
    assert [one["content"] for one in told] == ["one", "echo: one"]


def test_the_same_key_with_another_body_is_a_conflict(door: Door, stack: Stack) -> None:
    """Lost if red: a message that is silently dropped for another one's answer."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    assert door.call("POST", path, {"content": "one"}, headers=key("k")).status == 202
    for headers in (key("k"), key("k", Accept="text/event-stream")):
        reply = door.call("POST", path, {"content": "two"}, headers=headers)
        refused(reply, 409, "idempotency_conflict")
        assert not is_replay(reply)
    body = {"agentName": "guide"}
    first = door.call("POST", "/v1/sessions", body, headers=key("k"))
    assert first.status == 201
    reply = door.call("POST", "/v1/sessions", {**body, "userId": "u"}, headers=key("k"))
    refused(reply, 409, "idempotency_conflict")
    assert is_replay(door.call("POST", "/v1/sessions", body, headers=key("k")))
    settle(stack)
    assert stack.database.one(USER_MESSAGES, session) == 1


def test_a_key_counts_for_one_tenant_and_one_session(door: Door, stack: Stack) -> None:
    """Lost if red: a message lost because somebody somewhere used the same key."""
    other = HttpDoor(stack, stack.other_key)
    body = {"agentName": "guide"}
    made = [
        reply.json["id"]
        for who in (door, other)
        for reply in [who.call("POST", "/v1/sessions", body, headers=key("same"))]
        if reply.status == 201 and not is_replay(reply)
    ]
    assert len(set(made)) == 2
    mine, second = made[0], new_session(door)
    content = {"content": "book a table"}
    turns = set()
    for session in (mine, second):
        reply = door.call("POST", f"/v1/sessions/{session}/messages", content, headers=key("same"))
        assert (reply.status, is_replay(reply)) == (202, False)
        turns.add(reply.json["turnId"])
    theirs = other.call("POST", f"/v1/sessions/{made[1]}/messages", content, headers=key("same"))
    assert (theirs.status, is_replay(theirs)) == (202, False)
    assert len(turns | {theirs.json["turnId"]}) == 3
    # the first tenant's key opens none of the other's sessions, known key or not
    refused(
        door.call("POST", f"/v1/sessions/{made[1]}/messages", content, headers=key("same")), 404
    )
    settle(stack)


def test_ten_at_once_are_one(door: Door, stack: Stack) -> None:
    """Lost if red: SDK-3; a table booked twice because an answer was slow."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    body = {"content": "book a table"}

    def send(n: int) -> Answered:
        accept = {"Accept": "text/event-stream"} if n % 2 else {}
        return door.call("POST", path, body, headers=key("k", **accept))

    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(send, range(10), timeout=60))
    assert {reply.status for reply in replies} == {200, 202}
    assert sum(not is_replay(reply) for reply in replies) == 1
    answers = [reply.json for reply in replies if reply.status == 202]
    assert all(answer == answers[0] for answer in answers)
    for reply in replies:
        if reply.status == 200:
            assert answers[0]["turnId"] in reply.body.decode()
            assert b"echo: book a table" in reply.body
    settle(stack)
    assert stack.database.one(USER_MESSAGES, session) == 1
    assert stack.database.one(TURNS, session) == 1

    with ThreadPoolExecutor(10) as pool:
        made = list(
            pool.map(
                lambda _: door.call("POST", "/v1/sessions", {"agentName": "x"}, headers=key("k")),
                range(10),
                timeout=60,
            )
        )
    assert {reply.status for reply in made} == {201}
    assert len({reply.json["id"] for reply in made}) == 1
    assert sum(not is_replay(reply) for reply in made) == 1


def told(events: list[Any]) -> list[tuple[str, Any]]:
    """Events without their deltas, which may be cut elsewhere, and without their ids."""
    return [(one.name, one.data) for one in events if one.name != "message_delta"]


@pytest.mark.parametrize("kind", ["http", "function-url", "rest-api"])
def test_a_dropped_stream_is_taken_up_while_its_turn_runs(
    kind: str, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: SES-5; the answer, or a second one, for who lost the network and sent again."""
    door = open_door(kind, stack, stack.key)
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    held = Reply(pieces=["one ", "two ", "three"], hold_at=2)
    provider.script(held)
    body = {"content": "count"}
    first = door.stream("POST", path, body, headers=key("k"))
    begun = first.read_until("message_delta")
    first.close()
    assert held.held.wait(PATIENCE)
    second = door.stream("POST", path, body, headers=key("k"))
    assert second.headers["idempotent-replayed"] == "true"
    before = second.read_until("message_delta")
    assert told(before) == told(begun)
    held.gate.set()
    events = before + second.rest()
    assert text_of(events) == events[-1].data["text"] == "one two three"
    assert [one.data["seq"] for one in events if one.name == "message_delta"] == list(
        range(1, sum(one.name == "message_delta" for one in events) + 1)
    )
    third = door.stream("POST", path, body, headers=key("k"))
    assert third.headers["idempotent-replayed"] == "true"
    after = third.rest()
    assert told(after) == told(events)
    assert text_of(after) == "one two three"
    assert stack.database.one(USER_MESSAGES, session) == 1
    assert len(provider.requests) == 1


def test_a_stream_that_ended_is_replayed_and_ends(
    door: Door, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the reply that was made while the client was away."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    body = {"content": "hello there"}
    first = door.stream("POST", path, body, headers=key("k")).rest()
    door.stream("POST", path, {"content": "something else"}).rest()
    again = door.stream("POST", path, body, headers=key("k"))
    assert again.headers["idempotent-replayed"] == "true"
    events = again.rest()
    assert told(events) == told(first)
    assert text_of(events) == "echo: hello there"
    posted = door.call("POST", path, body, headers=key("k"))
    assert (posted.status, is_replay(posted)) == (202, True)
    assert posted.json["turnId"] == first[-1].data["turnId"]
    # once the events have expired, the end of the turn is still told
    stack.database.rows("DELETE FROM pal.session_events")
    stack.database.rows("UPDATE pal.session_heads SET kept_seq = next_seq")
    late = door.stream("POST", path, body, headers=key("k")).rest()
    assert [one.name for one in late] == ["message_completed"]
    assert late[0].data == first[-1].data
    assert len(provider.requests) == 2


def test_a_failed_turn_is_replayed_as_what_it_was(
    door: Door, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: a retry of an answered call that runs the model again, at the user's cost."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    provider.script(Reply(status=500))
    first = door.stream("POST", path, {"content": "x"}, headers=key("k")).rest()
    assert first[-1].name == "message_error"
    again = door.stream("POST", path, {"content": "x"}, headers=key("k")).rest()
    assert told(again) == told(first)
    assert stack.database.one(USER_MESSAGES, session) == 1


def test_a_key_older_than_a_day_is_new(door: Door, stack: Stack) -> None:
    """Lost if red: keys that are never free again, or a table that only grows."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    age = "UPDATE pal.idempotency_keys SET created_at = now() - %s::interval"
    first = door.call("POST", path, {"content": "one"}, headers=key("k"))
    stack.database.rows(age, "23 hours 59 minutes")
    assert is_replay(door.call("POST", path, {"content": "one"}, headers=key("k")))
    stack.database.rows(age, "24 hours 1 minute")
    second = door.call("POST", path, {"content": "two"}, headers=key("k"))
    assert (second.status, is_replay(second)) == (202, False)
    assert second.json["messageId"] != first.json["messageId"]
    again = door.call("POST", path, {"content": "two"}, headers=key("k"))
    assert (is_replay(again), again.json) == (True, second.json)
    settle(stack)
    assert stack.database.one(USER_MESSAGES, session) == 2
    stack.database.rows(age, "24 hours 1 minute")
    stack.node.run(stack.node.services.purge())
    assert stack.database.one(KEPT) == 0


def test_answers_with_a_secret_are_not_kept(door: Door, stack: Stack) -> None:
    """Lost if red: working tokens in a table that holds nothing but answers."""
    session = new_session(door)
    body = {"sessionId": session}
    first, second = (
        door.call("POST", "/v1/stream-tokens", body, headers=key("k")) for _ in range(2)
    )
    assert (first.status, second.status) == (201, 201)
    assert first.json["token"] != second.json["token"]
    assert not is_replay(second)
    assert stack.database.one(KEPT) == 0


def test_keys_that_are_none_are_refused(door: Door, stack: Stack) -> None:
    """Lost if red: a client whose key generator is broken, and that believes itself safe."""
    session = new_session(door)
    for name in ("x" * 256, "ü", "a\tb"):
        for url, body in (
            ("/v1/sessions", {"agentName": "guide"}),
            (f"/v1/sessions/{session}/messages", {"content": "x"}),
            (f"/v1/sessions/{session}/stop", None),
            (f"/v1/sessions/{session}/cancel", None),
        ):
            reply = door.call("POST", url, body, headers=key(name))
            refused(reply, 422, "invalid_field", "Idempotency-Key")
    reply = door.call(
        "POST",
        f"/v1/sessions/{session}/messages",
        {"content": "x"},
        headers=key("ü", Accept="text/event-stream"),
    )
    refused(reply, 422, "invalid_field", "Idempotency-Key")
    assert stack.database.one(USER_MESSAGES, session) == 0
    assert len(door.call("GET", "/v1/sessions").json) == 1
    longest = "~" * 255
    for replayed in (False, True):
        made = door.call("POST", "/v1/sessions", {"agentName": "guide"}, headers=key(longest))
        assert (made.status, is_replay(made)) == (201, replayed)


def test_a_refused_call_does_not_use_its_key_up(door: Door, stack: Stack) -> None:
    """Lost if red: the message that was put right and is refused all the same."""
    tenant, strict = stack.make_tenant("strict", undefined_agents=False)
    assert tenant
    refusing = HttpDoor(stack, strict)
    refused(refusing.call("POST", "/v1/sessions", {"agentName": "x"}, headers=key("k")), 404)
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    for body in ({}, {"content": ""}, {"content": "x", "nope": 1}):
        refused(door.call("POST", path, body, headers=key("k")), 422)
    door.call("POST", f"/v1/sessions/{session}/stop")
    for _ in range(2):
        reply = door.call("POST", path, {"content": "one"}, headers=key("k"))
        refused(reply, 409, "session_stopped")
        assert not is_replay(reply)
    stack.database.rows("UPDATE pal.session_heads SET status = 'active'")
    unknown = "/v1/sessions/sess_00000000000000000000000000/messages"
    refused(door.call("POST", unknown, {"content": "one"}, headers=key("k")), 404)
    assert stack.database.one(KEPT) == 0
    posted = door.call("POST", path, {"content": "two"}, headers=key("k"))
    assert (posted.status, is_replay(posted)) == (202, False)
    settle(stack)
    assert stack.database.one(USER_MESSAGES, session) == 1
