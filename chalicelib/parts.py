"""The parts of a process, each made when it is first asked for, with what it imports.

A cold start of a function pays for the parts of its first call and no others: all of them together
are a quarter of a second of import. Whoever makes a part here imports it here as well.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.auth import Authenticator
from chalicelib.config import Settings
from chalicelib.db import Database
from chalicelib.sessions.hub import Hub

if TYPE_CHECKING:
    from chalicelib.agents.registry import Agents
    from chalicelib.context.upkeep import Upkeep
    from chalicelib.embeddings import Embedder
    from chalicelib.isolation.base import Driver
    from chalicelib.isolation.keeper import Machines
    from chalicelib.isolation.reaper import Reaper
    from chalicelib.memory.approval import Candidates
    from chalicelib.memory.directory import People
    from chalicelib.memory.distill.passes import Distiller
    from chalicelib.memory.distillates import Distillates
    from chalicelib.memory.embedder import Indexer
    from chalicelib.memory.erasure import Erasure
    from chalicelib.memory.export import Export
    from chalicelib.memory.narrative.narrator import Narrator
    from chalicelib.memory.policy import Policies
    from chalicelib.memory.promoted import Episodes
    from chalicelib.memory.retention import Retention
    from chalicelib.memory.schedule import HandOut
    from chalicelib.memory.search import Search
    from chalicelib.memory.timeline import Timeline
    from chalicelib.providers import Models
    from chalicelib.secrets import Secrets
    from chalicelib.sessions.closing import Closing
    from chalicelib.sessions.contexts import Contexts
    from chalicelib.sessions.decisions import Approvals
    from chalicelib.sessions.engine import Engine
    from chalicelib.sessions.lifecycle import Sessions
    from chalicelib.sessions.pins import Pins
    from chalicelib.sessions.produce import Compiler
    from chalicelib.tools.toolbox import ToolDeps


@dataclass(kw_only=True)
class Parts:
    """What the ways in call. Those that are fields are there from the start."""

    settings: Settings
    db: Database
    auth: Authenticator
    hub: Hub

    def made(self, part: str) -> bool:
        """Whether anyone has asked for this part."""
        return part in vars(self)

    def make_all(self) -> None:
        """Make every part now; SettingsError when one of them cannot be."""
        for name, part in vars(Parts).items():
            if isinstance(part, cached_property):
                getattr(self, name)

    # --- what answers -----------------------------------------------------------------------------
    @cached_property
    def secrets(self) -> "Secrets":
        """Tenants' own keys, sealed."""
        from chalicelib.secrets import Secrets
        from chalicelib.vault import Vault

        return Secrets(self.db, Vault(self.settings))

    @cached_property
    def models(self) -> "Models":
        """The chains of models."""
        from chalicelib.providers import Models

        return Models(self.settings, tenant_keys=self.secrets.provider_keys)

    @cached_property
    def embedder(self) -> "Embedder | None":
        """None where no vectors are made; so is the indexer."""
        from chalicelib.embeddings import make_embedder

        return make_embedder(self.settings)

    @cached_property
    def indexer(self) -> "Indexer | None":
        """What makes the vectors that lack."""
        from chalicelib.memory.embedder import Indexer

        return None if self.embedder is None else Indexer(self.db, self.embedder)

    @property
    def _prompt_indexer(self) -> "Indexer | None":
        # a vendor takes too long for a caller to wait: its vectors are made in the background
        return self.indexer if self.settings.embeddings == "wheel" else None

    # --- sessions ---------------------------------------------------------------------------------
    @cached_property
    def engine(self) -> "Engine":
        """What runs turns."""
        from chalicelib.sessions.engine import Engine
        from chalicelib.sessions.produce import Producer

        return Engine(
            self.db,
            self.hub,
            Producer(self.models, self._tools, self._compiler),
            self._upkeep,
            lease=self.settings.turn_lease,
            timeout=self.settings.turn_timeout,
        )

    @cached_property
    def sessions(self) -> "Sessions":
        """What callers do with a session."""
        from chalicelib.sessions.dispatch import dispatch_here, dispatch_to_queue
        from chalicelib.sessions.lifecycle import Sessions

        if self.settings.turns_queue_url:
            dispatch = dispatch_to_queue(self.settings.turns_queue_url)
        else:
            dispatch = dispatch_here(self.engine)
        return Sessions(self.db, self.hub, lambda: self.engine, dispatch, self.reaper)

    @cached_property
    def closing(self) -> "Closing":
        """The ends of sessions."""
        from chalicelib.memory import schedule
        from chalicelib.sessions.closing import Closing

        retell = schedule.retell_here(self.narrator)
        if url := self.settings.memory_queue_url:
            retell = schedule.send_to_queue(url, only=schedule.NARRATIVES)
        return Closing(
            self.db,
            self.hub,
            send=self.sessions.send,
            settle=self._upkeep.settle,
            retell=retell,
            auto_save=self._auto_save,
            reaper=self.reaper,
        )

    @cached_property
    def contexts(self) -> "Contexts":
        """What a session's model would be told."""
        from chalicelib.sessions.contexts import Contexts

        return Contexts(self.db, self._compiler)

    @cached_property
    def pins(self) -> "Pins":
        """What a session's model is always told."""
        from chalicelib.sessions.pins import Pins

        return Pins(self.db, budget=self.models.budget)

    @cached_property
    def approvals(self) -> "Approvals":
        """Decisions on what tools want to do."""
        from chalicelib.sessions.decisions import Approvals

        return Approvals(self.db, self.hub, self.sessions)

    @cached_property
    def agents(self) -> "Agents":
        """Agents as they are defined."""
        from chalicelib.agents.registry import Agents

        return Agents(
            self.db,
            knows=self.models.knows,
            secrets=self.secrets,
            isolates=self.machines.available,
        )

    @cached_property
    def machines(self) -> "Machines":
        """Sessions' own VMs."""
        from chalicelib.isolation.keeper import Machines

        idle = self.settings.session_vm_idle_ttl
        return Machines(self.db, self._driver, self.reaper, idle=idle, wake=self.hub.wake)

    @cached_property
    def reaper(self) -> "Reaper":
        """The ends of sessions' VMs."""
        from chalicelib.isolation.reaper import Reaper

        return Reaper(self.db, self._driver, idle=self.settings.session_vm_idle_ttl)

    @cached_property
    def _driver(self) -> "Driver | None":
        from chalicelib.isolation import make_driver

        return make_driver(self.settings)

    @cached_property
    def _tools(self) -> "ToolDeps":
        from chalicelib.memory.tooling import SessionMemory
        from chalicelib.outbound import Guard
        from chalicelib.tools.toolbox import ToolDeps

        return ToolDeps(
            settings=self.settings,
            guard=Guard(self.settings.tool_private_hosts),
            secret=self.secrets.tool_secret,
            memory=SessionMemory(self.db, self.search),
            machines=self.machines,
        )

    @cached_property
    def _compiler(self) -> "Compiler":
        from chalicelib.memory.injection import Injector
        from chalicelib.sessions.produce import Compiler

        return Compiler(self.models, Injector(self.db, enabled=self.settings.memory_distill))

    @cached_property
    def _upkeep(self) -> "Upkeep":
        from chalicelib.context.compaction import Compactor
        from chalicelib.context.upkeep import Upkeep

        return Upkeep(
            self.db,
            self.models,
            Compactor(self.db, self.hub),
            by_model=self.settings.session_tree == "model",
            auto_save=self._auto_save,
        )

    # --- memory -----------------------------------------------------------------------------------
    @cached_property
    def hand_out(self) -> "HandOut":
        """Where tenants go whose pass is due."""
        from chalicelib.memory import schedule

        if self.settings.memory_queue_url:
            return schedule.send_to_queue(self.settings.memory_queue_url)
        return schedule.run_here(self.distiller, self.narrator)

    @property
    def _auto_save(self) -> "HandOut | None":
        return self.hand_out if self.settings.memory_distill else None

    @cached_property
    def distiller(self) -> "Distiller":
        """What reads the timeline."""
        from chalicelib.memory.distill.passes import Distiller

        return Distiller(self.db, self.models)

    @cached_property
    def narrator(self) -> "Narrator":
        """What writes narratives."""
        from chalicelib.memory.narrative.narrator import Narrator

        return Narrator(self.db, self.models)

    @cached_property
    def people(self) -> "People":
        """Who is who."""
        from chalicelib.memory.directory import People

        return People(self.db)

    @cached_property
    def timeline(self) -> "Timeline":
        """What has been said and has happened."""
        from chalicelib.memory.timeline import Timeline

        return Timeline(self.db, self._prompt_indexer)

    @cached_property
    def distillates(self) -> "Distillates":
        """What is known."""
        from chalicelib.memory.distillates import Distillates

        return Distillates(self.db, self._prompt_indexer)

    @cached_property
    def episodes(self) -> "Episodes":
        """What came of sessions."""
        from chalicelib.memory.promoted import Episodes

        return Episodes(self.db)

    @cached_property
    def candidates(self) -> "Candidates":
        """What is to become of episodes."""
        from chalicelib.memory.approval import Candidates

        return Candidates(self.db)

    @cached_property
    def policies(self) -> "Policies":
        """What tenants keep, and for how long."""
        from chalicelib.memory.policy import Policies

        return Policies(self.db)

    @cached_property
    def retention(self) -> "Retention":
        """The end of what is kept no longer."""
        from chalicelib.memory.retention import Retention

        return Retention(self.db, distilling=self.settings.memory_distill)

    @cached_property
    def search(self) -> "Search":
        """Memory by words and by meaning."""
        from chalicelib.memory.search import Search

        return Search(self.db, self.embedder)

    @cached_property
    def erasure(self) -> "Erasure":
        """The end of all that is held on a person."""
        from chalicelib.memory.erasure import Erasure

        return Erasure(self.db, self.sessions.delete)

    @cached_property
    def export(self) -> "Export":
        """All that is held on a person."""
        from chalicelib.memory.export import Export

        return Export(self.db)
