"""What a process is made of, put together once, on the process's loop."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chalicelib import config, telemetry
from chalicelib.agents.registry import Agents
from chalicelib.auth import Authenticator
from chalicelib.config import Settings, SettingsError
from chalicelib.context.compaction import Compactor
from chalicelib.context.upkeep import Upkeep
from chalicelib.db import Database
from chalicelib.embeddings import Embedder, make_embedder
from chalicelib.errors import PalError, Unavailable
from chalicelib.memory import schedule
from chalicelib.memory.approval import Candidates
from chalicelib.memory.directory import People
from chalicelib.memory.distill.passes import Distiller
from chalicelib.memory.distill.shapes import Slice
from chalicelib.memory.distillates import Distillates
from chalicelib.memory.embedder import Indexer
from chalicelib.memory.erasure import Erasure
from chalicelib.memory.export import Export
from chalicelib.memory.injection import Injector
from chalicelib.memory.narrative.narrator import Narrator
from chalicelib.memory.policy import Policies
from chalicelib.memory.promoted import Episodes
from chalicelib.memory.retention import Retention
from chalicelib.memory.search import Search
from chalicelib.memory.timeline import Timeline
from chalicelib.memory.tooling import SessionMemory
from chalicelib.outbound import Guard
from chalicelib.providers import Models
from chalicelib.secrets import Secrets
from chalicelib.sessions.closing import Closing
from chalicelib.sessions.contexts import Contexts
from chalicelib.sessions.decisions import Approvals
from chalicelib.sessions.dispatch import dispatch_here, dispatch_to_queue
from chalicelib.sessions.engine import Engine
from chalicelib.sessions.follow import check_keys, heartbeat, listen, poll
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.lifecycle import Sessions
from chalicelib.sessions.pins import Pins
from chalicelib.sessions.produce import Compiler, Producer
from chalicelib.sessions.sweep import purge, sweep
from chalicelib.tools.toolbox import ToolDeps
from chalicelib.vault import Vault

KEY_CHECK_SECONDS = 60.0
_log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0
_DISTILL_SECONDS = 60.0
_INDEX_SECONDS = 5.0
_IDLE_SECONDS = 60.0


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
    closing: Closing
    contexts: Contexts
    pins: Pins
    approvals: Approvals
    secrets: Secrets
    agents: Agents
    people: People
    timeline: Timeline
    distillates: Distillates
    episodes: Episodes
    candidates: Candidates
    policies: Policies
    distiller: Distiller
    narrator: Narrator
    retention: Retention
    search: Search
    embedder: Embedder | None
    """None where no vectors are made; so is the indexer."""
    indexer: Indexer | None
    erasure: Erasure
    export: Export
    hand_out: schedule.HandOut
    _background: list[asyncio.Task[None]] = field(default_factory=list)
    _passes: set[asyncio.Task[Slice]] = field(default_factory=set)

    @classmethod
    def build(cls, settings: Settings) -> "Services":
        """All parts, not started yet; SettingsError when something needed is not set."""
        if not settings.database_url:
            raise SettingsError("PAL_DATABASE_URL must be a postgresql:// URL; it is not set.")
        db = Database(settings.database_url, size=settings.database_pool)
        secrets = Secrets(db, Vault(settings))
        hub = Hub(db, buffer=settings.stream_buffer)
        models = Models(settings, tenant_keys=secrets.provider_keys)
        embedder = make_embedder(settings)
        indexer = None if embedder is None else Indexer(db, embedder)
        # a vendor takes too long for a caller to wait: its vectors are made in the background
        prompt_indexer = indexer if settings.embeddings == "wheel" else None
        search = Search(db, embedder)
        tools = ToolDeps(
            settings=settings,
            guard=Guard(settings.tool_private_hosts),
            secret=secrets.tool_secret,
            memory=SessionMemory(db, search),
        )
        distiller = Distiller(db, models)
        narrator = Narrator(db, models)
        hand_out = schedule.run_here(distiller, narrator)
        retell = schedule.retell_here(narrator)
        if settings.memory_queue_url:
            hand_out = schedule.send_to_queue(settings.memory_queue_url)
            retell = schedule.send_to_queue(settings.memory_queue_url, only=schedule.NARRATIVES)
        auto_save = hand_out if settings.memory_distill else None
        compiler = Compiler(models, Injector(db, enabled=settings.memory_distill))
        upkeep = Upkeep(
            db,
            models,
            Compactor(db, hub),
            by_model=settings.session_tree == "model",
            auto_save=auto_save,
        )
        engine = Engine(
            db,
            hub,
            Producer(models, tools, compiler),
            upkeep,
            lease=settings.turn_lease,
            timeout=settings.turn_timeout,
        )
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
            closing=Closing(
                db,
                hub,
                send=sessions.send,
                settle=upkeep.settle,
                retell=retell,
                auto_save=auto_save,
            ),
            contexts=Contexts(db, compiler),
            pins=Pins(db, budget=models.budget),
            approvals=Approvals(db, hub, sessions),
            secrets=secrets,
            agents=Agents(db, knows=models.knows, secrets=secrets),
            people=People(db),
            timeline=Timeline(db, prompt_indexer),
            distillates=Distillates(db, prompt_indexer),
            episodes=Episodes(db),
            candidates=Candidates(db),
            policies=Policies(db),
            distiller=distiller,
            narrator=narrator,
            retention=Retention(db, distilling=settings.memory_distill),
            search=search,
            embedder=embedder,
            indexer=indexer,
            erasure=Erasure(db, sessions.delete),
            export=Export(db),
            hand_out=hand_out,
        )

    @property
    def streams_per_key(self) -> int:
        """Open streams a key may have; 0 is no limit."""
        return self.settings.streams_per_key or (100 if self.settings.on_lambda else 0)

    async def start(self, *, sweeping: bool) -> None:
        """Connect, and follow the other processes.

        `sweeping` where no schedule sweeps, hands passes out and makes vectors.
        """
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
            if self.settings.memory_distill:
                self._run(self._distill_forever)
            if self.settings.session_idle_end:
                self._run(self._end_idle_forever)
            if self.indexer is not None:
                self._run(partial(self._index_forever, self.indexer))

    async def sweep(self, *, unclaimed: float) -> int:
        """One round of the sweep; see `sessions.sweep`. Overdue approvals expire with it."""
        await self.approvals.expire_due()
        return await sweep(self.db, self.engine, self.sessions.dispatch, unclaimed=unclaimed)

    async def distill(self, tenant_id: str) -> Slice:
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
        every = self.settings.memory_distill_interval
        return await schedule.tick(self.distiller, self.hand_out, every=every)

    async def end_idle(self) -> int:
        """End sessions in which nothing has happened for long, if they are to: how many."""
        idle = self.settings.session_idle_end
        return await self.closing.end_idle(idle) if idle else 0

    async def purge(self) -> int:
        """Delete what has expired, and what tenants keep no longer; how many events went."""
        await self.retention.sweep()
        return await purge(self.db, age=self.settings.events_retention)

    async def stop(self) -> None:
        """Drain, end the streams, disconnect."""
        await self.engine.drain(self.settings.drain)
        self.hub.close_readers()
        # passes give their leases back
        ending = (*self._background, *self._passes)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.closing.close()
        if self.embedder is not None:
            await self.embedder.close()
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

    async def _index_forever(self, indexer: Indexer) -> None:
        while True:
            if not await schedule.fill_index(indexer):
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
