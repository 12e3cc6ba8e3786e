"""What a process is made of, on the process's loop: started once, and stopped."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from chalicelib import config, telemetry
from chalicelib.auth import Authenticator
from chalicelib.config import Settings, SettingsError
from chalicelib.db import Database, Login
from chalicelib.errors import PalError, Unavailable
from chalicelib.parts import Parts
from chalicelib.sessions.follow import check_keys, heartbeat, listen, poll
from chalicelib.sessions.hub import Hub

if TYPE_CHECKING:
    from chalicelib.memory.distill.shapes import Slice
    from chalicelib.memory.embedder import Indexer

KEY_CHECK_SECONDS = 60.0
_log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0
_DISTILL_SECONDS = 60.0
_INDEX_SECONDS = 5.0
_IDLE_SECONDS = 60.0
_REAP_SECONDS = 30.0


@dataclass(kw_only=True)
class Services(Parts):
    """The parts that the ways in call. `start` it on the loop it will live on, then `stop` it."""

    _background: list[asyncio.Task[None]] = field(default_factory=list)
    _passes: set["asyncio.Task[Slice]"] = field(default_factory=set)

    @classmethod
    def build(cls, settings: Settings) -> "Services":
        """All parts, not started yet; SettingsError when something needed is not set."""
        if not settings.database_url:
            raise SettingsError("PAL_DATABASE_URL must be a postgresql:// URL; it is not set.")
        login = Login(settings.database_url, iam=settings.database_iam)
        db = Database(login, size=settings.database_pool)
        hub = Hub(db, buffer=settings.stream_buffer)
        return cls(settings=settings, db=db, auth=Authenticator(db), hub=hub)

    @property
    def streams_per_key(self) -> int:
        """Open streams a key may have; 0 is no limit."""
        return self.settings.streams_per_key or (100 if self.settings.on_lambda else 0)

    async def start(self, *, sweeping: bool) -> None:
        """Connect, and follow the other processes.

        `sweeping` where no schedule sweeps, hands passes out and makes vectors.
        """
        if sweeping:
            self.make_all()  # a process that stays says at once what it cannot do
        await self.db.open()
        self._run(partial(heartbeat, self.db, self.hub))
        self._run(partial(check_keys, self.auth, self.hub, every=KEY_CHECK_SECONDS))
        if self.settings.database_listen_url:
            login = Login(self.settings.database_listen_url, iam=self.settings.database_iam)
            self._run(partial(listen, login, self.hub, self.engine))
        else:
            self._run(partial(poll, self.db, self.hub))
        if sweeping:
            self._run(self._sweep_forever)
            if self.settings.memory_distill:
                self._run(self._distill_forever)
            if self.settings.session_idle_end:
                self._run(self._end_idle_forever)
            if self.machines.available:
                self._run(self._reap_forever)
            if self.indexer is not None:
                self._run(partial(self._index_forever, self.indexer))

    async def sweep(self, *, unclaimed: float) -> int:
        """One round of the sweep; see `sessions.sweep`. Overdue approvals expire with it."""
        from chalicelib.sessions.sweep import sweep

        await self.approvals.expire_due()
        return await sweep(self.db, self.engine, self.sessions.dispatch, unclaimed=unclaimed)

    async def distill(self, tenant_id: str) -> "Slice":
        """Run a slice for a caller; as `Distiller.run`, and Unavailable if this process ends."""
        task = asyncio.get_running_loop().create_task(self.distiller.run(tenant_id))
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)
        try:
            return await task
        except asyncio.CancelledError as exc:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            raise Unavailable("This process is shutting down; try again.", retry_after=1) from exc

    async def distill_due(self) -> int:
        """Hand out a slice for every tenant that is due; none, and no look, while that is off."""
        if not self.settings.memory_distill:
            return 0
        from chalicelib.memory import schedule

        every = self.settings.memory_distill_interval
        return await schedule.tick(self.distiller, self.hand_out, every=every)

    async def end_idle(self) -> int:
        """End sessions in which nothing has happened for long, if they are to: how many."""
        idle = self.settings.session_idle_end
        return await self.closing.end_idle(idle) if idle else 0

    async def purge(self) -> int:
        """Delete what has expired, and what tenants keep no longer; how many events went."""
        from chalicelib.sessions.sweep import purge

        await self.retention.sweep()
        await self.reaper.purge()
        return await purge(self.db, age=self.settings.events_retention)

    async def stop(self) -> None:
        """Drain, end the streams, disconnect."""
        if self.made("engine"):
            await self.engine.drain(self.settings.drain)
        self.hub.close_readers()
        # passes give their leases back
        ending = (*self._background, *self._passes)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        # what no one has asked for holds nothing
        for part in ("closing", "reaper", "machines", "embedder", "models"):
            if self.made(part) and getattr(self, part) is not None:
                await getattr(self, part).close()
        await self.db.close()

    async def _sweep_forever(self) -> None:
        every = self.settings.turn_lease / 3
        unclaimed, purged_ago = 0.0, _PURGE_SECONDS  # at the start, what a dead process left
        while True:
            try:
                await self.sweep(unclaimed=unclaimed)
                unclaimed = every
                if purged_ago >= _PURGE_SECONDS:
                    await self.purge()
                    purged_ago = 0.0
            except PalError:
                pass  # told where it happened; the next round is soon
            purged_ago += every
            await asyncio.sleep(every)

    async def _distill_forever(self) -> None:
        while True:
            with suppress(PalError):  # told where it happened; the next round is soon
                await self.distill_due()
            await asyncio.sleep(min(_DISTILL_SECONDS, self.settings.memory_distill_interval))

    async def _end_idle_forever(self) -> None:
        while True:
            with suppress(PalError):  # told where it happened; the next round is soon
                await self.end_idle()
            await asyncio.sleep(min(_IDLE_SECONDS, self.settings.session_idle_end))

    async def _reap_forever(self) -> None:
        while True:
            with suppress(PalError):  # told where it happened; the next round is soon
                await self.reaper.sweep()
            await asyncio.sleep(_REAP_SECONDS)

    async def _index_forever(self, indexer: "Indexer") -> None:
        from chalicelib.memory.schedule import fill_index

        while True:
            if not await fill_index(indexer):
                await asyncio.sleep(_INDEX_SECONDS)

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(
            _for_ever(work), context=contextvars.Context()
        )
        self._background.append(task)


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            # what keeps streams alive must not end for one fault
            _log.exception("background work broke", extra={"action": "background_broke"})
        await asyncio.sleep(1)


_services: Services | None = None
_starting: asyncio.Lock | None = None


async def services() -> Services:
    """This process's services, built and started from the environment at the first call."""
    global _services, _starting
    if _services is None:
        _starting = _starting or asyncio.Lock()
        async with _starting:
            if _services is None:
                settings = config.settings()
                telemetry.configure(settings)
                made = Services.build(settings)
                await made.start(sweeping=False)
                _services = made
    return _services


def use(made: Services | None) -> None:
    """Make these, already started, the process's services; None forgets them."""
    global _services, _starting
    _services, _starting = made, None
