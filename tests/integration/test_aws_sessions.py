"""Sessions on AWS's microVMs: HTTP, the tool loop, rows and driver, before a fake of AWS."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.isolation import DRIVERS
from chalicelib.isolation.aws import AwsDriver
from tests.fakes.microvm_agent import AgentGuest
from tests.fakes.microvm_server import CLOSED, IMAGE, MicrovmServer
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.agents import make_agent, new_session, turn
from tests.support.http import Event
from tests.support.machines import AGENT
from tests.support.stack import Node, Stack
from tests.support.waiting import until

VMS = "SELECT kind, data::jsonb ->> 'reason' FROM pal.session_events WHERE kind LIKE 'vm%%'"


@pytest.fixture
def aws() -> Iterator[MicrovmServer]:
    """An AWS without VMs, each of which will run the image's agent."""
    with MicrovmServer(guest=AgentGuest) as made:
        yield made
        assert made.refused == []


class Coder:
    """A session with a VM, told by its person which code its model is to run."""

    def __init__(self, stack: Stack, provider: FakeOpenAI, aws: MicrovmServer) -> None:
        self.stack, self.provider, self.aws = stack, provider, aws
        self.http = stack.http()
        more = {key: AGENT[key] for key in AGENT if key != "tools"}
        self.session = make_agent(self.http, *AGENT["tools"], **more)

    def turn(self, *codes: str, session: str | None = None) -> list[Event]:
        """A turn in which the model runs each of these, all at once."""
        calls = [Call("run_code", {"code": code}) for code in codes]
        self.provider.script(Reply(tool_calls=calls), Reply(pieces=["Done."]))
        events = turn(self.http, session or self.session, "go on")
        assert events[-1].name == "message_completed", events[-1]
        assert events[-1].data["text"] == "Done."
        return events

    def told(self, *codes: str, session: str | None = None) -> list[str]:
        """What the model is told of each."""
        self.turn(*codes, session=session)
        messages = self.provider.requests[-1].body["messages"]
        return [one["content"] for one in messages if one["role"] == "tool"][-len(codes) :]

    def alive(self) -> list[str]:
        """The VMs that AWS bills."""
        return [vm.id for vm in self.aws.vms.values() if vm.state != "TERMINATED"]

    def states(self) -> list[str]:
        """The states of all rows, oldest first."""
        found = self.stack.database.rows("SELECT state FROM pal.session_vms ORDER BY id")
        return [one[0] for one in found]

    def pass_time(self, seconds: float) -> None:
        """For AWS, and for the rows."""
        self.aws.advance(seconds=seconds)
        self.stack.database.rows(
            "UPDATE pal.session_vms SET created_at = created_at - gone, tried_at = NULL,"
            " running_at = running_at - gone, used_until = used_until - gone,"
            " expires_at = expires_at - gone FROM make_interval(secs => %s) AS gone",
            seconds,
        )


@pytest.fixture
def coder(
    make_stack: Callable[..., Stack],
    provider: FakeOpenAI,
    aws: MicrovmServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Coder:
    def make(settings: Any) -> AwsDriver:
        return AwsDriver(settings, client=aws.client, connect=aws.connector, now=aws.time)

    monkeypatch.setitem(DRIVERS, "aws", make)
    stack = make_stack(isolation="aws", microvm_image=IMAGE, microvm_egress=(CLOSED,))
    return Coder(stack, provider, aws)


def test_a_session_works_in_one_vm_from_its_first_need_to_its_end(coder: Coder) -> None:
    """Lost if red: what an agent worked out, between two turns, or money after its session."""
    coder.provider.script(Reply(pieces=["Hello."]))
    turn(coder.http, coder.session, "hello")
    assert coder.aws.vms == {}
    coder.turn("x = 41; open('kept', 'w').write('here')")
    assert coder.told("print(x + 1)", "print(open('kept').read())") == [
        "exit code: 0\nstdout:\n42\n",
        "exit code: 0\nstdout:\nhere\n",
    ]
    other = new_session(coder.http, "coder")
    assert "NameError" in coder.told("print(x)", session=other)[0]
    assert len(coder.aws.calls("RunMicrovm")) == 2
    assert coder.http.call("POST", f"/v1/sessions/{coder.session}/end").status == 200
    assert coder.http.call("DELETE", f"/v1/sessions/{other}").status == 204
    until(lambda: coder.alive() == [] and coder.states() == [])


def test_a_vm_that_slept_goes_on_where_it_was(coder: Coder) -> None:
    """Lost if red: variables lost to a coffee break, without a word."""
    coder.turn("x = 41")
    coder.pass_time(1500)
    coder.stack.node.run(coder.stack.node.services.reaper.sweep())
    (vm,) = coder.aws.vms.values()
    assert vm.state == "SUSPENDED"
    assert coder.told("print(x)") == ["exit code: 0\nstdout:\n41\n"]
    assert coder.stack.database.rows(VMS) == [("vm_started", None)]
    coder.pass_time(2000)
    coder.stack.node.run(coder.stack.node.services.reaper.sweep())
    until(lambda: coder.alive() == [])
    (told,) = coder.told("print('x' in globals())")
    assert told.startswith("Note: this is a fresh VM")
    assert told.endswith("False\n")


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        pytest.param(0, "was no longer there", id="by-someone"),
        pytest.param(28_700, "had reached the longest time", id="before-eight-hours"),
        pytest.param(28_900, "had reached the longest time", id="after-eight-hours"),
    ],
)
def test_a_vm_that_ends_is_replaced_and_the_model_told_once(
    coder: Coder, seconds: float, why: str
) -> None:
    """Lost if red: a session that is stuck with a dead VM, or trusts files that are gone."""
    coder.turn("x = 41")
    (old,) = coder.aws.vms
    if seconds:
        coder.aws.vms[old].used = coder.aws.now + timedelta(seconds=seconds)  # to the last
        coder.pass_time(seconds)
        assert (old in coder.alive()) == (seconds < 28_800)
    else:
        coder.aws.end(old)
        coder.aws.advance(seconds=5)
    for told in coder.told("print('x' in globals())", "print(7)"):
        assert why in told
    assert coder.told("print(8)") == ["exit code: 0\nstdout:\n8\n"]
    events = coder.stack.database.rows(VMS)
    assert [kind for kind, _ in events] == ["vm_started", "vm_replaced"]
    coder.pass_time(120)
    coder.stack.node.run(coder.stack.node.services.reaper.sweep())
    until(lambda: len(coder.alive()) == 1 and coder.states() == ["running"])


@pytest.mark.parametrize("lost", [1, 2, 3, 9])
def test_a_start_whose_answers_are_lost_leaves_one_vm(coder: Coder, lost: int) -> None:
    """Lost if red: a VM that is billed for eight hours, beside the one that is used."""
    coder.aws.fail("RunMicrovm", "lost", times=lost)
    first = coder.told("print(1)")[0]
    if lost > 4:
        assert "could not be started" in first
        coder.aws.recover()
    assert coder.told("print(2)") == ["exit code: 0\nstdout:\n2\n"]
    assert len(coder.aws.vms) == 1
    assert coder.states() == ["running"]


@pytest.mark.parametrize("operation", ["RunMicrovm", "CreateMicrovmAuthToken", "GetMicrovm"])
def test_a_service_that_throttles_costs_a_call_and_no_turn(coder: Coder, operation: str) -> None:
    """Lost if red: a turn that fails, or hangs, when AWS is asked too much."""
    coder.aws.fail(operation, "ThrottlingException", times=9)
    (told,) = coder.told("print(1)")
    assert "Too many microVMs are asked for now" in told
    coder.aws.recover()
    assert coder.told("print(2)") == ["exit code: 0\nstdout:\n2\n"]
    assert len(coder.alive()) == 1


def test_what_a_dead_starter_left_is_found_by_the_list(coder: Coder) -> None:
    """Lost if red: VMs that no row knows, until AWS ends them after eight hours."""
    node: Node = coder.stack.node
    coder.turn("x = 41")
    driver = node.services.machines.driver
    assert driver is not None
    node.run(driver.start(token="vm_of_a_dead_process", idle=1800))
    assert len(coder.alive()) == 2
    for vm in coder.aws.vms.values():
        vm.started -= timedelta(seconds=700)
    assert node.run(node.services.reaper.reconcile()) == 1
    assert len(coder.alive()) == 1
    assert coder.told("print(x)") == ["exit code: 0\nstdout:\n41\n"]
