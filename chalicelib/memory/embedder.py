"""Vectors of events and distillates: made with an ingest, and in the background where they lack.

A vector is that of its row's own words; what was said around it counts when it is searched for. All
of this can be done twice, and by two at once: what is written depends on the rows alone. Without
pgvector there is nothing to do.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, LiteralString

from chalicelib.db import Database, load_queries
from chalicelib.embeddings import DIMENSIONS, Embedder, Vector
from chalicelib.embeddings.base import TEXT_BYTES
from chalicelib.errors import PalError, ProviderError

_QUERIES: Final = load_queries(__file__, "embedder.sql")
_log = logging.getLogger(__name__)

# rows of a transaction, and how many are looked at for that
_BATCH: Final = 250
_LOOK: Final = 500

# for how long it is believed that there are no vectors
_ABSENT_SECONDS: Final = 60.0

# half floats hold three digits and a bit
_LITERAL: Final = "[" + ",".join(["%.5g"] * DIMENSIONS) + "]"


def literal(vector: Vector) -> str:
    """A vector as the text of a `halfvec`."""
    return _LITERAL % tuple(vector)


class Indexer:
    """Makes the vectors of one model, and knows how far it has come in each tenant."""

    def __init__(self, db: Database, embedder: Embedder) -> None:
        self._db, self._embedder = db, embedder
        self._ready_until = 0.0
        self._ready = False

    async def ready(self) -> bool:
        """Whether this database has vectors at all."""
        if not self._ready and time.monotonic() >= self._ready_until:
            async with self._db.system() as tx:
                row = await (await tx.execute(_QUERIES["ready"])).fetchone()
            self._ready = bool(row and row[0])
            self._ready_until = time.monotonic() + _ABSENT_SECONDS
            if not self._ready:
                _log.info("no vectors: the database lacks them", extra={"action": "no_vectors"})
        return self._ready

    async def due(self, most: int) -> list[str]:
        """Tenants in which something may lack a vector, those tried longest ago first."""
        if not await self.ready():
            return []
        async with self._db.system() as tx:
            values = {"model": self._embedder.name, "most": most}
            return [row[0] for row in await (await tx.execute(_QUERIES["due"], values)).fetchall()]

    async def progress(self, tenant_id: str) -> dict[str, Any]:
        """`{model, done, total}` over events and active distillates."""
        model = self._embedder.name
        if not await self.ready():
            return {"model": model, "done": 0, "total": 0}
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["progress"], {"model": model})
            done, total = await cur.fetchone() or (0, 0)
        return {"model": model, "done": done, "total": total}

    async def embed_events(self, tenant_id: str, event_ids: Sequence[str]) -> int:
        """Make the vectors of events that have just come.

        How many were written. Raises ProviderError; what is left out then comes with `run_once`.
        """
        if not event_ids or not await self.ready():
            return 0
        done = 0
        for start in range(0, len(event_ids), _BATCH):
            done += len(await self._write_events(tenant_id, event_ids[start : start + _BATCH]))
        return done

    async def embed_distillates(self, tenant_id: str, ids: Sequence[str]) -> int:
        """The same of distillates."""
        if not ids or not await self.ready():
            return 0
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["read_facts"], {"ids": list(ids)})
            facts = {row[0]: fact_text(row[1], row[2]) for row in await cur.fetchall()}
        return len(await self._write_facts(tenant_id, facts))

    async def run_once(self, tenant_id: str, most: int = 500) -> int:
        """Make up to so many vectors that lack in a tenant: how many. 0: it has caught up.

        First what came lately, then the distillates, then the rest from the newest down. Raises
        ProviderError.
        """
        if not await self.ready():
            return 0
        async with self._db.tenant(tenant_id) as tx:
            await tx.execute(_QUERIES["begin"], {"model": self._embedder.name})
        done, failure = 0, None
        try:
            for step in (self._newer, self._facts, self._older):
                more = True
                while more and done < most:
                    some, more = await step(tenant_id, most - done)
                    done += some
        except ProviderError as exc:
            failure = exc
            _log.warning("no embeddings", extra={"action": "embedding_failed", "error": exc.code})
        values = {"model": self._embedder.name, "failed": failure is not None}
        async with self._db.tenant(tenant_id) as tx:
            await tx.execute(_QUERIES["note_try"], values)
        if failure is not None:
            raise failure
        return done

    # each of these: how many were written, and whether it is worth going on

    async def _newer(self, tenant_id: str, most: int) -> tuple[int, bool]:
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["newer"], self._page())
            seen, missing = _first(await cur.fetchall(), most)
            if not seen:
                return 0, False
        written = await self._write_events(tenant_id, missing)
        values = self._place(seen[-1], set(missing) - written)
        async with self._db.tenant(tenant_id) as tx:
            moved = (await tx.execute(_QUERIES["pass_newer"], values)).rowcount
        return len(written), bool(moved)

    async def _older(self, tenant_id: str, most: int) -> tuple[int, bool]:
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["older"], self._page())
            seen, missing = _first(await cur.fetchall(), most)
            if not seen:
                await tx.execute(_QUERIES["end_older"], {"model": self._embedder.name})
                return 0, False
        written = await self._write_events(tenant_id, missing)
        values = self._place(seen[-1], set(missing) - written)
        async with self._db.tenant(tenant_id) as tx:
            moved = (await tx.execute(_QUERIES["pass_older"], values)).rowcount
        return len(written), bool(moved)

    async def _facts(self, tenant_id: str, most: int) -> tuple[int, bool]:
        async with self._db.tenant(tenant_id) as tx:
            found = await (await tx.execute(_QUERIES["facts"], self._page())).fetchall()
        facts: dict[str, str] = {}
        passed = ""
        all_settled = True
        for fact_id, topic, content, lacks, settled in found:
            if lacks and len(facts) == min(most, _BATCH):
                break
            if lacks:
                facts[fact_id] = fact_text(topic, content)
            all_settled = all_settled and settled
            passed = fact_id if all_settled else passed
        written = await self._write_facts(tenant_id, facts)
        values = {
            "model": self._embedder.name,
            "id": passed,
            "unwritten": sorted(set(facts) - written),
        }
        async with self._db.tenant(tenant_id) as tx:
            moved = (await tx.execute(_QUERIES["pass_facts"], values)).rowcount
        return len(written), bool(moved)

    async def _write_events(self, tenant_id: str, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        async with self._db.tenant(tenant_id) as tx:
            values = {"ids": list(ids), "characters": TEXT_BYTES}
            cur = await tx.execute(_QUERIES["read_events"], values)
            texts = {row[0]: row[1] for row in await cur.fetchall()}
        return await self._write(tenant_id, _QUERIES["write_vectors"], texts)

    async def _write_facts(self, tenant_id: str, facts: Mapping[str, str]) -> set[str]:
        if not facts:
            return set()
        return await self._write(tenant_id, _QUERIES["write_fact_vectors"], facts)

    async def _write(
        self, tenant_id: str, query: LiteralString, texts: Mapping[str, str]
    ) -> set[str]:
        """Write the vectors of these texts, by their rows' ids; the ids that were written."""
        if not texts:
            return set()
        vectors = await self._embedder.embed(list(texts.values()))
        # a second of ingest is 20 ms of this, which no stream should wait for
        written = await asyncio.to_thread(lambda: [literal(vector) for vector in vectors])
        values = {"model": self._embedder.name, "ids": list(texts), "vectors": written}
        async with self._db.tenant(tenant_id) as tx:
            return {row[0] for row in await (await tx.execute(query, values)).fetchall()}

    def _page(self) -> dict[str, Any]:
        return {"model": self._embedder.name, "most": _LOOK}

    def _place(self, place: tuple[str, str], unwritten: set[str]) -> dict[str, Any]:
        return {
            "model": self._embedder.name,
            "tx": place[0],
            "id": place[1],
            "unwritten": sorted(unwritten),
        }


async def embed_quietly(making: Awaitable[int]) -> None:
    """Make vectors of what has just been written; where that fails, the background does it."""
    try:
        await making
    except PalError as exc:
        extra = {"action": "embedding_failed", "error": type(exc).__name__}
        _log.warning("written without vectors", extra=extra)


def fact_text(topic: str, content: str) -> str:
    """What a distillate's vector is made of."""
    return f"{topic.replace('_', ' ')}: {content}"


def _first(found: Sequence[tuple[Any, ...]], most: int) -> tuple[list[tuple[str, str]], list[str]]:
    """The places up to which at most so many lack a vector, and which those are."""
    seen: list[tuple[str, str]] = []
    missing: list[str] = []
    for tx, event_id, lacks in found:
        if lacks and len(missing) == min(most, _BATCH):
            break
        seen.append((tx, event_id))
        if lacks:
            missing.append(event_id)
    return seen, missing
