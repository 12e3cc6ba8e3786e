"""What is known, given to a turn: which facts may be told in its session, and those that matter.

A reading that fails or takes too long costs the turn its notes and nothing else.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from chalicelib.db import Database, Tx, load_queries
from chalicelib.db.connections import bounded, name_of
from chalicelib.memory.notes import Note, choose_notes, render_notes

_QUERIES: Final = load_queries(__file__, "injection.sql")
_log = logging.getLogger(__name__)

BUDGET: Final = 800
"""Tokens of the notes in a prompt, where the agent says nothing else."""

_READ_AT_MOST: Final = 300
_SECONDS: Final = 2.0


class Injector:
    """Gives turns their notes; with `enabled` false none, and nothing is read."""

    def __init__(self, db: Database, *, enabled: bool, seconds: float = _SECONDS) -> None:
        self._db, self._enabled, self._seconds = db, enabled, seconds

    async def notes(
        self,
        tenant_id: str,
        *,
        person_id: str | None,
        group_id: str | None,
        text: str,
        budget: int | None = None,
    ) -> str:
        """The block for a turn of this session that answers `text`; empty where there is none.

        Raises nothing; `budget` is in tokens.
        """
        budget = BUDGET if budget is None else budget
        if not self._enabled or budget <= 0:
            return ""
        try:
            chosen = await self.facts(
                tenant_id, person_id=person_id, group_id=group_id, text=text, budget=budget
            )
            return render_notes(chosen)
        except Exception as exc:
            _log.warning(
                "the facts could not be read; the turn goes on without them",
                extra={"action": "injection_failed", "error": name_of(exc)},
            )
            return ""

    async def facts(
        self,
        tenant_id: str,
        *,
        person_id: str | None,
        group_id: str | None,
        text: str,
        budget: int,
    ) -> tuple[Note, ...]:
        """The facts that `notes` tells. Raises Unavailable and TimeoutError."""
        async with asyncio.timeout(self._seconds) as limit, self._db.tenant(tenant_id) as tx:
            limit.reschedule(None)  # a statement is cut off at its socket, without a word to it
            with bounded(tx, self._seconds):
                found = await session_facts(tx, person_id=person_id, group_id=group_id)
        return choose_notes(found, text=text, budget=budget)


async def session_facts(
    tx: Tx, *, person_id: str | None, group_id: str | None, ids: Sequence[str] | None = None
) -> list[Note]:
    """The newest facts that may be told in a session of this person and group, or of `ids`."""
    values = {
        "person_id": person_id,
        "group_id": group_id,
        "ids": None if ids is None else list(ids),
        "most": _READ_AT_MOST,
    }
    cur = await tx.execute(_QUERIES["session_facts"], values)
    return [_note(row, person_id) for row in await cur.fetchall()]


def _note(row: tuple[Any, ...], person_id: str | None) -> Note:
    return Note(
        id=row[0],
        topic=row[1],
        content=row[2],
        said_at=row[3],
        confidence=row[4],
        origin=row[5],
        about=row[6],
        name=row[7],
        own=row[6] is not None and row[6] == person_id,
    )
