"""An agent that runs code, through HTTP: what a session works out stays, and stays its own."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chalicelib.sessions.lifecycle import NewMessage
from tests.fakes.machines import Cloud, FakeVm
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.agents import calls_of, data_of, names, new_session, turn
from tests.support.http import HttpClient
from tests.support.machines import AGENT, TOOLS
from tests.support.stack import Stack
from tests.support.waiting import until


@pytest.fixture
def stack(make_stack: Callable[..., Stack], cloud: Cloud) -> Stack:
    return make_stack(isolation="scripted")


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    client = stack.http()
    assert client.call("POST", "/v1/agents", AGENT).status == 201
    return client


def code(text: str) -> Reply:
    return Reply(tool_calls=[Call("run_code", {"code": text})])


def results(http: HttpClient, session: str) -> list[tuple[str, str]]:
    return [(one["status"], one["result"]) for one in calls_of(http, session)]


def test_what_a_session_has_worked_out_is_there_in_its_next_turn(
    http: HttpClient, provider: FakeOpenAI, cloud: Cloud
) -> None:
    """Lost if red: an analyst that loads the data anew for every question, or sees another's."""
    session, other = new_session(http, "coder"), new_session(http, "coder")
    provider.script(code("x = 6 * 7\nprint(x)"), Reply(pieces=["It is 42."]))
    events = turn(http, session, "work it out")
    assert [one for one in names(events) if one.startswith("vm_")] == ["vm_started"]
    assert events[-1].data["text"] == "It is 42."
    write = Call("write_file", {"path": "a.txt", "content": "kept"})
    read = Call("read_file", {"path": "a.txt"})
    provider.script(
        Reply(tool_calls=[Call("run_code", {"code": "print(x + 1)"}), write]),
        Reply(tool_calls=[read]),
        Reply(pieces=["43."]),
    )
    events = turn(http, session, "and one more?")
    assert [one for one in names(events) if one.startswith("vm_")] == []
    assert results(http, session) == [
        ("completed", "exit code: 0\nstdout:\n42\n"),
        ("completed", "exit code: 0\nstdout:\n43\n"),
        ("completed", "Written: 4 bytes."),
        ("completed", "kept"),
    ]
    provider.script(
        Reply(tool_calls=[Call("run_code", {"code": "print(x)"}), read]), Reply(pieces=["None."])
    )
    turn(http, other, "what is x?")
    (_, ran), (status, missing) = results(http, other)
    assert "NameError" in ran
    assert (status, missing) == ("failed", "There is no file a.txt.")
    assert len(cloud.vms) == 2


def test_a_session_is_told_what_it_lost_with_its_machine(
    http: HttpClient, provider: FakeOpenAI, cloud: Cloud
) -> None:
    """Lost if red: an answer that rests on variables which are gone."""
    session = new_session(http, "coder")
    provider.script(code("x = 1"), Reply(pieces=["done"]))
    turn(http, session, "set x")
    cloud.only().alive = False
    provider.script(code("print('x' in globals())"), Reply(pieces=["gone"]))
    events = turn(http, session, "is x there?")
    (replaced,) = data_of(events, "vm_replaced")
    assert replaced["reason"] == "gone"
    assert cloud.only().id not in str(replaced), "how a driver calls it is no one's business"
    told = results(http, session)[-1][1]
    assert told.startswith("Note: this is a fresh VM")
    assert "variables from before are gone" in told
    assert told.endswith("stdout:\nFalse\n")


def test_a_stop_ends_the_machine_and_the_turn_completes(
    http: HttpClient, provider: FakeOpenAI, cloud: Cloud
) -> None:
    """Lost if red: what a turn had to say, or a stopped session that goes on computing."""
    session = new_session(http, "coder")
    at_work, go_on = threading.Event(), threading.Event()

    def wait(_: FakeVm) -> None:
        at_work.set()
        assert go_on.wait(30)

    cloud.on_ask = wait
    provider.script(code("long()"), code("again()"), Reply(pieces=["I was stopped."]))
    told: list[Any] = []
    reading = threading.Thread(target=lambda: told.extend(turn(http, session, "go")))
    reading.start()
    assert at_work.wait(30)
    assert http.call("POST", f"/v1/sessions/{session}/stop").json == {"status": "stopped"}
    assert cloud.alive == []
    go_on.set()
    reading.join(30)
    assert told[-1].name == "message_completed"
    assert told[-1].data["text"] == "I was stopped."
    calls = results(http, session)
    assert [status for status, _ in calls] == ["failed", "failed"]
    assert all("session was stopped" in text for _, text in calls)
    assert len(cloud.vms) == 1
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "stopped"


def test_the_machines_of_a_person_who_is_erased_end(
    stack: Stack, http: HttpClient, provider: FakeOpenAI, cloud: Cloud
) -> None:
    """Lost if red: a person's files, in a machine that outlives their erasure."""
    made = http.call("POST", "/v1/sessions", {"agentName": "coder", "userId": "ann"})
    session = made.json["id"]
    provider.script(code("x = 1"), Reply(pieces=["done"]))
    turn(http, session, "set x")
    (person,) = http.call("GET", "/v1/people").json["people"]
    assert http.call("DELETE", f"/v1/people/{person['id']}").status == 204
    until(lambda: stack.database.one("SELECT count(*) FROM pal.session_vms") == 0)
    assert cloud.alive == []


def test_where_there_are_no_machines_an_agent_gets_on_without(
    stack: Stack, http: HttpClient, provider: FakeOpenAI
) -> None:
    """Lost if red: whole turns, once a deployment has its VMs switched off."""
    off = stack.another_node(isolation="off")
    session = new_session(http, "coder")
    provider.script(code("print(1)"), Reply(pieces=["I cannot."]))
    off.run(off.services.sessions.post(stack.caller, session, NewMessage(content="run it")))
    off.run(off.services.engine.wait_idle())
    assert results(http, session) == [("failed", "No microVMs are set up here.")]
    assert stack.database.one("SELECT count(*) FROM pal.session_vms") == 0


def test_the_laptops_machines_keep_what_a_session_has_worked_out(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tmp_path: Path
) -> None:
    """Lost if red: code on a laptop, or a process that is left behind on it."""
    stack = make_stack(isolation="local", data_dir=str(tmp_path))
    http = stack.http()
    hasty = [{**one, "timeout": 2} for one in TOOLS]
    assert http.call("POST", "/v1/agents", {**AGENT, "tools": hasty}).status == 201
    session = new_session(http, "coder")
    provider.script(code("x = 6 * 7\nopen('a.txt', 'w').write('kept')"), Reply(pieces=["done"]))
    turn(http, session, "work it out")
    shell = Call("run_code", {"language": "shell", "code": "cat a.txt"})
    read = Call("read_file", {"path": "a.txt"})
    provider.script(code("x + 1"), Reply(tool_calls=[shell, read]), Reply(pieces=["43."]))
    events = turn(http, session, "and one more?")
    assert events[-1].data["text"] == "43."
    told = results(http, session)
    assert [status for status, _ in told] == ["completed"] * 4
    assert "43" in told[1][1]
    assert "kept" in told[2][1]
    assert told[3][1] == "kept"
    provider.script(code("while True: pass"), code("'x' in globals()"), Reply(pieces=["hung"]))
    turn(http, session, "try for ever")
    (status, hung), (_, after) = results(http, session)[-2:]
    assert status == "failed"
    assert "It ran too long and was killed." in hung
    assert "variables are gone, files are kept" in hung
    assert "False" in after
    driver = stack.node.services.machines.driver
    assert driver is not None
    assert len(stack.node.run(driver.list())) == 1
    assert http.call("POST", f"/v1/sessions/{session}/stop").status == 200
    assert stack.node.run(driver.list()) == []


def test_code_of_a_cancelled_turn_holds_up_no_other(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, tmp_path: Path
) -> None:
    """Lost if red: ten minutes of every turn that follows one with a loop without end."""
    stack = make_stack(isolation="local", data_dir=str(tmp_path))
    http = stack.http()
    patient = [{**one, "timeout": 600} for one in TOOLS]
    assert http.call("POST", "/v1/agents", {**AGENT, "tools": patient}).status == 201
    session = new_session(http, "coder")
    provider.script(code("open('begun', 'w').close()\nwhile True: pass"))
    path = f"/v1/sessions/{session}"
    turn_id = http.call("POST", f"{path}/messages", {"content": "for ever"}).json["turnId"]
    machines = stack.node.services.machines

    def begun() -> bool:
        """Reads wait for no run."""
        asked = machines.ask(
            stack.caller.tenant_id,
            session,
            "/v1/read",
            {"path": "begun"},
            turn_id=turn_id,
            seconds=20,
            again=True,
        )
        return stack.node.run(asked).refused is None

    until(begun)
    assert http.call("POST", f"{path}/cancel").json["turnId"] == turn_id
    provider.script(code("6 * 7"), Reply(pieces=["42."]))
    events = turn(http, session, "and now?")
    assert events[-1].data["text"] == "42."
    assert "42" in results(http, session)[-1][1]
