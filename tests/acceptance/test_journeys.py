"""What a user does, through each way in."""

from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.doors import Door
from tests.support.http import text_of
from tests.support.stack import Stack


def new_session(door: Door, **more: object) -> str:
    reply = door.call("POST", "/v1/sessions", {"agentName": "guide", **more})
    assert reply.status == 201, reply.body
    assert reply.json["status"] == "active"
    return str(reply.json["id"])


def test_conversation_streams_and_remembers(door: Door, provider: FakeOpenAI) -> None:
    """Lost if red: a conversation at all."""
    session = new_session(door)
    first = door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "Hello 你好 🌍"})
    assert first.status == 200
    events = first.rest()
    names = [event.name for event in events]
    assert names[:2] == ["user_message", "turn_started"]
    assert names[-1] == "message_completed"
    assert text_of(events) == events[-1].data["text"] == "echo: Hello 你好 🌍"
    deltas = [event for event in events if event.name == "message_delta"]
    assert [delta.data["seq"] for delta in deltas] == list(range(1, len(deltas) + 1))
    assert events[-1].data["usage"]["tokensOut"] > 0
    assert events[-1].data["finishReason"] == "stop"

    door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "again"}).rest()
    sent = provider.requests[-1].body["messages"]
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "user"]
    assert sent[1]["content"] == "Hello 你好 🌍"

    body = door.call("GET", f"/v1/sessions/{session}").json
    assert body["status"] == "active"
    assert [one["content"] for one in body["messages"]] == [
        "Hello 你好 🌍",
        "echo: Hello 你好 🌍",
        "again",
        "echo: again",
    ]


def test_posted_message_is_answered_on_the_event_stream(door: Door) -> None:
    """Lost if red: the reply to a 202."""
    session = new_session(door)
    if door.live:
        stream = door.stream("GET", f"/v1/sessions/{session}/events")
        assert stream.read_until("connected")[0].data["status"] == "active"
    posted = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "one two"})
    assert posted.status == 202
    assert posted.json["status"] == "processing"
    if not door.live:
        stream = door.stream("GET", f"/v1/sessions/{session}/events?after=0")
    events = stream.read_until("message_completed")
    stream.close()
    assert text_of(events) == "echo: one two"
    assert {event.data["turnId"] for event in events if "turnId" in event.data} == {
        posted.json["turnId"]
    }


def test_resume_loses_and_repeats_no_character(door: Door) -> None:
    """Lost if red: characters, at every reconnect."""
    session = new_session(door)
    whole = door.stream(
        "POST", f"/v1/sessions/{session}/messages", {"content": "a b c d e f g h"}
    ).rest()
    deltas = [event for event in whole if event.name == "message_delta"]
    for at, delta in enumerate(deltas):
        resumed = door.stream(
            "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": delta.id}
        )
        events = resumed.read_until("message_completed")
        resumed.close()
        assert text_of(deltas[: at + 1]) + text_of(events) == "echo: a b c d e f g h"
        seqs = [event.data["seq"] for event in events if event.name == "message_delta"]
        assert seqs == list(range(at + 2, at + 2 + len(seqs)))


def test_stop_refuses_later_messages(door: Door) -> None:
    """Lost if red: a stopped session that goes on talking."""
    session = new_session(door)
    assert door.call("POST", f"/v1/sessions/{session}/stop").json == {"status": "stopped"}
    assert door.call("POST", f"/v1/sessions/{session}/stop").json == {"status": "stopped"}
    refused = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "more"})
    assert refused.status == 409
    assert refused.json["code"] == "session_stopped"
    assert door.call("GET", f"/v1/sessions/{session}").json["status"] == "stopped"


def test_delete_takes_everything_along(door: Door, stack: Stack) -> None:
    """Lost if red: the right to have a conversation deleted."""
    session = new_session(door)
    door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "secret"}).rest()
    assert door.call("DELETE", f"/v1/sessions/{session}").status == 204
    assert door.call("GET", f"/v1/sessions/{session}").status == 404
    assert door.call("DELETE", f"/v1/sessions/{session}").status == 404
    assert door.call("GET", f"/v1/sessions/{session}/events").status == 404
    for table in ("sessions", "session_heads", "turns", "messages", "session_events"):
        assert stack.database.one(f"SELECT count(*) FROM pal.{table}") == 0


def test_provider_failure_ends_the_turn_and_the_session_goes_on(
    door: Door, provider: FakeOpenAI
) -> None:
    """Lost if red: a session that hangs after its vendor failed."""
    session = new_session(door)
    provider.script(Reply(status=500), Reply(pieces=["half", " an", " answer"], cut_after=2))
    for _ in range(2):
        events = door.stream(
            "POST", f"/v1/sessions/{session}/messages", {"content": "hello"}
        ).rest()
        assert events[-1].name == "message_error"
        assert events[-1].data["code"] == "provider_unavailable"
    body = door.call("GET", f"/v1/sessions/{session}").json
    assert body["status"] == "active"
    assert [one["role"] for one in body["messages"]] == ["user", "user"]
    events = door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "third"}).rest()
    assert events[-1].data["text"] == "echo: hello\n\nhello\n\nthird"


def test_long_session_is_cut_to_its_newest_and_paged_whole(
    door: Door, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the page of a long conversation, or its beginning."""
    session = new_session(door)
    provider.default(Reply(pieces=["So it is."]))
    for _ in range(6):
        door.stream(
            "POST", f"/v1/sessions/{session}/messages", {"content": "walk " * 39_800}
        ).rest()
    stack.database.rows(
        "UPDATE pal.messages SET content = repeat('y', 900000) WHERE role = 'assistant'"
    )
    body = door.call("GET", f"/v1/sessions/{session}").json
    assert body["messagesTruncated"] is True
    assert 0 < len(body["messages"]) < 12
    assert sum(len(one["content"]) for one in body["messages"]) <= 4 << 20
    seen: list[str] = []
    path = f"/v1/sessions/{session}/messages?pageSize=5"
    while True:
        page = door.call("GET", path)
        seen += [one["id"] for one in page.json["messages"]]
        token = page.headers.get("x-next-page-token")
        if not token:
            break
        path = f"/v1/sessions/{session}/messages?pageSize=5&pageToken={token}"
    assert len(seen) == len(set(seen)) == 12
    assert seen[-len(body["messages"]) :] == [one["id"] for one in body["messages"]]
