"""What is known, read for a turn: facts, episodes and narrative that may be told in its session.

A reading that fails or takes too long costs the turn what is known, and nothing else.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from chalicelib.db import Database, Tx
from chalicelib.db.connections import bounded, name_of
from chalicelib.memory.episodes import Episode, session_episodes
from chalicelib.memory.narrative.shapes import Narrative
from chalicelib.memory.narrative.store import read_narrative
from chalicelib.memory.notes import Note
from chalicelib.memory.session_facts import session_facts

_log = logging.getLogger(__name__)

_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Recollection:
    """What may be told in a session; which of it is told, its budget decides."""

    narrative: Narrative | None = None
    facts: tuple[Note, ...] = ()
    episodes: tuple[Episode, ...] = ()


NOTHING: Final = Recollection()


class Injector:
    """Reads what is known. Facts only where they are distilled (`enabled`)."""

    def __init__(self, db: Database, *, enabled: bool, seconds: float = _SECONDS) -> None:
        self._db, self._enabled, self._seconds = db, enabled, seconds

    async def recollect(
        self, tenant_id: str, *, person_id: str | None, group_id: str | None
    ) -> Recollection:
        """What may be told in a session of this person and group. Raises nothing."""
        known = bool(person_id or group_id)
        if not (self._enabled or known):
            return NOTHING
        try:
            async with asyncio.timeout(self._seconds) as limit, self._db.tenant(tenant_id) as tx:
                limit.reschedule(None)  # a statement is cut off at its socket, without a word to it
                with bounded(tx, self._seconds):
                    return await self._read(tx, person_id, group_id)
        except Exception as exc:
            _log.warning(
                "what is known could not be read; the turn goes on without it",
                extra={"action": "injection_failed", "error": name_of(exc)},
            )
            return NOTHING

    async def _read(self, tx: Tx, person_id: str | None, group_id: str | None) -> Recollection:
        facts: list[Note] = []
        if self._enabled:
            facts = await session_facts(tx, person_id=person_id, group_id=group_id)
        if not (person_id or group_id):
            return Recollection(facts=tuple(facts))
        return Recollection(
            narrative=await read_narrative(tx, person_id=person_id, group_id=group_id),
            facts=tuple(facts),
            episodes=tuple(await session_episodes(tx, person_id=person_id, group_id=group_id)),
        )
