"""Going on after a crash: the cut turn is taken up again as it was, once, in whatever process."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import refused
from tests.support.http import HttpClient
from tests.support.process import GatewayProcess
from tests.support.sealing import ended, interrupt, start
from tests.support.stack import Stack
from tests.support.waiting import until

GATED = {"kind": "builtin", "name": "current_time", "approval": "always"}
HINTS = {"systemHint": "Speak as a pirate.", "turnHint": "be brief"}


def resume(http: HttpClient, session: str, **headers: str) -> Any:
    return http.call("POST", f"/v1/sessions/{session}/resume", headers=headers)


def status(http: HttpClient, session: str) -> str:
    return str(http.call("GET", f"/v1/sessions/{session}").json["status"])


def crash_twice(
    stack: Stack,
    provider: FakeOpenAI,
    make_gateway: Callable[..., GatewayProcess],
    session: str,
    **message: Any,
) -> None:
    """Post a message to a process that is killed in mid-turn, as is the one that takes it up."""
    provider.script(*(Reply(pieces=["never ", "told"], hold_at=1) for _ in range(2)))
    first = make_gateway()
    posted = HttpClient(first.base, stack.key).call(
        "POST", f"/v1/sessions/{session}/messages", {"content": "hello", **message}
    )
    assert posted.status == 202
    provider.wait_requests(1)
    first.kill()
    lapse = "UPDATE pal.session_heads SET lease_until = now() - interval '1 second'"
    stack.database.rows(lapse)
    second = make_gateway()  # it sweeps as it starts
    provider.wait_requests(2)
    second.kill()
    interrupt(stack, session)


def test_crashed_turn_is_taken_up_by_another_process_with_the_same_inputs(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: the call that was cut off, or an answer to something else than was asked."""
    http = stack.http()
    session = start(http)
    crash_twice(stack, provider, make_gateway, session, **HINTS)
    assert status(http, session) == "interrupted"
    third = HttpClient(make_gateway().base, stack.key)
    events = third.stream("GET", f"/v1/sessions/{session}/events")
    events.read_until("connected")
    reply = resume(third, session)
    assert (reply.status, reply.json["status"]) == (200, "processing")
    told = events.read_until("message_completed")
    events.close()
    started = next(one.data for one in told if one.name == "turn_started")
    cut = "SELECT id FROM pal.turns WHERE status = 'cut' ORDER BY ordinal DESC LIMIT 1"
    assert started["turnId"] == reply.json["turnId"] == told[-1].data["turnId"]
    assert started["resumesTurnId"] == stack.database.one(cut)
    bodies = [one.body["messages"] for one in provider.requests[:3]]
    assert bodies[2] == bodies[1]
    assert "pirate" in json.dumps(bodies[2])
    accepted = "SELECT accepted_at FROM pal.turns WHERE id = %s"
    of_cut = stack.database.one(accepted, started["resumesTurnId"])
    assert stack.database.one(accepted, started["turnId"]) == of_cut  # a prompt tells the time
    messages = http.call("GET", f"/v1/sessions/{session}").json["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"]
    assert {one["turnId"] for one in messages} == {reply.json["turnId"]}
    assert status(http, session) == "active"


def test_resumed_turn_that_no_one_was_told_of_is_found_by_the_sweep(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: a resume whose process dies, or whose queue is down, at that moment."""
    http = stack.http()
    session = start(http)
    crash_twice(stack, provider, make_gateway, session)

    async def lost(tenant_id: str, session_id: str) -> None:
        raise RuntimeError("no queue today")

    local, stack.node.services.sessions.dispatch = stack.node.services.sessions.dispatch, lost
    assert resume(http, session).status == 200
    stack.node.services.sessions.dispatch = local
    assert stack.node.sweep() == 1
    until(lambda: status(http, session) == "active")
    assert len(http.call("GET", f"/v1/sessions/{session}").json["messages"]) == 2


def test_resuming_twice_runs_one_turn(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: two answers to one message, after a click too many."""
    http = stack.http()
    session = start(http)
    crash_twice(stack, provider, make_gateway, session)
    held = Reply(pieces=["once"], hold_at=0)
    provider.script(held)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: resume(http, session), range(4)))
    assert sorted(one.status for one in replies) == [200, 409, 409, 409]
    for one in replies:
        if one.status == 409:
            refused(one, 409, "turn_running")
    held.gate.set()
    until(lambda: status(http, session) == "active")
    assert len(provider.requests) == 3


def test_retried_resume_has_its_answer(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: a client whose first try timed out, told that it may not."""
    http = stack.http()
    session = start(http)
    crash_twice(stack, provider, make_gateway, session)
    key = {"Idempotency-Key": "k"}
    first = resume(http, session, **key)
    until(lambda: status(http, session) == "active")
    again = resume(http, session, **key)
    assert (again.status, again.json) == (200, first.json)
    assert again.headers["idempotent-replayed"] == "true"


def test_third_crash_is_no_loop(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: the right to one more try by itself, or a poison message that runs for ever."""
    http = stack.http()
    session = start(http)
    crash_twice(stack, provider, make_gateway, session)
    keeper = stack.node.services.engine.keeper
    keeper.add = lambda turn: keeper.running.update({turn.claimed.turn_id: turn})  # type: ignore[method-assign]
    held = [Reply(pieces=["x", "y"], hold_at=1) for _ in range(2)]
    provider.script(*held)
    assert resume(http, session).status == 200
    provider.wait_requests(3)
    interrupt(stack, session)
    provider.wait_requests(4)  # it is taken up once more by itself
    assert status(http, session) == "processing"
    interrupt(stack, session)
    assert status(http, session) == "interrupted"
    del keeper.add
    for reply in held:
        reply.gate.set()


def test_every_other_state_says_what_to_do_instead(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the way on, for whoever takes resuming for going on with an old conversation."""
    http = stack.http()
    told: dict[str, str] = {}

    def ask(session: str, code: str) -> None:
        body = refused(resume(http, session), 409, code)
        told[status(http, session)] = body["error"]

    active = start(http)
    ask(active, "not_interrupted")
    held = Reply(pieces=["x"], hold_at=0)
    provider.script(held)
    http.call("POST", f"/v1/sessions/{active}/messages", {"content": "one"})
    assert held.held.wait(10)
    ask(active, "turn_running")
    held.gate.set()
    until(lambda: status(http, active) == "active")
    made = http.call("POST", "/v1/agents", {"name": "clerk", "tools": [GATED]})
    assert made.status == 201
    provider.script(Reply(tool_calls=[Call("current_time", {})]))
    waiting = start(http, agentName="clerk")
    http.stream("POST", f"/v1/sessions/{waiting}/messages", {"content": "what time?"}).rest()
    ask(waiting, "not_interrupted")
    stopped = start(http)
    http.call("POST", f"/v1/sessions/{stopped}/stop")
    ask(stopped, "session_stopped")
    over = start(http)
    ended(http, over)
    ask(over, "session_ended")
    assert set(told) == {"active", "processing", "awaiting_approval", "stopped", "ended"}
    assert "post a message" in told["active"]
    assert "approval" in told["awaiting_approval"]
    for state in ("stopped", "ended"):
        assert "new session" in told[state]
        assert "remembered" in told[state]


@pytest.mark.parametrize("path", ["resume", "end"])
def test_unknown_session_is_not_there(path: str, stack: Stack) -> None:
    """Lost if red: the difference between a session that is over and one that never was."""
    for session in ("sess_00000000000000000000000000", "x"):
        refused(stack.http().call("POST", f"/v1/sessions/{session}/{path}"), 404, "not_found")
