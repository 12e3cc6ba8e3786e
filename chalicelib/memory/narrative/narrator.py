"""Narratives rewritten by a model, from what has changed since one last did.

No transaction is open while it is asked. What it answers is written only if nothing has changed
meanwhile; whatever fails leaves the lines there are, which stay true, until the next pass.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from chalicelib.db import Database
from chalicelib.errors import NoModel, PalError
from chalicelib.memory.distill.passes import Chains
from chalicelib.memory.narrative import store
from chalicelib.memory.narrative.asking import narrative_request, read_lines, sources_of
from chalicelib.memory.narrative.material import read_material
from chalicelib.memory.narrative.store import Owner
from chalicelib.providers import Provider
from chalicelib.providers.asking import UnreadableAnswer, ask_whole

_log = logging.getLogger(__name__)

SECONDS: Final = 120.0
"""For how long a tenant's narratives are asked for; those left are for the next pass."""


class Narrator:
    """Rewrites the narratives of tenants that are stale."""

    def __init__(self, db: Database, models: Chains, *, seconds: float = SECONDS) -> None:
        self._db, self._models, self._seconds = db, models, seconds

    async def refresh(self, tenant_id: str, *, most: int = 20) -> int:
        """Rewrite at most so many of the tenant's, the longest stale first: how many were.

        Without a model all stays as it is. One whose answer is of no use waits for the next call;
        a provider that fails ends this one. Raises nothing of that, only Unavailable.
        """
        async with self._db.tenant(tenant_id) as tx:
            stale = await store.stale_narratives(tx, most=most)
        if not stale:
            return 0
        written = 0
        try:
            # the stand-in has nothing to say, and plain lines say more
            provider = await self._models.chain(
                tenant_id=tenant_id, role="fast", own_keys=stale[0].own_keys, stand_in=False
            )
            written = await self._rewrite_all(tenant_id, stale, provider)
        except NoModel:
            _log.info("no model for narratives", extra={"action": "narrative_no_model"})
        if written:
            told = {"action": "narratives_written", "narratives": written}
            _log.info("narratives written", extra=told)
        return written

    async def _rewrite_all(self, tenant_id: str, stale: Sequence[Owner], provider: Provider) -> int:
        written, ends = 0, time.monotonic() + self._seconds
        for owner in stale:
            if (left := ends - time.monotonic()) <= 0:
                break
            try:
                written += await self._rewrite(tenant_id, owner, provider, seconds=left)
            except UnreadableAnswer:
                _tell_failure("UnreadableAnswer")
            except (PalError, TimeoutError) as exc:
                # it would fail for the next one as well, and each may take its time to
                _tell_failure(exc.code if isinstance(exc, PalError) else "TimeoutError")
                break
        return written

    async def _rewrite(
        self, tenant_id: str, owner: Owner, provider: Provider, *, seconds: float
    ) -> bool:
        whose = {"person_id": owner.person_id, "group_id": owner.group_id}
        async with self._db.tenant(tenant_id) as tx:
            found = await store.read_narratives(
                tx,
                people=[owner.person_id] if owner.person_id is not None else [],
                groups=[owner.group_id] if owner.group_id is not None else [],
            )
            if not found:
                return False  # merged or erased since
            material = await read_material(tx, **whose)
            if not sources_of(material):
                await store.drop_narrative(tx, found[0].id, version=found[0].version)
                return False
        async with asyncio.timeout(seconds):
            answer = await ask_whole(provider, narrative_request(found[0], material))
        lines = read_lines(answer, sources_of(material))
        async with self._db.tenant(tenant_id) as tx:
            return await store.tell_narrative(tx, found[0].id, lines, version=found[0].version)


def _tell_failure(error: str) -> None:
    told = {"action": "narrative_failed", "error": error}
    _log.warning("a narrative was not rewritten", extra=told)
