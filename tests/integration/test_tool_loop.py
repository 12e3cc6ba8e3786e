"""The tool loop: rounds of calls, seen, bounded, run once, whatever breaks in between."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chalicelib.db import Tx
from chalicelib.sessions import journal
from chalicelib.sessions.calls import Round
from chalicelib.sessions.rows import ClaimedTurn
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply
from tests.fakes.tool_server import Answer, Asked, ToolServer
from tests.integration.test_turns import expire_lease
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
from tests.support.stack import Stack
from tests.support.waiting import until


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture
def tooled(make_stack: Callable[..., Stack], tools: ToolServer) -> Stack:
    return make_stack(tool_private_hosts=(tools.host,))


def results(provider: FakeOpenAI, request: int) -> list[str]:
    """What this request told the model of its calls, in order."""
    messages = provider.requests[request].body["messages"]
    return [one["content"] for one in messages if one["role"] == "tool"]


def test_a_turn_with_a_tool_calls_it_and_answers_whole(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: what an agent can do beside talking."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools), systemPrompt="You keep notes.")
    tools.on("/read_note", Answer(pieces=[b"buy milk"]))
    provider.script(
        Reply(tool_calls=[Call("read_note", {"id": "7"})], usage=(10, 5)),
        Reply(pieces=["It says: buy milk."], usage=(20, 7)),
    )
    events = turn(http, session, "what does note 7 say?")
    assert names(events) == [
        "user_message",
        "turn_started",
        "tool_call_started",
        "tool_call_completed",
        "message_completed",
    ]
    (started,) = data_of(events, "tool_call_started")
    assert (started["name"], started["arguments"], started["round"]) == (
        "read_note",
        {"id": "7"},
        1,
    )
    (done,) = data_of(events, "tool_call_completed")
    assert (done["callId"], done["result"]) == (started["callId"], "buy milk")
    end = events[-1].data
    assert end["text"] == "It says: buy milk."
    assert end["finishReason"] == "stop"
    assert (end["usage"]["tokensIn"], end["usage"]["tokensOut"]) == (30, 12)
    assert [one.json for one in tools.asked] == [{"id": "7"}]
    (call,) = calls_of(http, session)
    assert call["id"] == started["callId"]
    assert (call["name"], call["status"], call["result"]) == ("read_note", "completed", "buy milk")
    first, second = provider.requests
    assert first.body["messages"][0] == {
        "role": "system",
        "content": "You keep notes.\n\nTools you may use here: read_note.",
    }
    assert not first.body.get("stream")
    assert [one["function"]["name"] for one in first.body["tools"]] == ["read_note"]
    assert sent(second.body) == [
        ("user", "what does note 7 say?"),
        ("assistant", ["read_note"]),
        ("tool", "buy milk"),
    ]
    # the next turn has it in its history
    turn(http, session, "thanks")
    assert sent(provider.requests[2].body) == [
        *sent(second.body),
        ("assistant", "It says: buy milk."),
        ("user", "thanks"),
    ]
    assert tooled.database.one("SELECT count(*) FROM pal.turn_rounds") == 0


def test_calls_of_a_round_run_side_by_side_and_keep_their_order(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the sum of the waits in place of the longest, or answers given to others."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    together = 3
    here: list[str] = []

    def answer(asked: Asked) -> Answer:
        here.append(asked.json["id"])
        return Answer(pieces=[asked.json["id"].encode()])

    tools.on("/read_note", answer)
    calls = [Call("read_note", {"id": str(n)}) for n in range(together)]
    provider.script(Reply(tool_calls=calls), Reply(pieces=["done"]))
    events = turn(http, session, "read them")
    # all had started before the first one was done
    assert names(events)[2 : 2 + together] == ["tool_call_started"] * together
    assert [one["result"] for one in calls_of(http, session)] == ["0", "1", "2"]
    told = [
        one["content"] for one in provider.requests[1].body["messages"] if one["role"] == "tool"
    ]
    assert told == ["0", "1", "2"]
    assert sorted(here) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        pytest.param(Call("read_note", {"id": 7}), "id", id="invalid-arguments"),
        pytest.param(Call("read_note", '{"id": "7'), "JSON", id="broken-arguments"),
        pytest.param(Call("fly", {}), "read_note", id="unknown-tool"),
    ],
)
def test_a_call_that_cannot_be_run_goes_back_to_the_model(
    call: Call, told: str, tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the answer, for one slip of the model's that it would have mended itself."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    provider.script(Reply(tool_calls=[call]), Reply(pieces=["sorry"]))
    events = turn(http, session, "read it")
    (failed,) = data_of(events, "tool_call_failed")
    assert told in failed["error"]
    assert events[-1].data["text"] == "sorry"
    assert tools.asked == []
    assert told in results(provider, 1)[0]


def test_a_tool_that_breaks_or_hangs_is_told_to_the_model(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the turn, and with it the session, for as long as a tool does not answer."""
    stack = make_stack(tool_private_hosts=(tools.host,))
    http = stack.http()
    session = make_agent(http, note_tool(tools), note_tool(tools, "slow_note", timeout=0.2))
    tools.on("/read_note", Answer(status=500, pieces=[b"oops"]))
    tools.on("/slow_note", Answer(hold_at=0))
    calls = [Call("read_note", {"id": "1"}), Call("slow_note", {"id": "2"})]
    provider.script(Reply(tool_calls=calls), Reply(pieces=["no luck"]))
    events = turn(http, session, "read them")
    assert len(data_of(events, "tool_call_failed")) == 2
    first, second = (one["result"] for one in calls_of(http, session))
    assert "500" in first
    assert "timed out" in second
    assert events[-1].data["text"] == "no luck"


def test_at_the_limit_of_rounds_the_model_is_asked_without_tools(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: an end, when a model goes round in circles; the user's money until then."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools), maxToolRounds=2)

    def answer(asked: Recorded) -> Reply:
        if asked.body.get("tools"):
            return Reply(tool_calls=[Call("read_note", {"id": "1"})])
        return Reply(pieces=["that is all"])

    provider.default(answer)
    events = turn(http, session, "go on")
    assert [bool(one.body.get("tools")) for one in provider.requests] == [True, True, False]
    assert len(tools.asked) == 2
    assert events[-1].data["text"] == "that is all"
    assert [one["round"] for one in calls_of(http, session)] == [1, 2]


def test_hints_narrow_the_tools_of_one_turn(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a caller's word that this once nothing may be changed."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools, readOnly=True), note_tool(tools, "delete_note"))

    def offered(index: int) -> list[str]:
        body = provider.requests[index].body
        return [one["function"]["name"] for one in body.get("tools") or ()]

    turn(http, session, "all")
    assert offered(0) == ["read_note", "delete_note"]
    provider.script(
        Reply(tool_calls=[Call("delete_note", {"id": "1"})]), Reply(pieces=["I may not"])
    )
    events = turn(http, session, "reading only", readOnlyTools=True)
    assert offered(1) == ["read_note"]
    assert "no tool delete_note" in data_of(events, "tool_call_failed")[0]["error"]
    assert tools.asked == []
    events = turn(http, session, "none", noTools=True)
    assert offered(3) == []
    assert provider.requests[3].body["stream"]
    assert "message_delta" in names(events)


def test_a_change_of_the_agent_holds_from_the_next_turn(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: knowing which agent answered."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools), systemPrompt="first")

    def change(asked: Asked) -> Answer:
        return Answer(pieces=[b"read"])

    tools.on("/read_note", change)
    held = Reply(tool_calls=[Call("read_note", {"id": "1"})], hold_at=0)
    provider.script(held, Reply(pieces=["one"]))
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
    assert held.started.wait(10)
    changed = http.call("PUT", "/v1/agents/clerk", {"name": "clerk", "systemPrompt": "second"})
    assert changed.status == 200, changed.body
    held.gate.set()
    assert stream.rest()[-1].data["text"] == "one"
    turn(http, session, "again")
    systems = [one.body["messages"][0]["content"].split()[0] for one in provider.requests]
    assert systems == ["first", "first", "second"]
    assert provider.requests[2].body["stream"], "it has no tools any more"


def test_a_failure_between_rounds_keeps_what_the_tools_have_done(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the model's knowledge that it booked the table already: it would do it again."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    tools.on("/read_note", Answer(pieces=[b"booked"]))
    provider.script(Reply(tool_calls=[Call("read_note", {"id": "1"})]), Reply(status=503))
    events = turn(http, session, "book it")
    assert events[-1].name == "message_error"
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    turn(http, session, "and?")
    assert sent(provider.requests[2].body) == [
        ("user", "book it"),
        ("assistant", ["read_note"]),
        ("tool", "booked"),
        ("user", "and?"),
    ]
    assert len(tools.asked) == 1


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_process_that_dies_in_a_call_leaves_it_unknown_and_the_turn_goes_on(
    idempotent: bool, tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a booking made twice (TOL-7 e), or an answer that never comes."""
    http = tooled.http()
    session = make_agent(
        http, note_tool(tools), note_tool(tools, "write_note", idempotent=idempotent)
    )
    tools.on("/read_note", Answer(pieces=[b"old"]))
    tools.on("/write_note", Answer(hold_at=0), Answer(pieces=[b"written"]))
    provider.script(
        Reply(tool_calls=[Call("read_note", {"id": "1"})], usage=(5, 1)),
        Reply(tool_calls=[Call("write_note", {"id": "1"})], usage=(6, 2)),
        Reply(pieces=["done"], usage=(7, 3)),
    )
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "write it"})
    until(lambda: len(tools.asked) == 2)
    other = tooled.another_node()
    expire_lease(tooled)
    other.sweep()
    ended = events.read_until("message_completed")
    events.close()
    wrote = [one for one in tools.asked if one.path == "/write_note"]
    assert len(wrote) == (2 if idempotent else 1)
    assert len(tools.asked) == len(wrote) + 1, "what was done is not done again"
    read, write = calls_of(http, session)
    assert (read["status"], read["result"]) == ("completed", "old")
    assert write["status"] == ("completed" if idempotent else "unknown")
    usage = ended[-1].data["usage"]
    assert (usage["tokensIn"], usage["tokensOut"]) == (18, 6)
    assert len(provider.requests) == 3
    told = [
        one["content"] for one in provider.requests[2].body["messages"] if one["role"] == "tool"
    ]
    assert told[0] == "old"
    assert ("unknown" in told[1]) is not idempotent
    assert [one.data["resumesTurnId"] for one in ended if one.name == "turn_started"][-1]


def test_a_cancel_ends_a_turn_in_the_middle_of_a_call(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the way out of a tool that hangs; or the truth of what it may have done."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    tools.on("/read_note", Answer(hold_at=0))
    provider.script(Reply(tool_calls=[Call("read_note", {"id": "1"})]))
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
    until(lambda: len(tools.asked) == 1)
    assert http.call("POST", f"/v1/sessions/{session}/cancel").status == 200
    end = stream.rest()[-1]
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")
    assert tooled.database.rows("SELECT status FROM pal.tool_calls") == [("unknown",)]
    turn(http, session, "and?")
    roles = [role for role, _ in sent(provider.requests[1].body)]
    assert roles == ["user", "assistant", "tool", "user"]
    assert "unknown" in sent(provider.requests[1].body)[2][1]


def test_a_giant_result_is_cut_for_the_model_and_kept_whole(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the session, whose every later turn would carry the megabyte (CTX-2)."""
    stack = make_stack(tool_private_hosts=(tools.host,), tool_result_limit=2000)
    http = stack.http()
    session = make_agent(http, note_tool(tools))
    whole = "a" * 300_000 + "z" * 300_000
    tools.on("/read_note", Answer(pieces=[whole.encode()]))
    provider.script(Reply(tool_calls=[Call("read_note", {"id": "1"})]), Reply(pieces=["long"]))
    assert turn(http, session, "read it")[-1].data["text"] == "long"
    (told,) = results(provider, 1)
    assert len(told) <= 2000
    assert told.startswith("aaa")
    assert told.endswith("zzz")
    (call,) = calls_of(http, session)
    assert call["result"] == told
    kept = http.call("GET", f"/v1/sessions/{session}/tool-calls/{call['id']}").json
    assert kept["output"] == whole
    assert kept["result"] == call["result"]
    assert (
        http.call("GET", f"/v1/sessions/{new_session(http)}/tool-calls/{call['id']}").status == 404
    )


def test_more_calls_than_a_round_may_have_are_refused_one_by_one(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a bound on what one answer of a model can set off."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    calls = [Call("read_note", {"id": str(n)}) for n in range(40)]
    provider.script(Reply(tool_calls=calls), Reply(pieces=["done"]))
    events = turn(http, session, "read all")
    assert events[-1].data["text"] == "done"
    assert len(tools.asked) == 32
    states = [one["status"] for one in calls_of(http, session)]
    assert states == ["completed"] * 32 + ["failed"] * 8


def test_the_failover_of_a_round_runs_no_tool_twice(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: one effect of one call, when a vendor dies between two rounds (PRV-5)."""
    stack = make_stack(
        tool_private_hosts=(tools.host,), providers=(("openai", "first"), ("openai", "second"))
    )
    http = stack.http()
    session = make_agent(http, note_tool(tools))
    provider.script(
        Reply(tool_calls=[Call("read_note", {"id": "1"})]),
        Reply(status=500),
        Reply(pieces=["done"]),
    )
    events = turn(http, session, "go")
    assert names(events)[2:] == [
        "tool_call_started",
        "tool_call_completed",
        "provider_attempt_failed",
        "message_completed",
    ]
    assert [one.body["model"] for one in provider.requests] == ["first", "first", "second"]
    assert len(tools.asked) == 1


def test_the_same_round_is_the_same_request_after_a_crash(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: a vendor's own protection from answering, and billing, twice."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    tools.on("/read_note", Answer(pieces=[b"old"]))
    hung = Reply(hang=True)
    provider.script(Reply(tool_calls=[Call("read_note", {"id": "1"})]), hung, Reply(pieces=["x"]))
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
    assert hung.started.wait(10)
    other = tooled.another_node()
    expire_lease(tooled)
    other.sweep()
    events.read_until("message_completed")
    events.close()
    second, third = provider.requests[1:]
    assert second.raw == third.raw
    assert second.headers["idempotency-key"] == third.headers["idempotency-key"]


def test_what_a_model_sends_as_no_object_is_kept_and_replayed(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: every later turn, at a vendor that wants objects in its history (TOL-2)."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    provider.script(Reply(tool_calls=[Call("read_note", "nonsense")]), Reply(pieces=["oh"]))
    turn(http, session, "go")
    assert turn(http, session, "again")[-1].name == "message_completed"
    replayed: Any = provider.requests[2].body["messages"][2]["tool_calls"][0]["function"]
    assert isinstance(json.loads(replayed["arguments"]), dict)
    assert calls_of(http, session)[0]["arguments"] == "nonsense"


def test_where_agents_must_be_defined_only_those_that_are_answer(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: that no one talks to a bare model under a tenant's name."""
    _, key = stack.make_tenant("strict", undefined_agents=False)
    http = stack.http(key)
    assert http.call("POST", "/v1/sessions", {"agentName": "clerk"}).status == 404
    session = make_agent(http, systemPrompt="You are the clerk.")
    assert turn(http, session, "hello")[-1].data["text"] == "echo: hello"
    assert http.call("DELETE", "/v1/agents/clerk").status == 204
    end = turn(http, session, "still there?")[-1]
    assert (end.name, end.data["code"]) == ("message_error", "agent_not_found")
    assert len(provider.requests) == 1
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"


def test_elsewhere_a_deleted_agent_is_a_plain_assistant_without_tools(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: an answer; or a tool that was taken away."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools), systemPrompt="You keep notes.")
    assert http.call("DELETE", "/v1/agents/clerk").status == 204
    assert turn(http, session, "hello")[-1].data["text"] == "echo: hello"
    body = provider.requests[0].body
    assert "tools" not in body
    assert body["messages"][0]["content"] == "You are clerk, a helpful assistant."


def test_an_agents_own_chain_is_used(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: the model that the agent was made for."""
    http = make_stack(providers=(("openai", "usual"),)).http()
    session = make_agent(http, models={"primary": ["openai:mine", "openai:spare"]})
    provider.script(Reply(status=429))
    events = turn(http, session, "hello")
    assert [one.body["model"] for one in provider.requests] == ["mine", "spare"]
    (failed,) = data_of(events, "provider_attempt_failed")
    assert (failed["provider"], failed["model"]) == ("openai", "mine")


def test_all_vendors_down_is_one_clear_error_and_the_session_goes_on(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: what went wrong, and the next message."""
    http = make_stack().http()
    session = make_agent(http, models={"primary": ["openai:one", "openai:two"]})
    provider.script(Reply(status=503), Reply(status=401, error="sk-fake is wrong"))
    end = turn(http, session, "hello")[-1]
    assert (end.name, end.data["code"]) == ("message_error", "provider_unavailable")
    assert "openai:one" in end.data["error"]
    assert "openai:two" in end.data["error"]
    assert "sk-fake" not in end.data["error"]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    assert turn(http, session, "again")[-1].name == "message_completed"


def test_the_cost_of_all_rounds_is_told(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: what a turn with tools costs."""
    stack = make_stack(tool_private_hosts=(tools.host,))
    http = stack.http()
    session = make_agent(http, note_tool(tools), models={"primary": ["openai:gpt-4o-mini"]})
    provider.script(
        Reply(tool_calls=[Call("read_note", {"id": "1"})], usage=(1_000_000, 0)),
        Reply(pieces=["done"], usage=(0, 1_000_000)),
    )
    usage = turn(http, session, "go")[-1].data["usage"]
    # 0.15 and 0.60 dollars a million tokens
    assert usage["costUsd"] == 0.75
    assert stack.database.one("SELECT cost_usd::float8 FROM pal.turns") == 0.75


def test_a_failed_turn_tells_what_it_cost(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: money that was spent on no answer."""
    stack = make_stack(tool_private_hosts=(tools.host,))
    http = stack.http()
    session = make_agent(http, note_tool(tools), models={"primary": ["openai:gpt-4o-mini"]})
    called = Reply(tool_calls=[Call("read_note", {"id": "1"})], usage=(1_000_000, 0))
    provider.script(called, Reply(status=500))
    assert turn(http, session, "go")[-1].name == "message_error"
    found = stack.database.rows(
        "SELECT model, tokens_in, tokens_out, cost_usd::float8, rounds FROM pal.turns"
    )
    assert found == [("gpt-4o-mini", 1_000_000, 0, 0.15, 1)]


def test_a_turn_that_ends_while_a_round_is_written_leaves_nothing_open(
    tooled: Stack, provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: calls that run for ever in what is told of them."""
    http = tooled.http()
    session = make_agent(http, note_tool(tools))
    real, written = journal.insert_round, threading.Event()

    async def insert_round(tx: Tx, claimed: ClaimedTurn, made: Round) -> None:
        await real(tx, claimed, made)
        written.set()
        # as if the cancel came between the commit and the news of it
        turn_here = tooled.node.services.engine.keeper.running[claimed.turn_id]
        asyncio.get_running_loop().call_soon(turn_here.end, "cancelled")
        tooled.database.rows("SELECT pg_sleep(0)")

    provider.script(Reply(tool_calls=[Call("read_note", {"id": "1"})]))
    journal.insert_round = insert_round
    try:
        end = turn(http, session, "go")[-1]
    finally:
        journal.insert_round = real
    assert written.is_set()
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")
    assert tooled.database.one("SELECT count(*) FROM pal.turn_rounds") == 0
    left = tooled.database.rows("SELECT status FROM pal.tool_calls")
    assert {status for (status,) in left} <= {"unknown", "failed"}


def test_a_long_transcript_of_calls_comes_in_pages_that_can_be_read(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tools: ToolServer
) -> None:
    """Lost if red: the session, at a gateway that lets no more than 6 MB through."""
    stack = make_stack(tool_private_hosts=(tools.host,))
    http = stack.http()
    session = make_agent(http, note_tool(tools))
    tools.on("/read_note", Answer(pieces=["\u00fc".encode() * 16_000]))
    turns = 7
    for _ in range(turns):
        calls = [Call("read_note", {"id": str(n)}) for n in range(32)]
        provider.script(*[Reply(tool_calls=calls)] * 4, Reply(pieces=["done"]))
        turn(http, session, "go")
    whole = http.call("GET", f"/v1/sessions/{session}")
    assert whole.json["messagesTruncated"] is True
    assert len(whole.body) < 5 << 20
    seen, token = [], ""
    while token is not None:
        page = http.call("GET", f"/v1/sessions/{session}/messages?pageToken={token}")
        assert len(page.body) < 5 << 20
        seen += [one["role"] for one in page.json["messages"]]
        token = page.headers.get("x-next-page-token")
    assert seen == ["user", "assistant"] * turns
    call = whole.json["messages"][-1]["toolCalls"][0]
    assert call["resultCut"] is True
    kept = http.call("GET", f"/v1/sessions/{session}/tool-calls/{call['id']}").json
    assert kept["result"].startswith(call["result"])
    assert len(kept["output"]) == 16_000
