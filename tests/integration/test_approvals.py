"""Approvals: nothing gated runs without a person's yes to just that call, and then it runs once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chalicelib.sessions.lifecycle import NewMessage
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.fakes.tool_server import Answer, ToolServer
from tests.integration.test_turns import expire_lease, transcript
from tests.support.agents import (
    calls_of,
    data_of,
    make_agent,
    names,
    new_session,
    note_tool,
    sent,
    turn,
)
from tests.support.http import Event, HttpClient
from tests.support.stack import Stack
from tests.support.waiting import until

DELETE = Call("delete_note", {"id": "7"})


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture
def tooled(make_stack: Callable[..., Stack], tools: ToolServer) -> Stack:
    return make_stack(tool_private_hosts=(tools.host,))


@pytest.fixture
def http(tooled: Stack) -> HttpClient:
    return tooled.http()


@pytest.fixture
def session(http: HttpClient, tools: ToolServer) -> str:
    return make_agent(http, note_tool(tools), note_tool(tools, "delete_note", approval="always"))


def pending(http: HttpClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.call("GET", "/v1/approvals?status=pending").json["approvals"]
    return found


def ask(
    http: HttpClient, provider: FakeOpenAI, session: str, *calls: Call, text: str = ""
) -> list[Event]:
    """A turn that stops for these calls."""
    pieces = [text] if text else None
    provider.script(Reply(pieces=pieces, tool_calls=calls or [DELETE], usage=(10, 5)))
    return turn(http, session, "delete note 7")


def decide(http: HttpClient, approval: str, decision: str = "approve", **more: Any) -> Any:
    return http.call("POST", f"/v1/approvals/{approval}", {"decision": decision}, **more)


def decided_turn(http: HttpClient, session: str, approval: str, decision: str) -> list[Event]:
    """Decide, and follow the turn that goes on."""
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    events.read_until("connected")
    reply = decide(http, approval, decision)
    assert reply.status == 200, reply.body
    seen = events.read_until("message_completed")
    events.close()
    assert seen[-1].data["turnId"] == reply.json["turnId"]
    return seen


def test_a_gated_call_ends_the_turn_and_asks(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the reason why one can give an agent a tool that deletes."""
    events = ask(http, provider, session, text="I will delete it.")
    assert names(events)[2:] == ["approval_required", "message_completed"]
    (asked,) = data_of(events, "approval_required")
    assert (asked["name"], asked["arguments"]) == ("delete_note", {"id": "7"})
    end = events[-1].data
    assert (end["text"], end["finishReason"]) == ("I will delete it.", "awaiting_approval")
    assert end["usage"]["tokensIn"] == 10
    assert tools.asked == []
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "awaiting_approval"
    (approval,) = pending(http)
    assert approval["id"] == asked["approvalId"]
    assert approval["callId"] == asked["callId"]
    assert approval["arguments"] == {"id": "7"}
    assert approval["expiresAt"] > approval["createdAt"]
    (call,) = calls_of(http, session)
    assert (call["status"], call["approvalId"]) == ("pending", approval["id"])


def test_approving_goes_on_where_it_stopped(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the yes, and the user's work up to it."""
    stopped = ask(http, provider, session)[-1].data["turnId"]
    (approval,) = pending(http)
    tools.on("/delete_note", Answer(pieces=[b"gone"]))
    provider.script(Reply(pieces=["It is deleted."]))
    seen = decided_turn(http, session, approval["id"], "approve")
    assert [one for one in names(seen) if one != "connected"] == [
        "approval_decided",
        "turn_started",
        "tool_call_started",
        "tool_call_completed",
        "message_completed",
    ]
    assert data_of(seen, "turn_started")[0]["resumesTurnId"] == stopped
    assert [one.json for one in tools.asked] == [{"id": "7"}]
    assert sent(provider.requests[-1].body) == [
        ("user", "delete note 7"),
        ("assistant", ["delete_note"]),
        ("tool", "gone"),
    ]
    assert calls_of(http, session)[0]["status"] == "completed"
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    assert transcript(http, session)[-1] == ("assistant", "It is deleted.")
    assert pending(http) == []


def test_a_denial_is_told_to_the_model_as_such(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the difference between a no and a breakdown, which a model would retry."""
    ask(http, provider, session)
    (approval,) = pending(http)
    provider.script(Reply(pieces=["All right."]))
    seen = decided_turn(http, session, approval["id"], "deny")
    assert "tool_call_started" not in names(seen)
    assert tools.asked == []
    role, told = sent(provider.requests[-1].body)[-1]
    assert role == "tool"
    assert '"executed": false' in told
    assert "denied" in told
    assert calls_of(http, session)[0]["status"] == "denied"
    # and the next turn is accepted with it in the history
    assert turn(http, session, "fine")[-1].name == "message_completed"


@pytest.mark.parametrize("first", ["approve", "deny"])
@pytest.mark.parametrize("second", ["approve", "deny"])
def test_a_second_decision_is_refused_and_runs_nothing(
    first: str, second: str, http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: one effect of one yes (TOL-7 b, c)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    decided_turn(http, session, approval["id"], first)
    reply = decide(http, approval["id"], second)
    status = {"approve": "approved", "deny": "denied"}[first]
    assert reply.status == 409
    assert reply.json["code"] == f"approval_{status}"
    assert len(tools.asked) == (1 if first == "approve" else 0)


def test_a_double_click_is_one_decision(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: the note, twice (TOL-7 a)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: decide(http, approval["id"]).status, range(4)))
    assert sorted(replies) == [200, 409, 409, 409]
    until(lambda: calls_of(http, session)[0]["status"] == "completed")
    assert len(tools.asked) == 1
    tooled.node.run(tooled.node.services.engine.wait_idle())
    assert tooled.database.one("SELECT count(*) FROM pal.turns") == 2


def test_a_decision_that_is_sent_again_gets_its_answer_again(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: a client's safe retry."""
    ask(http, provider, session)
    (approval,) = pending(http)
    key = {"Idempotency-Key": "click"}
    first = decide(http, approval["id"], headers=key)
    again = decide(http, approval["id"], headers=key)
    assert (first.status, again.status) == (200, 200)
    assert first.json == again.json


def test_only_the_approved_call_runs(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: that a yes to one call is none to its neighbour or to a later one (TOL-6)."""
    ask(http, provider, session, DELETE, Call("delete_note", {"id": "8"}))
    both = {one["arguments"]["id"]: one for one in pending(http)}
    assert set(both) == {"7", "8"}
    provider.script(Reply(pieces=["one is gone"]))
    decided_turn(http, session, both["7"]["id"], "approve")
    assert [one.json for one in tools.asked] == [{"id": "7"}]
    told = sent(provider.requests[-1].body)
    assert [role for role, _ in told] == ["user", "assistant", "tool", "tool"]
    assert "NOT" in told[3][1]
    assert [one["arguments"]["id"] for one in pending(http)] == ["8"]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "awaiting_approval"
    # the same tool asks again in a later turn, also with the arguments that were approved once
    assert "approval_required" in names(ask(http, provider, session, DELETE))
    assert len(tools.asked) == 1


def test_one_yes_and_one_no_are_both_told(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: the next turn, which a vendor refuses when a call has no result (TOL-7 d)."""
    ask(http, provider, session, DELETE, Call("delete_note", {"id": "8"}))
    both = {one["arguments"]["id"]: one["id"] for one in pending(http)}
    provider.script(Reply(pieces=["a"]), Reply(pieces=["b"]))
    decide(http, both["7"], "approve")
    decide(http, both["8"], "deny")
    until(lambda: {one["status"] for one in calls_of(http, session)} == {"completed", "denied"})
    tooled.node.run(tooled.node.services.engine.wait_idle())
    assert [one.json for one in tools.asked] == [{"id": "7"}]
    assert turn(http, session, "next")[-1].name == "message_completed"
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"


def test_a_message_that_comes_meanwhile_is_answered(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the conversation, for as long as no one decides (TOL-5)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    provider.script(Reply(pieces=["noon"]))
    events = turn(http, session, "what time is it?")
    assert events[-1].data["text"] == "noon"
    told = sent(provider.requests[-1].body)
    assert [role for role, _ in told] == ["user", "assistant", "tool", "user"]
    assert "NOT" in told[2][1]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "awaiting_approval"
    # it stayed open, and what came of it is told behind what was said since
    tools.on("/delete_note", Answer(pieces=[b"gone at last"]))
    provider.script(Reply(pieces=["Deleted."]))
    decided_turn(http, session, approval["id"], "approve")
    assert len(tools.asked) == 1
    told = sent(provider.requests[-1].body)
    assert [role for role, _ in told] == ["user", "assistant", "tool", "user", "assistant", "user"]
    assert "NOT" in told[2][1]
    assert "gone at last" in told[-1][1]
    assert turn(http, session, "thanks")[-1].name == "message_completed"


def test_a_turn_that_asks_anew_supersedes_what_was_open(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a late yes to something that the conversation has left behind (TOL-5)."""
    ask(http, provider, session)
    (old,) = pending(http)
    ask(http, provider, session, Call("delete_note", {"id": "9"}))
    (new,) = pending(http)
    assert new["arguments"] == {"id": "9"}
    late = decide(http, old["id"])
    assert (late.status, late.json["code"]) == (409, "approval_superseded")
    assert tools.asked == []
    assert [one["status"] for one in calls_of(http, session)] == ["superseded", "pending"]
    decided_turn(http, session, new["id"], "approve")
    assert [one.json for one in tools.asked] == [{"id": "9"}]


def test_an_approval_that_no_one_decides_expires(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: the end of an old question, and the model's knowledge of it (TOL-5)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    events.read_until("connected")
    tooled.database.rows("UPDATE pal.approvals SET expires_at = now() - interval '1 second'")
    assert pending(http) == [], "it counts as expired before the sweep has come by"
    late = decide(http, approval["id"])
    assert (late.status, late.json["code"]) == (409, "approval_expired")
    tooled.node.sweep()
    told = events.read_until("approval_decided")[-1].data
    events.close()
    assert (told["approvalId"], told["decision"]) == (approval["id"], "expired")
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    assert calls_of(http, session)[0]["status"] == "expired"
    assert decide(http, approval["id"]).status == 409
    assert turn(http, session, "hello")[-1].name == "message_completed"
    roles = [role for role, _ in sent(provider.requests[-1].body)]
    assert roles == ["user", "assistant", "tool", "user"]
    assert '"executed": false' in sent(provider.requests[-1].body)[2][1]
    assert tools.asked == []


def test_a_stopped_session_takes_no_decision(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: that stop means stop."""
    ask(http, provider, session)
    (approval,) = pending(http)
    assert http.call("POST", f"/v1/sessions/{session}/stop").status == 200
    late = decide(http, approval["id"])
    assert (late.status, late.json["code"]) == (409, "approval_superseded")
    assert tools.asked == []


def test_a_decision_is_carried_out_by_another_process_after_a_restart(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: a yes that came just before a deploy."""
    ask(http, provider, session)
    (approval,) = pending(http)

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    tooled.node.services.sessions.dispatch = nowhere
    assert decide(http, approval["id"]).status == 200
    assert tools.asked == []
    other = tooled.another_node()
    assert other.sweep() == 1
    until(lambda: calls_of(http, session)[0]["status"] == "completed")
    assert len(tools.asked) == 1


def test_a_process_that_dies_in_an_approved_call_does_not_run_it_again(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: the second deletion for one yes (TOL-7 e)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    tools.on("/delete_note", Answer(hold_at=0))
    decide(http, approval["id"])
    until(lambda: len(tools.asked) == 1)
    other = tooled.another_node()
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    expire_lease(tooled)
    other.sweep()
    events.read_until("message_completed")
    events.close()
    assert len(tools.asked) == 1
    assert calls_of(http, session)[0]["status"] == "unknown"
    assert "unknown" in sent(provider.requests[-1].body)[2][1]
    assert turn(http, session, "next")[-1].name == "message_completed"


def test_what_is_changed_between_the_yes_and_the_call_is_not_run(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: that what runs is what was shown (TOL-6)."""
    ask(http, provider, session)
    (approval,) = pending(http)
    tooled.database.rows('UPDATE pal.tool_calls SET arguments = \'{"id":"8"}\'')
    decided_turn(http, session, approval["id"], "approve")
    assert tools.asked == []
    assert calls_of(http, session)[0]["status"] == "failed"


def test_an_invalid_call_is_not_put_to_a_person(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: a person's time, for what could not be run anyway."""
    provider.script(Reply(tool_calls=[Call("delete_note", {"id": 7})]), Reply(pieces=["hm"]))
    assert turn(http, session, "go")[-1].data["text"] == "hm"
    assert pending(http) == []


def test_calls_beside_a_gated_one_run_at_once(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a reading that waits a day for a deletion's yes."""
    tools.on("/read_note", Answer(pieces=[b"text"]))
    events = ask(http, provider, session, Call("read_note", {"id": "7"}), DELETE)
    assert names(events)[2:] == [
        "tool_call_started",
        "tool_call_completed",
        "approval_required",
        "message_completed",
    ]
    (approval,) = pending(http)
    decided_turn(http, session, approval["id"], "approve")
    told = sent(provider.requests[-1].body)
    assert [role for role, _ in told] == ["user", "assistant", "tool", "tool"]
    assert told[2][1] == "text"
    assert [one.path for one in tools.asked] == ["/read_note", "/delete_note"]


def test_a_decision_and_a_message_go_into_one_turn(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: either of two things that a person did while a turn was running."""
    ask(http, provider, session)
    (approval,) = pending(http)
    tools.on("/delete_note", Answer(pieces=[b"gone"]))
    slow = Reply(pieces=["noon"], hold_at=0)
    provider.script(slow, Reply(pieces=["both"]))
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "time?"})
    assert slow.started.wait(10)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    first = decide(http, approval["id"]).json["turnId"]
    second = http.call("POST", f"/v1/sessions/{session}/messages", {"content": "and?"}).json
    assert second["turnId"] == first
    slow.gate.set()
    events.read_until("message_completed")
    assert events.read_until("message_completed")[-1].data["text"] == "both"
    events.close()
    assert len(tools.asked) == 1
    last = sent(provider.requests[-1].body)[-1]
    assert last[0] == "user"
    assert "gone" in last[1]
    assert last[1].endswith("and?")


def test_hints_of_the_turn_that_stopped_hold_when_it_goes_on(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: the same instructions before and behind the yes."""
    provider.script(Reply(tool_calls=[DELETE]))
    turn(http, session, "go", systemHint="Speak Latin.")
    (approval,) = pending(http)
    decided_turn(http, session, approval["id"], "approve")
    first, second = (one.body["messages"][0]["content"] for one in provider.requests)
    assert first == second
    assert "Speak Latin." in second


def test_a_cancel_that_comes_as_the_turn_stops_leaves_no_approval(
    http: HttpClient, session: str, provider: FakeOpenAI, tooled: Stack
) -> None:
    """Lost if red: a question that no one asked any more."""
    held = Reply(tool_calls=[DELETE], hold_at=0)
    provider.script(held)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
    assert held.started.wait(10)
    # not told to the engine, as if it came from another process between two of its looks
    tooled.database.rows("UPDATE pal.session_heads SET cancel_requested = true")
    held.gate.set()
    end = stream.rest()[-1]
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")
    assert pending(http) == []
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"


def test_approvals_are_listed_newest_first_in_pages(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: the older questions, where there are many."""
    sessions = [session, new_session(http), new_session(http)]
    for one in sessions:
        ask(http, provider, one)
    first = http.call("GET", "/v1/approvals?pageSize=2")
    assert [one["sessionId"] for one in first.json["approvals"]] == sessions[:0:-1]
    token = first.headers["x-next-page-token"]
    rest = http.call("GET", f"/v1/approvals?pageSize=2&pageToken={token}")
    assert [one["sessionId"] for one in rest.json["approvals"]] == [session]
    assert "x-next-page-token" not in rest.headers
    mine = http.call("GET", f"/v1/approvals?sessionId={session}").json["approvals"]
    assert [one["sessionId"] for one in mine] == [session]


def test_deleting_the_session_takes_its_approvals_along(
    http: HttpClient, session: str, provider: FakeOpenAI, tooled: Stack
) -> None:
    """Lost if red: that deleted means gone."""
    ask(http, provider, session)
    (approval,) = pending(http)
    assert http.call("DELETE", f"/v1/sessions/{session}").status == 204
    assert pending(http) == []
    assert decide(http, approval["id"]).status == 404
    for table in ("approvals", "tool_calls", "turn_rounds"):
        assert tooled.database.one(f"SELECT count(*) FROM pal.{table}") == 0


def test_a_decision_is_accepted_beside_a_session_that_was_interrupted(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: both the question and the messages that a crash had cut."""
    ask(http, provider, session)
    (approval,) = pending(http)
    for _ in range(2):
        hung = Reply(hang=True)
        provider.script(hung)
        if not tooled.database.one("SELECT cuts FROM pal.session_heads"):
            tooled.node.run(
                tooled.node.services.sessions.post(
                    tooled.caller, session, NewMessage(content="hello?")
                )
            )
        assert hung.started.wait(10)
        expire_lease(tooled)
        tooled.node.sweep()
    until(lambda: http.call("GET", f"/v1/sessions/{session}").json["status"] == "interrupted")
    provider.script(Reply(pieces=["both are done"]))
    decided_turn(http, session, approval["id"], "approve")
    assert len(tools.asked) == 1
    assert transcript(http, session)[-1] == ("assistant", "both are done")


def test_a_cancel_before_the_claim_of_a_decided_turn_is_the_end_of_it(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer, tooled: Stack
) -> None:
    """Lost if red: the truth of a call that was approved and then called off."""
    ask(http, provider, session)
    (approval,) = pending(http)

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    usual, tooled.node.services.sessions.dispatch = tooled.node.services.sessions.dispatch, nowhere
    decide(http, approval["id"])
    assert http.call("POST", f"/v1/sessions/{session}/cancel").status == 200
    tooled.node.services.sessions.dispatch = usual
    tooled.node.sweep()
    until(lambda: calls_of(http, session)[0]["status"] == "failed")
    assert tools.asked == []
    assert turn(http, session, "next")[-1].name == "message_completed"
    told = sent(provider.requests[-1].body)
    assert [role for role, _ in told] == ["user", "assistant", "tool", "user"]
    assert '"executed": false' in told[2][1]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param('{"id": "7", "n": 18446744073709551616}', id="over-64-bits"),
        pytest.param('{"id": "7", "n": ' + "[" * 260 + "]" * 260 + "}", id="nested-deep"),
        pytest.param('{"id": "7", "n": ' + "[" * 700 + "]" * 700 + "}", id="nested-deeper"),
    ],
)
def test_arguments_that_nothing_can_carry_are_told_to_the_model(
    arguments: str, http: HttpClient, session: str, provider: FakeOpenAI, tooled: Stack
) -> None:
    """Lost if red: the session for good, as each later turn takes the poisoned round up again."""
    provider.script(Reply(tool_calls=[Call("delete_note", arguments)]), Reply(pieces=["sorry"]))
    events = turn(http, session, "go")
    assert events[-1].data["text"] == "sorry"
    assert "tool_call_failed" in names(events)
    assert pending(http) == []
    assert turn(http, session, "next")[-1].name == "message_completed"


def test_a_superseded_call_is_told_to_the_model_as_not_done(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: a model that waits for a decision which cannot come any more."""
    ask(http, provider, session)
    ask(http, provider, session, Call("delete_note", {"id": "9"}))
    (new,) = pending(http)
    decided_turn(http, session, new["id"], "deny")
    told = str(sent(provider.requests[-1].body))
    assert "took its place" in told
    assert turn(http, session, "next")[-1].name == "message_completed"


def test_a_turn_that_would_ask_in_a_stopped_session_asks_no_one(
    http: HttpClient, session: str, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a question that is open for a day and takes no answer."""
    held = Reply(tool_calls=[DELETE], hold_at=0)
    provider.script(held)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
    assert held.started.wait(10)
    assert http.call("POST", f"/v1/sessions/{session}/stop").status == 200
    held.gate.set()
    events = stream.rest()
    assert "approval_required" not in names(events)
    assert (events[-1].name, events[-1].data["finishReason"]) == ("message_completed", "stop")
    assert pending(http) == []
    (call,) = calls_of(http, session)
    assert call["status"] == "failed"
    assert '"executed": false' in call["result"]
    assert tools.asked == []


def test_only_the_hints_of_the_last_turn_that_had_any_hold(
    http: HttpClient, session: str, provider: FakeOpenAI
) -> None:
    """Lost if red: the tools of a turn, for what was asked of an older one."""
    look = {"kind": "builtin", "name": "current_time"}
    gated = {**note_tool_of(http), "approval": "always"}
    http.call("PUT", "/v1/agents/clerk", {"name": "clerk", "tools": [look, gated]})
    provider.script(Reply(tool_calls=[DELETE]))
    turn(http, session, "first")
    (approval,) = pending(http)
    slow = Reply(pieces=["noon"], hold_at=0)
    provider.script(slow, Reply(tool_calls=[DELETE]), Reply(pieces=["done"]))
    http.call(
        "POST", f"/v1/sessions/{session}/messages", {"content": "second", "readOnlyTools": True}
    )
    assert slow.started.wait(10)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    decide(http, approval["id"])
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "third"})
    slow.gate.set()
    events.read_until("message_completed")
    events.read_until("message_completed")
    events.close()
    (approval,) = pending(http)
    decided_turn(http, session, approval["id"], "approve")
    offered = [one["function"]["name"] for one in provider.requests[-1].body["tools"]]
    assert offered == ["current_time", "delete_note"]


def note_tool_of(http: HttpClient) -> dict[str, Any]:
    """The agent's tool that deletes."""
    tools: list[dict[str, Any]] = http.call("GET", "/v1/agents/clerk").json["tools"]
    return next(one for one in tools if one["name"] == "delete_note")
