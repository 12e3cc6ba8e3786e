"""Keeps a session's VM: starts it at the first need, asks it, replaces it when it is gone.

The row comes first and is committed; its id is the token that the driver starts the VM by. So a
start whose answer was lost, or whose process died, is taken up by the next caller with the same
token, and comes to the same VM. No transaction is open while a driver works.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.db import Database
from chalicelib.ids import new_id
from chalicelib.isolation import store
from chalicelib.isolation.base import (
    AgentRefused,
    Driver,
    Machine,
    MachineGone,
    MachineLost,
    MachineSilent,
    MachineUnavailable,
    SessionClosed,
)
from chalicelib.isolation.reaper import Reaper
from chalicelib.isolation.store import Reason, Vm

_log = logging.getLogger(__name__)

_ROUNDS: Final = 4
_STARTS: Final = 2
_START_PAUSE: Final = 0.5
_START_SECONDS: Final = 120.0
_PROBE_SECONDS: Final = 10.0
_MARGIN: Final = 300.0
_MARGIN_BEHIND: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the agent said: a body, or words for the model why it would not do it.

    `notice` is why the files and variables of earlier are gone, where the session is to be told.
    """

    body: dict[str, Any]
    refused: str | None = None
    notice: Reason | None = None


class Machines:
    """Sessions' VMs, by one driver; without one, none can be had.

    `wake` has the readers of a session here look at its log, up to an event's seq.
    """

    def __init__(
        self,
        db: Database,
        driver: Driver | None,
        reaper: Reaper,
        *,
        idle: float,
        wake: Callable[[str, int], None],
    ) -> None:
        self._db, self.driver, self._reaper = db, driver, reaper
        self._idle, self._wake = idle, wake
        self._starting: dict[str, asyncio.Task[None]] = {}

    @property
    def available(self) -> bool:
        """Whether this process can have VMs at all."""
        return self.driver is not None

    async def ask(
        self,
        tenant_id: str,
        session_id: str,
        path: str,
        body: dict[str, Any],
        *,
        turn_id: str,
        seconds: float,
        again: bool,
    ) -> Answer:
        """The agent's answer, by the session's VM, which is started if there is none.

        `seconds` is for the agent alone. `again`: to ask twice does no harm. Raises SessionClosed,
        MachineLost, MachineUnavailable, and Unavailable when the database is.
        """
        driver = self.driver
        if driver is None:
            raise MachineUnavailable("No microVMs are set up here.")
        for _ in range(_ROUNDS):
            vm, machine = await self._hold(
                driver, tenant_id, session_id, turn_id=turn_id, seconds=seconds
            )
            try:
                answer = await driver.ask(machine, path, body, timeout=seconds)
                return Answer(body=answer, notice=vm.notice)
            except AgentRefused as exc:
                return Answer(body={}, refused=str(exc), notice=vm.notice)
            except MachineGone as exc:
                _log.warning("VM is gone", extra={"action": "vm_gone", "vm": vm.id})
                await self._replace(tenant_id, session_id, vm)
                if exc.begun and not again:
                    raise MachineLost from exc
            except MachineSilent as exc:
                # an agent that is well ends what runs too long, and says so in good time
                if await _is_there(driver, machine):
                    raise
                _log.warning("VM is silent", extra={"action": "vm_silent", "vm": vm.id})
                await self._replace(tenant_id, session_id, vm)
                raise MachineLost from exc
        raise MachineUnavailable("The session's microVM ended each time it was started.")

    async def close(self) -> None:
        """Let go of the driver; what is still starting here is taken up by the next caller."""
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        if self.driver is not None:
            await self.driver.close()

    async def _hold(
        self, driver: Driver, tenant_id: str, session_id: str, *, turn_id: str, seconds: float
    ) -> tuple[Vm, Machine]:
        """A running VM that will not be reaped for so many seconds."""
        for _ in range(_ROUNDS):
            vm = await self._claim(driver, tenant_id, session_id, turn_id, seconds)
            if vm is not None and vm.machine is not None:
                return vm, vm.machine
            if vm is not None:
                await self._start(driver, tenant_id, session_id, vm.id)
        raise MachineUnavailable("The session's microVM could not be started.")

    async def _claim(
        self, driver: Driver, tenant_id: str, session_id: str, turn_id: str, seconds: float
    ) -> Vm | None:
        """The session's VM, entered anew if there is none; None: it has just come to its end."""

        async def find() -> Vm | None:
            return await store.find_vm(
                tx,
                session_id,
                turn_id=turn_id,
                seconds=seconds,
                # a fresh one always has the time
                margin=min(max(_MARGIN, seconds + _MARGIN_BEHIND), driver.longest / 2),
            )

        retired = None
        async with self._db.tenant(tenant_id) as tx:
            vm = await find()
            if vm is None or _unusable(vm, driver) is not None:
                if not await store.lock_session(tx, session_id):
                    raise SessionClosed
                vm = await find()
                if vm is not None and (reason := _unusable(vm, driver)) is not None:
                    retired = await store.retire_vm(tx, vm.id, reason)
                    vm = None
                if vm is None:
                    made = new_id("vm")
                    await store.insert_vm(tx, vm_id=made, session_id=session_id, driver=driver.name)
                    vm = await find()
            if vm is not None and vm.machine is not None:
                told = turn_id if vm.notice is not None and vm.told_turn != turn_id else None
                if (told or not vm.fresh) and not await store.use_vm(
                    tx, vm.id, seconds=seconds, told=told
                ):
                    vm = None
        if retired is not None:
            _log.info("VM replaced", extra={"action": "vm_replaced", "vm": retired.id})
        return vm

    async def _start(self, driver: Driver, tenant_id: str, session_id: str, vm_id: str) -> None:
        """Have the VM run; callers of one process wait for one start."""
        task = self._starting.get(vm_id)
        if task is None:
            # a caller that is cancelled leaves it to the next one
            task = asyncio.get_running_loop().create_task(
                self._run_start(driver, tenant_id, session_id, vm_id),
                context=contextvars.Context(),
            )
            self._starting[vm_id] = task
            task.add_done_callback(lambda done: self._started(vm_id, done))
        await asyncio.shield(task)

    def _started(self, vm_id: str, task: asyncio.Task[None]) -> None:
        self._starting.pop(vm_id, None)
        if not task.cancelled():
            task.exception()  # told to whoever waited, if anyone still does

    async def _run_start(self, driver: Driver, tenant_id: str, session_id: str, vm_id: str) -> None:
        try:
            machine = await self._machine(driver, vm_id)
        except MachineGone:
            # the VM of this token has been, so it takes another one
            async with self._db.tenant(tenant_id) as tx:
                await store.lock_session(tx, session_id)
                await store.retire_vm(tx, vm_id, "gone")
            return
        async with self._db.tenant(tenant_id) as tx:
            await store.lock_session(tx, session_id)
            seq = await store.run_vm(tx, vm_id, machine, longest=driver.longest)
            ours = seq is not None or await store.machine_of(tx, vm_id) == machine.id
        if seq is not None:
            _log.info(
                "VM started", extra={"action": "vm_started", "vm": vm_id, "session_id": session_id}
            )
            self._wake(session_id, seq)
        if not ours:
            # the session was closed meanwhile: whoever did that knew of no machine
            await self._reaper.terminate(machine.id)

    async def _machine(self, driver: Driver, vm_id: str) -> Machine:
        try:
            async with asyncio.timeout(_START_SECONDS):
                for tries in range(1, _STARTS + 1):
                    try:
                        return await driver.start(token=vm_id, idle=self._idle)
                    except MachineUnavailable as exc:
                        _log.warning(
                            "VM not started", extra={"action": "vm_not_started", "vm": vm_id}
                        )
                        if tries == _STARTS:
                            raise MachineUnavailable(
                                f"The session's microVM could not be started: {exc}"
                            ) from exc
                    await asyncio.sleep(_START_PAUSE)
        except TimeoutError as exc:
            raise MachineUnavailable("The session's microVM did not start in time.") from exc
        raise AssertionError("unreachable")

    async def _replace(self, tenant_id: str, session_id: str, vm: Vm) -> None:
        """Let a VM that is gone be used no more; the next need starts another one."""
        async with self._db.tenant(tenant_id) as tx:
            if not await store.lock_session(tx, session_id):
                raise SessionClosed
            retired = await store.retire_vm(tx, vm.id, "gone")
        if retired is not None:
            await self._reaper.end_soon(tenant_id, [retired], patience=0)


async def _is_there(driver: Driver, machine: Machine) -> bool:
    """False if it says nothing at all; otherwise another call may do better."""
    try:
        await driver.ask(machine, "/healthz", {}, timeout=_PROBE_SECONDS)
    except (MachineGone, MachineSilent):
        return False
    except (AgentRefused, MachineUnavailable):
        pass  # what is refused is that this is no GET
    return True


def _unusable(vm: Vm, driver: Driver) -> Reason | None:
    """Why this VM cannot be used, None if it can: another driver's VMs cannot even be asked."""
    if vm.driver != driver.name or vm.given_up:
        return "gone"
    return "expired" if vm.expires else None
