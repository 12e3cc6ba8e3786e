"""Calls of sessions' VMs that hang, wait for a person, or lose their process."""

import threading
from collections.abc import Callable

import pytest

from chalicelib.isolation.base import MachineLost, MachineUnavailable
from chalicelib.sessions.lifecycle import NewMessage
from tests.fakes.machines import Cloud, FakeVm
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.integration.test_turns import expire_lease
from tests.support.agents import calls_of, make_agent, turn
from tests.support.machines import TOOLS, Sessions
from tests.support.stack import Stack
from tests.support.waiting import until


@pytest.fixture
def sessions(make_stack: Callable[..., Stack], cloud: Cloud) -> Sessions:
    return Sessions(make_stack, cloud)


def test_a_vm_that_says_nothing_any_more_is_replaced(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: a session whose every call waits for its time and fails, for ever."""
    session = sessions.new()
    sessions.ask(session)
    silent = cloud.only()
    silent.silent = True
    with pytest.raises(MachineLost):
        sessions.ask(session, "order()")
    assert sessions.ask(session).notice == "gone"
    until(lambda: not silent.alive)
    assert [body["code"] for _, path, body in cloud.asked if path == "/v1/run"].count(
        "order()"
    ) == 1


def test_a_call_that_was_slow_alone_costs_no_vm(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: a session's files, for one answer that was late."""
    session = sessions.new()
    sessions.ask(session)

    def once(vm: FakeVm) -> None:
        vm.silent = cloud.asked[-1][1] != "/healthz"

    cloud.on_ask = once
    with pytest.raises(MachineUnavailable):
        sessions.ask(session)
    cloud.on_ask, cloud.only().silent = lambda vm: None, False
    assert sessions.ask(session).notice is None
    assert len(cloud.vms) == 1


def test_code_that_a_person_allowed_runs_in_another_process_with_what_there_was(
    sessions: Sessions, cloud: Cloud, provider: FakeOpenAI
) -> None:
    """Lost if red: an approved run that finds nothing of what it was to work on, or runs twice."""
    stack, http = sessions.stack, sessions.stack.http()
    gated = {"kind": "microvm", "name": "run_code", "approval": "always"}
    session = make_agent(http, gated, isolation="microvm")
    sessions.ask(session, "x = 41")
    provider.script(Reply(tool_calls=[Call("run_code", {"code": "x += 1\nprint(x)"})]))
    assert turn(http, session, "add one")[-1].data["finishReason"] == "awaiting_approval"
    assert [path for _, path, _ in cloud.asked] == ["/v1/run"]
    (asked,) = http.call("GET", "/v1/approvals?status=pending").json["approvals"]
    other = stack.another_node()
    provider.script(Reply(pieces=["It is 42."]))
    other.run(other.services.approvals.decide(stack.caller, asked["id"], "approve"))
    other.run(other.services.engine.wait_idle())
    (call,) = calls_of(http, session)
    assert (call["status"], call["result"]) == ("completed", "exit code: 0\nstdout:\n42\n")
    assert len(cloud.vms) == 1


@pytest.mark.parametrize(
    ("hint", "offered"),
    [
        ({"readOnlyTools": True}, ["read_file"]),
        ({"noTools": True}, []),
        ({}, ["run_code", "read_file", "write_file"]),
    ],
)
def test_a_caller_who_wants_nothing_changed_has_no_code_run(
    sessions: Sessions,
    cloud: Cloud,
    provider: FakeOpenAI,
    hint: dict[str, bool],
    offered: list[str],
) -> None:
    """Lost if red: code that ran although the message forbade it."""
    http = sessions.stack.http()
    session = make_agent(http, *TOOLS, isolation="microvm")
    provider.script(Reply(pieces=["Fine."]))
    turn(http, session, "look", **hint)
    tools = provider.requests[-1].body.get("tools", [])
    assert [one["function"]["name"] for one in tools] == offered
    assert cloud.vms == {}


def test_code_that_a_dead_process_had_begun_is_not_run_again_and_files_are(
    sessions: Sessions, cloud: Cloud, provider: FakeOpenAI
) -> None:
    """Lost if red: an order that is sent twice, or a file that is not written."""
    stack, http = sessions.stack, sessions.stack.http()
    session = make_agent(http, *TOOLS, isolation="microvm")
    dying, held = stack.another_node(), threading.Event()
    cloud.on_ask = lambda vm: held.wait(20) and None
    calls = [
        Call("run_code", {"code": "order()"}),
        Call("write_file", {"path": "a.txt", "content": "kept"}),
    ]
    provider.script(Reply(tool_calls=calls), Reply(pieces=["Done."]))
    dying.run(dying.services.sessions.post(stack.caller, session, NewMessage(content="order")))
    until(lambda: len(cloud.asked) == 2)
    expire_lease(stack)
    cloud.on_ask = lambda vm: None
    stack.node.sweep()
    until(lambda: len(calls_of(http, session)) == 2)
    held.set()
    statuses = {one["name"]: one["status"] for one in calls_of(http, session)}
    assert statuses == {"run_code": "unknown", "write_file": "completed"}
    assert [path for _, path, _ in cloud.asked].count("/v1/run") == 1
    assert cloud.only().files == {"a.txt": "kept"}
