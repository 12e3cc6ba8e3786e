"""What a process is made of, put together once, on the process's loop."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chalicelib import config, telemetry
from chalicelib.agents.registry import Agents
from chalicelib.auth import Authenticator
from chalicelib.config import Settings, SettingsError
from chalicelib.db import Database
from chalicelib.errors import PalError
from chalicelib.memory.directory import People
from chalicelib.memory.timeline import Timeline
from chalicelib.outbound import Guard
from chalicelib.providers import Models
from chalicelib.secrets import Secrets
from chalicelib.sessions.decisions import Approvals
from chalicelib.sessions.dispatch import dispatch_here, dispatch_to_queue
from chalicelib.sessions.engine import Engine
from chalicelib.sessions.follow import check_keys, heartbeat, listen, poll
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.lifecycle import Sessions
from chalicelib.sessions.produce import Producer
from chalicelib.sessions.sweep import purge, sweep
from chalicelib.tools.toolbox import ToolDeps
from chalicelib.vault import Vault

KEY_CHECK_SECONDS = 60.0
_log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0


@dataclass(kw_only=True)
class Services:
    """The parts that the ways in call. `start` it on the loop it will live on, then `stop` it."""

    settings: Settings
    db: Database
    auth: Authenticator
    hub: Hub
    engine: Engine
    models: Models
    sessions: Sessions
    approvals: Approvals
    secrets: Secrets
    agents: Agents
    people: People
    timeline: Timeline
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    def build(cls, settings: Settings) -> "Services":
        """All parts, not started yet; SettingsError when something needed is not set."""
        if not settings.database_url:
            raise SettingsError("PAL_DATABASE_URL must be a postgresql:// URL; it is not set.")
        db = Database(settings.database_url, size=settings.database_pool)
        secrets = Secrets(db, Vault(settings))
        hub = Hub(db, buffer=settings.stream_buffer)
        models = Models(settings, tenant_keys=secrets.provider_keys)
        tools = ToolDeps(
            settings=settings,
            guard=Guard(settings.tool_private_hosts),
            secret=secrets.tool_secret,
        )
        producer = Producer(models, tools)
        engine = Engine(db, hub, producer, lease=settings.turn_lease, timeout=settings.turn_timeout)
        dispatch = dispatch_here(engine)
        if settings.turns_queue_url:
            dispatch = dispatch_to_queue(settings.turns_queue_url)
        sessions = Sessions(db, hub, engine, dispatch)
        return cls(
            settings=settings,
            db=db,
            auth=Authenticator(db),
            hub=hub,
            engine=engine,
            models=models,
            sessions=sessions,
            approvals=Approvals(db, hub, sessions),
            secrets=secrets,
            agents=Agents(db, knows=models.knows, secrets=secrets),
            people=People(db),
            timeline=Timeline(db),
        )

    @property
    def streams_per_key(self) -> int:
        """Open streams a key may have; 0 is no limit."""
        return self.settings.streams_per_key or (100 if self.settings.on_lambda else 0)

    async def start(self, *, sweeping: bool) -> None:
        """Connect, and follow the other processes; `sweeping` where no schedule does it."""
        await self.db.open()
        self._run(partial(heartbeat, self.db, self.hub))
        self._run(partial(check_keys, self.auth, self.hub, every=KEY_CHECK_SECONDS))
        if self.settings.database_listen_url:
            url = self.settings.database_listen_url
            self._run(partial(listen, url, self.hub, self.engine))
        else:
            self._run(partial(poll, self.db, self.hub))
        if sweeping:
            self._run(self._sweep_forever)

    async def sweep(self, *, unclaimed: float) -> int:
        """One round of the sweep; see `sessions.sweep`. Overdue approvals expire with it."""
        await self.approvals.expire_due()
        return await sweep(self.db, self.engine, self.sessions.dispatch, unclaimed=unclaimed)

    async def purge(self) -> int:
        """Delete what has expired; how many events went."""
        return await purge(self.db, age=self.settings.events_retention)

    async def stop(self) -> None:
        """Drain, end the streams, disconnect."""
        await self.engine.drain(self.settings.drain)
        self.hub.close_readers()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.models.close()
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
