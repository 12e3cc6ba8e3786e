"""MicroVMs in memory, for any number of processes: scripted faults, and an agent with a memory."""

import asyncio
import contextlib
import io
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.isolation.base import (
    AgentRefused,
    Listed,
    Machine,
    MachineGone,
    MachineSilent,
    MachineUnavailable,
)


@dataclass(kw_only=True, eq=False)
class FakeVm:
    """One VM: its variables and its files live as long as it does."""

    id: str
    token: str
    started_at: datetime
    alive: bool = True
    silent: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class Cloud:
    """What all drivers of a test start their VMs in, and what is to go wrong there.

    `on_start` and `on_ask` are called as a driver is at it, before anything has happened. The
    answers of the next `lose` starts are lost: the VM is there, and its starter does not know.
    """

    def __init__(self) -> None:
        self.vms: dict[str, FakeVm] = {}
        self.starts: Counter[str] = Counter()
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.on_start: Callable[[str], None] = lambda token: None
        self.on_ask: Callable[[FakeVm], None] = lambda vm: None
        self.lose = 0
        self.down = False
        self.held = False
        self.terminates = True
        self._ids = itertools.count(1)

    @property
    def alive(self) -> list[FakeVm]:
        """The VMs that have not ended."""
        return [one for one in self.vms.values() if one.alive]

    def only(self) -> FakeVm:
        """The one VM that is alive."""
        (one,) = self.alive
        return one

    def start(self, token: str, *, age: float = 0.0) -> FakeVm:
        """The VM of this token, as a driver starts it; `age` in seconds."""
        found = [one for one in self.vms.values() if one.token == token]
        if found:
            if not found[0].alive:
                raise MachineGone("its VM has ended")
            return found[0]
        made = FakeVm(
            id=f"machine-{next(self._ids)}",
            token=token,
            started_at=datetime.now(UTC) - timedelta(seconds=age),
        )
        self.vms[made.id] = made
        return made


class ScriptedDriver:
    """See `Driver`. Any number of them share a cloud, each in a process of its own."""

    name = "scripted"
    longest = 8 * 3600.0

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.closed = False

    async def start(self, *, token: str, idle: float) -> Machine:
        """See `Driver.start`."""
        self.cloud.starts[token] += 1
        await asyncio.to_thread(self.cloud.on_start, token)
        while self.cloud.held:
            await asyncio.sleep(0.005)
        self._require_up()
        vm = self.cloud.start(token)
        if self.cloud.lose:
            self.cloud.lose -= 1
            raise MachineUnavailable("the answer was lost")
        return Machine(id=vm.id, endpoint=f"https://{vm.id}.example", started_at=vm.started_at)

    async def ask(
        self, machine: Machine, path: str, body: dict[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """See `Driver.ask`; code is run as Python, whatever its language."""
        self._require_up()
        vm = self.cloud.vms[machine.id]
        if not vm.alive:
            raise MachineGone("it has ended", begun=False)
        self.cloud.asked.append((vm.id, path, body))
        await asyncio.to_thread(self.cloud.on_ask, vm)
        if not vm.alive:
            raise MachineGone("it ended meanwhile")
        if vm.silent:
            raise MachineSilent("it did not answer in time")
        if path == "/healthz":
            raise AgentRefused("There is no such call.")
        if path == "/v1/run":
            return _run(vm, body["code"])
        if path == "/v1/write":
            vm.files[body["path"]] = body["content"]
            return {"size": len(body["content"].encode())}
        if body["path"] not in vm.files:
            raise AgentRefused(f"There is no file {body['path']}.")
        text = vm.files[body["path"]]
        return {"content": text, "encoding": "utf-8", "size": len(text), "truncated": False}

    async def terminate(self, machine_id: str) -> None:
        """See `Driver.terminate`."""
        self._require_up()
        if not self.cloud.terminates:
            raise MachineUnavailable("it cannot be ended now")
        if vm := self.cloud.vms.get(machine_id):
            vm.alive = False

    async def list(self) -> list[Listed]:
        """See `Driver.list`."""
        self._require_up()
        return [Listed(id=one.id, started_at=one.started_at) for one in self.cloud.alive]

    async def close(self) -> None:
        """See `Driver.close`."""
        self.closed = True

    def _require_up(self) -> None:
        if self.cloud.down:
            raise MachineUnavailable("it is down")


def _run(vm: FakeVm, code: str) -> dict[str, Any]:
    out, error, status = io.StringIO(), "", 0
    with contextlib.redirect_stdout(out):
        try:
            exec(code, vm.variables)
        except Exception as exc:
            error, status = f"{type(exc).__name__}: {exc}", 1
    return {
        "stdout": out.getvalue(),
        "stderr": error,
        "exitCode": status,
        "timedOut": False,
        "truncated": False,
        "durationMs": 1,
    }
