"""Which facts may be told in a session of a person and group; the newest of them."""

from collections.abc import Sequence
from typing import Any, Final

from chalicelib.db import Tx, load_queries
from chalicelib.memory.notes import Note

_QUERIES: Final = load_queries(__file__, "session_facts.sql")

_READ_AT_MOST: Final = 300


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
