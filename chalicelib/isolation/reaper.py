"""Ends VMs: those whose session took its last turn, those no one uses, those no one knows of.

A VM is first entered as ending, in a transaction; then its driver ends it, as often as it takes,
and only then the row goes. So whatever dies in between, the next sweep finds what is left.

A machine that no row knows comes of a start whose process died before it could enter the answer.
The longest that a row is waited for is 8 minutes (`run_vm`), and the machine's start is never older
than its row; so one that is older than 10 minutes and unknown, asked in that order, is no one's.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chalicelib.db import Database
from chalicelib.errors import PalError
from chalicelib.isolation import store
from chalicelib.isolation.base import Driver, MachineGone, MachineUnavailable
from chalicelib.isolation.store import Ending

_log = logging.getLogger(__name__)

SETTLED: Final = 600.0

_BATCH: Final = 200
_AT_ONCE: Final = 8
_PATIENCE: Final = 2.0
_LONGEST: Final = 15.0
_WITHIN: Final = 20.0
_RECONCILE_EVERY: Final = 300.0


class Reaper:
    """The ends of sessions' VMs. Without a driver it only deletes what is left of older ones."""

    def __init__(self, db: Database, driver: Driver | None, *, idle: float) -> None:
        self._db, self._driver, self._idle = db, driver, idle
        self._ending: set[asyncio.Task[None]] = set()
        self._reconciled: float | None = None

    async def end_soon(
        self, tenant_id: str, ending: Sequence[Ending], *, patience: float = _PATIENCE
    ) -> None:
        """End VMs of a committed end, waiting a little; the sweep ends what this does not."""
        if not ending or self._driver is None:
            return
        # of no request's context: it may outlast the one it came of
        tasks = [
            asyncio.get_running_loop().create_task(
                self._try_end(tenant_id, one), context=contextvars.Context()
            )
            for one in ending
        ]
        for task in tasks:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if patience:
            await asyncio.wait(tasks, timeout=patience)

    async def sweep(self, *, within: float = _WITHIN) -> int:
        """End what is due, in all tenants, and reconcile now and then: how many have ended."""
        if self._driver is None:
            return 0
        until = time.monotonic() + within
        async with self._db.system() as tx:
            due = await store.due_vms(tx, driver=self._driver.name, idle=self._idle, most=_BATCH)
        ended = await _some_at_once([self._end_due(*one, until=until) for one in due])
        last = self._reconciled
        if last is None or time.monotonic() - last >= _RECONCILE_EVERY:
            self._reconciled = time.monotonic()
            ended += await self.reconcile(within=until - time.monotonic())
        return ended

    async def reconcile(self, *, within: float = _WITHIN) -> int:
        """Compare what is entered with what there is: how many VMs were ended, or entered as gone.

        One that is gone is ended all the same, in case that its driver has overlooked it.
        """
        driver = self._driver
        if driver is None:
            return 0
        until = time.monotonic() + within
        try:
            async with asyncio.timeout(max(0.0, within)):
                alive = await driver.list()
        except (MachineUnavailable, TimeoutError) as exc:
            _log.warning(
                "VMs not listed", extra={"action": "vms_not_listed", "error": type(exc).__name__}
            )
            return 0
        ids = [one.id for one in alive]
        before = datetime.now(UTC) - timedelta(seconds=SETTLED)
        old = [one.id for one in alive if one.started_at < before]
        async with self._db.system() as tx:
            known = await store.known_machines(tx, driver=driver.name, found=old)
            lost = await store.lost_vms(
                tx, driver=driver.name, alive=ids, settled=SETTLED, most=_BATCH
            )
        unknown = [one for one in old if one not in known][:_BATCH]
        gone = await _some_at_once([self._end_lost(*one, until=until) for one in lost])
        leaked = await _some_at_once([self._end_unknown(one, until=until) for one in unknown])
        if gone or leaked:
            _log.warning(
                "VMs reconciled",
                extra={"action": "vms_reconciled", "gone": gone, "leaked": leaked},
            )
        return gone + leaked

    async def purge(self) -> int:
        """Delete rows that no one can need any more: how many."""
        async with self._db.system() as tx:
            return await store.purge_vms(tx)

    async def terminate(self, machine_id: str) -> bool:
        """End a machine that no row is to know any more; False, and a log line, if it cannot be."""
        assert self._driver is not None
        try:
            async with asyncio.timeout(_LONGEST):
                await self._driver.terminate(machine_id)
        except MachineGone:
            pass
        except Exception as exc:
            _log.warning(
                "VM not ended; it is tried again",
                extra={"action": "vm_not_ended", "error": type(exc).__name__},
            )
            return False
        return True

    async def close(self) -> None:
        """Give up what is still being ended here; the sweep takes it up."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _try_end(self, tenant_id: str, ending: Ending) -> None:
        with suppress(PalError):  # told where it happened; the row is there for the sweep
            await self._end(tenant_id, ending)

    async def _end(self, tenant_id: str, ending: Ending) -> bool:
        if ending.machine_id is not None and not await self.terminate(ending.machine_id):
            return False
        async with self._db.tenant(tenant_id) as tx:
            await store.finish_end(tx, ending.id)
        _log.info("VM ended", extra={"action": "vm_ended", "vm": ending.id})
        return True

    async def _end_due(self, tenant_id: str, vm_id: str, *, until: float) -> bool:
        if time.monotonic() >= until:
            return False
        async with self._db.tenant(tenant_id) as tx:
            ending = await store.begin_end(tx, vm_id, idle=self._idle)
        return ending is not None and await self._end(tenant_id, ending)

    async def _end_lost(self, tenant_id: str, session_id: str, vm_id: str, *, until: float) -> bool:
        if time.monotonic() >= until:
            return False
        async with self._db.tenant(tenant_id) as tx:
            await store.lock_session(tx, session_id)
            ending = await store.retire_vm(tx, vm_id, "gone")
        return ending is not None and await self._end(tenant_id, ending)

    async def _end_unknown(self, machine_id: str, *, until: float) -> bool:
        return time.monotonic() < until and await self.terminate(machine_id)


async def _some_at_once(work: Sequence[Awaitable[bool]]) -> int:
    """How many of these came out true; one that the database fails is found again later."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(each: Awaitable[bool]) -> bool:
        async with gate:
            return await each

    done: list[Any] = await asyncio.gather(*map(one, work), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PalError):
            raise outcome
    return sum(outcome is True for outcome in done)
