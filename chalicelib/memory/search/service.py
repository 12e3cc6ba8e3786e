"""What callers search with: every tier at once, under one score."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from chalicelib.db import Database, Tx
from chalicelib.embeddings.base import Embedder
from chalicelib.errors import PalError
from chalicelib.memory.embedder import literal
from chalicelib.memory.search.episodes import Scope, find_events, read_terms
from chalicelib.memory.search.facts import find_facts
from chalicelib.memory.search.narratives import find_narratives
from chalicelib.memory.search.nearness import has_vectors
from chalicelib.memory.search.promoted import find_episodes

_log = logging.getLogger(__name__)

Tier = Literal["episodic", "semantic", "narrative"]

_PATIENCE: Final = 2.0  # seconds for the query's vector: a vendor may take minutes to say nothing

TIERS: Final[tuple[Tier, ...]] = ("episodic", "semantic", "narrative")


def _now() -> datetime:
    return datetime.now(UTC)


class Search:
    """Search over the memory of tenants. `embedder` None: by words, people and days alone."""

    def __init__(
        self,
        db: Database,
        embedder: Embedder | None = None,
        *,
        now: Callable[[], datetime] = _now,
        patience: float = _PATIENCE,
    ) -> None:
        self._db, self._embedder, self._now = db, embedder, now
        self._patience = patience
        self._vectors = False  # once it is there, it stays

    async def find(
        self,
        tenant_id: str,
        *,
        text: str,
        person_id: str | None = None,
        group_id: str | None = None,
        tiers: Sequence[str] = TIERS,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10,
    ) -> list[dict[str, Any]]:
        """The best of these tiers, best first.

        Each is `{tier, id, content, score, occurred_at, person_id?, source_kind, source_ref?}`,
        with `topic` where it is a fact, `kind` where it is what came of a session and `externalId`
        where its event has one; `occurred_at` is a datetime. Whether the person is there is for
        the caller to see to. Of a narrative the content is those of its lines that answer.
        """
        vector = await self._embed(text)
        scope = Scope(group_id=group_id, person_id=person_id, since=since, until=until)
        now = self._now()
        found: list[dict[str, Any]] = []
        async with self._db.tenant(tenant_id) as tx:
            query = await read_terms(tx, text)
            if vector is not None and not await self._has_vectors(tx):
                vector = None
            if "episodic" in tiers:
                found += await find_events(tx, query, scope, vector=vector, limit=limit, now=now)
                found += await find_episodes(tx, query, scope, limit=limit, now=now)
            if "semantic" in tiers:
                found += await find_facts(tx, query, scope, vector=vector, limit=limit, now=now)
            if "narrative" in tiers:
                found += await find_narratives(tx, query, scope, limit=limit, now=now)
        found.sort(key=lambda one: -one["score"])
        return found[:limit]

    async def _embed(self, text: str) -> tuple[str, str] | None:
        """The text's model and vector; None without, also where a vendor does not answer."""
        if self._embedder is None:
            return None
        try:
            async with asyncio.timeout(self._patience):
                [vector] = await self._embedder.embed([text])
        except (PalError, TimeoutError) as exc:
            _log.warning(
                "searched without meaning",
                extra={"action": "embedding_failed", "error": type(exc).__name__},
            )
            return None
        return (self._embedder.name, literal(vector)) if any(vector) else None

    async def _has_vectors(self, tx: Tx) -> bool:
        self._vectors = self._vectors or await has_vectors(tx)
        return self._vectors
