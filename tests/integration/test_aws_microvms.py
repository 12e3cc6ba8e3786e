"""AWS's microVMs at the wire: one VM a token, none lost to a fault, and what AWS does by itself."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from chalicelib.config import Settings
from chalicelib.isolation.aws import AwsDriver
from chalicelib.isolation.base import AgentRefused, Machine, MachineGone, MachineUnavailable
from tests.fakes.microvm_agent import AgentGuest
from tests.fakes.microvm_server import CLOSED, IMAGE, Counter, MicrovmServer

SETTINGS = Settings(isolation="aws", microvm_image=IMAGE, microvm_egress=(CLOSED,))
RUN = {"language": "python", "code": "1", "timeoutSeconds": 5, "outputLimit": 1000}


@pytest.fixture
def aws() -> Iterator[MicrovmServer]:
    """An AWS without VMs."""
    with MicrovmServer() as made:
        yield made
        assert made.refused == []


def drive(
    aws: MicrovmServer, work: Callable[[AwsDriver], Awaitable[Any]], settings: Settings = SETTINGS
) -> Any:
    """What `work` makes of a driver of this AWS."""

    async def run() -> Any:
        driver = AwsDriver(settings, client=aws.client, connect=aws.connector, now=aws.time)
        try:
            return await work(driver)
        finally:
            await driver.close()

    return asyncio.run(run())


async def start(driver: AwsDriver, token: str = "vm_1") -> Machine:
    """A VM of the default TTL."""
    return await driver.start(token=token, idle=1800)


async def run_code(driver: AwsDriver, machine: Machine) -> str:
    """What a run prints: how many there have been in this VM."""
    answer = await driver.ask(machine, "/v1/run", RUN, timeout=20)
    return str(answer["stdout"])


def test_a_token_has_one_vm_though_answers_are_lost(aws: MicrovmServer) -> None:
    """Lost if red: VMs that nobody knows of, a session's files in two of them, or an open one."""
    aws.fail("RunMicrovm", "lost", times=2)

    async def work(driver: AwsDriver) -> list[Machine]:
        with pytest.raises(MachineUnavailable):
            await start(driver)
        return list(await asyncio.gather(start(driver), start(driver)))

    first, second = drive(aws, work)
    assert first == second
    ((id, vm),) = aws.vms.items()
    assert first.id == id
    assert vm.egress == [CLOSED]


def test_a_vm_is_asked_once_it_runs(aws: MicrovmServer) -> None:
    """Lost if red: a first call that comes too early and fails, or a token bought for each call."""
    aws.boots = 3

    async def work(driver: AwsDriver) -> list[str]:
        machine = await start(driver)
        said = [await run_code(driver, machine) for _ in range(2)]
        aws.advance(seconds=600)
        said.append(await run_code(driver, machine))
        assert len(aws.calls("CreateMicrovmAuthToken")) == 1
        aws.advance(seconds=300)
        return [*said, await run_code(driver, machine)]

    assert drive(aws, work) == ["1", "2", "3", "4"]
    assert len(aws.calls("CreateMicrovmAuthToken")) == 2
    assert aws.kept_out == 0


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_suspended_vm_goes_on_where_it_was(aws: MicrovmServer, by_itself: bool) -> None:
    """Lost if red: a session that comes back after a pause and finds its VM dead or empty."""
    aws.auto_resume = by_itself

    async def work(driver: AwsDriver) -> list[str]:
        machine = await start(driver)
        said = [await run_code(driver, machine)]
        aws.advance(seconds=1799)
        assert aws.vms[machine.id].state == "SUSPENDED"
        return [*said, await run_code(driver, machine)]

    assert drive(aws, work) == ["1", "2"]
    assert len(aws.calls("ResumeMicrovm")) == (0 if by_itself else 1)


def test_a_token_that_is_refused_is_replaced(aws: MicrovmServer) -> None:
    """Lost if red: a process whose clock is off, or that was frozen, can call its VMs no more."""

    async def work(driver: AwsDriver) -> str:
        machine = await start(driver)
        aws.expire_tokens()
        return await run_code(driver, machine)

    assert drive(aws, work) == "1"


@pytest.mark.parametrize(
    "ended",
    [
        pytest.param(lambda aws, id: aws.end(id), id="by-someone"),
        pytest.param(lambda aws, id: aws.advance(seconds=3 * 3600), id="unused"),
        pytest.param(lambda aws, id: aws.advance(seconds=28800), id="eight-hours"),
        pytest.param(lambda aws, id: aws.vms.pop(id), id="forgotten"),
    ],
)
def test_a_vm_that_has_ended_is_gone_and_the_call_not_begun(
    aws: MicrovmServer, ended: Callable[[MicrovmServer, str], Any]
) -> None:
    """Lost if red: a session stuck with a dead VM, or code that is not run in the fresh one."""

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)
        ended(aws, machine.id)
        aws.advance(seconds=5)
        with pytest.raises(MachineGone) as gone:
            await run_code(driver, machine)
        assert not gone.value.begun
        await driver.terminate(machine.id)
        if aws.vms:
            with pytest.raises(MachineGone):
                await start(driver)

    drive(aws, work)


def test_a_vm_that_ends_under_a_call_may_have_begun_it() -> None:
    """Lost if red: code with effects that is run twice."""

    class Dying(Counter):
        async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            if method == "POST":
                aws.end(next(iter(aws.vms)))
                return 502, b"Bad Gateway"
            return await super().answer(method, path, body)

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)
        with pytest.raises(MachineGone) as gone:
            await run_code(driver, machine)
        assert gone.value.begun

    with MicrovmServer(guest=Dying) as aws:
        drive(aws, work)


def test_a_call_that_may_have_begun_is_not_sent_again() -> None:
    """Lost if red: code with effects that is run twice."""

    class Losing(Counter):
        async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            status, said = await super().answer(method, path, body)
            return (status, said) if method == "GET" else (502, b"Bad Gateway")

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)
        with pytest.raises(MachineUnavailable, match="whether the call had an effect is unknown"):
            await run_code(driver, machine)
        guest = aws.vms[machine.id].guest
        assert isinstance(guest, Losing)
        assert guest.runs == [RUN]

    with MicrovmServer(guest=Losing) as aws:
        drive(aws, work)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ThrottlingException", "Too many microVMs are asked for now; try again in a minute."),
        ("InsufficientCapacityException", "AWS has no room for a microVM now"),
        ("ServiceQuotaExceededException", "The quota of microVMs is used up"),
        ("InternalServerException", "does not answer now"),
        ("AccessDeniedException", "This service may not use microVMs as it is set up."),
    ],
)
def test_what_aws_cannot_do_is_said_in_a_sentence(
    aws: MicrovmServer, code: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: AWS's internals in a chat, or an operator who cannot see which call failed."""
    aws.fail("RunMicrovm", code, times=9)
    with pytest.raises(MachineUnavailable, match=told):
        drive(aws, start)
    (line,) = (one for one in caplog.records if one.name.startswith("chalicelib"))
    assert line.getMessage().endswith(f"{code} of run_microvm")
    assert (line.levelno == logging.ERROR) == (code == "AccessDeniedException")


def test_the_list_is_the_whole_truth() -> None:
    """Lost if red: VMs that are never ended, or ended ones that are taken for alive."""

    async def work(driver: AwsDriver) -> None:
        machines = [await start(driver, f"vm_{n}") for n in range(5)]
        aws.end(machines[3].id)
        await driver.terminate(machines[0].id)
        await driver.terminate(machines[0].id)
        await driver.terminate("microvm-unknown")
        left = [machines[n] for n in (1, 2, 4)]
        found = await driver.list()
        assert [one.id for one in found] == [machine.id for machine in left]
        assert found[0].started_at == left[0].started_at
        aws.fail("ListMicrovms", "AccessDeniedException")
        with pytest.raises(MachineUnavailable):
            await driver.list()

    with MicrovmServer(page=2) as aws:
        drive(aws, work)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(Settings(isolation="aws", microvm_image=IMAGE), id="no-connector"),
        pytest.param(Settings(isolation="aws", microvm_egress=(CLOSED,)), id="no-image"),
    ],
)
def test_no_vm_starts_that_could_reach_the_internet_unasked(
    aws: MicrovmServer, settings: Settings
) -> None:
    """Lost if red: anybody's code with the whole internet, which is what AWS gives by default."""
    with pytest.raises(MachineUnavailable, match="not set up"):
        drive(aws, start, settings)
    assert aws.asked == []


def test_what_a_vm_says_is_not_trusted() -> None:
    """Lost if red: a process brought down by what runs in a VM, or a turn without an end."""
    answers = [
        (200, b"not json"),
        (200, b"[1]"),
        (200, b"[" * 100_000),
        (302, b"{}"),
        (404, b'{"message": "no"}'),
        (200, b'"' + b"x" * (17 << 20) + b'"'),
    ]

    class Strange(Counter):
        async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
            if method == "POST" and answers:
                return answers.pop(0)
            if path == "/v1/hang":
                await asyncio.Event().wait()
            return await super().answer(method, path, body)

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)
        while answers:
            told = "too much" if len(answers) == 1 else "whether the call had an effect is unknown"
            with pytest.raises(MachineUnavailable, match=told):
                await run_code(driver, machine)
        with pytest.raises(AgentRefused, match="There is no such file"):
            await driver.ask(machine, "/v1/read", {"path": "x"}, timeout=20)
        with pytest.raises(MachineUnavailable, match=r"did not answer in 0\.2 s"):
            await driver.ask(machine, "/v1/hang", {}, timeout=0.2)

    with MicrovmServer(guest=Strange) as aws:
        drive(aws, work)


def test_tokens_and_code_are_not_logged(
    aws: MicrovmServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: a way into a session's VM, or what was run there, in the log."""
    caplog.set_level(logging.INFO)

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)
        await driver.ask(machine, "/v1/run", RUN | {"code": "wine-red"}, timeout=20)
        aws.end(machine.id)
        with pytest.raises(MachineGone):
            await run_code(driver, machine)

    drive(aws, work)
    assert aws.calls("CreateMicrovmAuthToken")
    said = json.dumps([record.__dict__ for record in caplog.records], default=str)
    assert "token-" not in said
    assert "wine-red" not in said


def test_the_images_agent_keeps_files_and_variables() -> None:
    """Lost if red: an image whose agent does not start, or a session's work between two turns."""

    async def work(driver: AwsDriver) -> None:
        machine = await start(driver)

        async def python(code: str) -> dict[str, Any]:
            return await driver.ask(machine, "/v1/run", RUN | {"code": code}, timeout=30)

        written = {"path": "notes.txt", "content": "one line\n"}
        await driver.ask(machine, "/v1/write", written, timeout=20)
        answer = await python("text = open('notes.txt').read(); len(text)")
        assert (answer["exitCode"], answer["stdout"].strip()) == (0, "9")
        aws.advance(seconds=700)
        assert (await python("text"))["stdout"].strip() == repr(written["content"])
        with pytest.raises(AgentRefused):
            await driver.ask(machine, "/v1/read", {"path": "../x"}, timeout=20)
        other = await start(driver, "vm_2")
        with pytest.raises(AgentRefused):
            await driver.ask(other, "/v1/read", {"path": "notes.txt"}, timeout=20)

    with MicrovmServer(guest=AgentGuest) as aws:
        drive(aws, work)


def test_the_image_can_be_built() -> None:
    """Lost if red: a stack that cannot be made, since its image says no to AWS's questions."""

    async def build() -> None:
        guest = AgentGuest()
        try:
            for hook in ("ready", "validate", "run", "resume"):
                await guest.hook(hook)
        finally:
            await guest.close()

    asyncio.run(build())
