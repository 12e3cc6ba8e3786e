"""The work behind a reply: the execution tree is kept, and a long context is compacted.

It runs once the reply is out and never delays the next turn. One process a session is at it at a
time: it holds a lease of its own, since the turn's is given back with the reply. Whatever fails
leaves everything as it was; what a turn left unread, the work behind the next one reads.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, Literal

import psycopg

from chalicelib.agents.definition import AgentDefinition, parse_definition
from chalicelib.context.compaction import Compactor
from chalicelib.context.fold import fold, render_tree
from chalicelib.context.shapes import Said, Tree
from chalicelib.context.summary import PAST
from chalicelib.context.tree import Operation, apply_all
from chalicelib.context.tree_asking import ask_operations
from chalicelib.context.tree_store import read_tree, write_tree
from chalicelib.db import Database, Tx, load_queries
from chalicelib.db.connections import name_of
from chalicelib.errors import NoModel, PalError, ProviderError
from chalicelib.providers import Models, Provider
from chalicelib.providers.asking import UnreadableAnswer

_QUERIES: Final = load_queries(__file__, "upkeep.sql")
_log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 300.0
SETTLE_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.1
_UNREAD_AT_MOST: Final = 60
_ROUNDS_AT_MOST: Final = 5
_CALIBRATION_AT_LEAST: Final = 0.5
_CALIBRATION_AT_MOST: Final = 2.0
_MARGIN: Final = 1.05
_UNSEEN: Final = 250
"""Tokens that a provider may put before a prompt; they do not grow with it."""

Outcome = Literal["done", "busy", "failed"]
HandOut = Callable[[Sequence[str]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Tokens of a request by the provider's count, and by our estimate."""

    model: str
    tokens: int
    estimated: float

    @property
    def calibration(self) -> float:
        """What an estimate is to be multiplied with, so that it comes out a little too high."""
        estimated = max(self.estimated, 1.0)
        told = max(self.tokens - _UNSEEN, min(self.tokens, estimated))
        ratio = _MARGIN * told / estimated
        return min(max(ratio, _CALIBRATION_AT_LEAST), _CALIBRATION_AT_MOST)


@dataclass(frozen=True, kw_only=True)
class _Work:
    tenant_id: str
    session_id: str
    lease: str
    agent: AgentDefinition
    own_keys: bool
    entries: int
    compact_at: int
    said: tuple[Said, ...]
    tree: Tree

    @property
    def is_long(self) -> bool:
        return (
            self.agent.context == "compact"
            and self.entries > PAST
            and self.entries >= self.compact_at
        )


class Upkeep:
    """Does that work. `by_model` false: the tree is kept by a plain heuristic, without a model.

    `auto_save` has a tenant's timeline read for facts; None where that is off.
    """

    def __init__(
        self,
        db: Database,
        models: Models,
        compactor: Compactor,
        *,
        by_model: bool,
        auto_save: HandOut | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._db, self._models, self._compactor = db, models, compactor
        self._by_model, self._auto_save, self._now = by_model, auto_save, now

    async def run(
        self, tenant_id: str, session_id: str, *, counted: Counted | None = None
    ) -> Outcome:
        """Do what is to be done for the session by now. Raises nothing.

        `busy`: another one is at it, and does this too.
        """
        try:
            return await self._run(tenant_id, session_id, counted=counted)
        except PalError as exc:
            _log.warning("upkeep put off", extra={"action": "upkeep_put_off", "error": exc.code})
        except Exception as exc:
            # no reply waits for it and the next one tries again; the text may hold a message
            _log.error(
                "upkeep broke",
                extra={"action": "upkeep_broke", "error": name_of(exc)},
                exc_info=_log.isEnabledFor(logging.DEBUG),
            )
        return "failed"

    async def settle(
        self, tenant_id: str, session_id: str, *, seconds: float = SETTLE_SECONDS
    ) -> None:
        """Bring the tree up to date before the session ends: by a model if it is quick, or plainly.

        Raises Unavailable.
        """
        outcome: Outcome = "busy"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while outcome == "busy":
                    outcome = await self.run(tenant_id, session_id)
                    await asyncio.sleep(_AGAIN_SECONDS if outcome == "busy" else 0)
        if outcome != "done":
            await self._run(tenant_id, session_id, force=True)

    async def _run(
        self,
        tenant_id: str,
        session_id: str,
        *,
        counted: Counted | None = None,
        force: bool = False,
    ) -> Outcome:
        lease, compacted = secrets.token_hex(8), False
        problem: ProviderError | None = None
        for _ in range(_ROUNDS_AT_MOST):
            async with self._db.tenant(tenant_id) as tx:
                taken = await self._take(tx, session_id, lease, counted=counted, force=force)
                if isinstance(taken, str):
                    return taken
                work = await self._read(tx, tenant_id, session_id, lease, taken)
                plain = force or not (self._by_model or work.is_long)
                if plain:
                    await self._keep_plainly(tx, work)
                    ended = await self._end(tx, work, anyway=force)
            if not plain:
                shorter, problem = await self._work(work)
                compacted |= shorter
                async with self._db.tenant(tenant_id) as tx:
                    ended = await self._end(tx, work, anyway=problem is not None)
            if ended:
                break
        else:
            await self._give_up(work)
        if compacted and work.agent.memory.auto_save and self._auto_save is not None:
            await self._auto_save([tenant_id])
        if problem is not None:
            raise problem
        return "done"

    async def _work(self, work: _Work) -> tuple[bool, ProviderError | None]:
        """Keep the tree, then compact the session: whether it was, and why the tree was not kept.

        A model that cannot keep the tree is no reason to let the context grow as well.
        """
        problem = None
        try:
            provider = await self._provider(work)
            try:
                await self._keep(work, provider)
            except ProviderError as exc:
                problem = exc
            return work.is_long and await self._compact(work, provider), problem
        except BaseException:
            await self._give_up(work)
            raise

    async def _keep(self, work: _Work, provider: Provider | None) -> None:
        """Bring the tree up to date."""
        if provider is None or not self._by_model:
            async with self._db.tenant(work.tenant_id) as tx:
                await self._keep_plainly(tx, work)
        elif work.said:
            operations = await self._operations(work, provider)
            tree, refused = _after(work.tree, operations, work.said)
            if refused:
                told = {"action": "tree_refused", "count": refused}
                _log.info("operations refused", extra=told)
            async with self._db.tenant(work.tenant_id) as tx:
                await self._write(tx, work, tree)

    async def _compact(self, work: _Work, provider: Provider | None) -> bool:
        return await self._compactor.run(
            tenant_id=work.tenant_id,
            session_id=work.session_id,
            lease=work.lease,
            provider=provider,
            now=self._now(),
        )

    async def _operations(self, work: _Work, provider: Provider) -> list[Operation]:
        try:
            return await ask_operations(provider, work.tree, work.said, self._now())
        except UnreadableAnswer:
            # another try would be as bad: the turn is taken for read
            _log.warning("tree unreadable", extra={"action": "tree_unreadable"})
            return []

    async def _provider(self, work: _Work) -> Provider | None:
        """The fast role's chain; None where there is only the stand-in."""
        try:
            return await self._models.chain(
                tenant_id=work.tenant_id,
                specs=work.agent.models.fast,
                role="fast",
                own_keys=work.own_keys,
                stand_in=False,
            )
        except NoModel:
            return None

    async def _keep_plainly(self, tx: Tx, work: _Work) -> None:
        from chalicelib.context.plain_tree import plain_operations  # patterns, 15 ms to make

        tree = work.tree
        for _, said in groupby(work.said, key=lambda one: one.ordinal):
            turn = tuple(said)
            tree, _ = _after(tree, plain_operations(tree, turn), turn)
        await self._write(tx, work, tree)

    async def _write(self, tx: Tx, work: _Work, tree: Tree) -> None:
        if not work.said:
            return
        after = fold(tree)
        await write_tree(
            tx,
            work.session_id,
            work.tree,
            after,
            rendered=render_tree(after),
            ordinal=work.said[-1].ordinal,
            lease=work.lease,
        )

    # ── the lease ────────────────────────────────────────────────────────────────────────────
    async def _take(
        self, tx: Tx, session_id: str, lease: str, *, counted: Counted | None, force: bool
    ) -> tuple[int, int] | Outcome:
        """(turns that were read, messages that a summary waits for), or that there is no work."""
        values: dict[str, Any] = {
            "session_id": session_id,
            "lease": lease,
            "seconds": LEASE_SECONDS,
            "calibration": counted and counted.calibration,
            "model": counted and counted.model,
            "force": force,
        }
        row = await (await tx.execute(_QUERIES["take_work"], values)).fetchone()
        if row is not None:
            return (row[0], row[1])
        is_open = await (await tx.execute(_QUERIES["is_open"], values)).fetchone()
        return "busy" if is_open and is_open[0] else "done"

    async def _read(
        self, tx: Tx, tenant_id: str, session_id: str, lease: str, taken: tuple[int, int]
    ) -> _Work:
        values = {"session_id": session_id, "ordinal": taken[0], "most": _UNREAD_AT_MOST}
        row = await (await tx.execute(_QUERIES["read_work"], values)).fetchone()
        assert row is not None, "its state refers to it"
        said = await (await tx.execute(_QUERIES["unread"], values)).fetchall()
        return _Work(
            tenant_id=tenant_id,
            session_id=session_id,
            lease=lease,
            agent=parse_definition(row[1] or "{}"),
            own_keys=row[2],
            entries=row[0],
            compact_at=taken[1],
            said=tuple(
                Said(id=one[0], role=one[1], content=one[2], at=one[3], ordinal=one[4])
                for one in said
            ),
            tree=await read_tree(tx, session_id) if said else Tree(),
        )

    async def _end(self, tx: Tx, work: _Work, *, anyway: bool) -> bool:
        """Give the lease back; False where more is to be read."""
        values = {"session_id": work.session_id, "lease": work.lease, "anyway": anyway}
        return await (await tx.execute(_QUERIES["end_work"], values)).fetchone() is not None

    async def _give_up(self, work: _Work) -> None:
        """Give the lease back; where that fails as well, it lapses."""
        with suppress(PalError, psycopg.Error):
            async with self._db.tenant(work.tenant_id) as tx:
                await self._end(tx, work, anyway=True)


def _after(tree: Tree, operations: Sequence[Operation], said: Sequence[Said]) -> tuple[Tree, int]:
    """The tree once what was made of this is applied to it, and how much of that did not hold."""
    sources = tuple(one.id for one in said)
    return apply_all(tree, operations, sources=sources, at=said[-1].at)
