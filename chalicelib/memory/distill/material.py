"""The timeline as a pass reads it: on from its place, in the order of ingest."""

from typing import Any, Final

from chalicelib.db import Tx, load_queries
from chalicelib.memory.distill.shapes import Event

_QUERIES: Final = load_queries(__file__, "material.sql")

BATCH: Final = 500
_BYTES: Final = 4 << 20

Place = tuple[int, str]
"""A place in the order of ingest: (ingest_tx, id)."""


async def read_material(tx: Tx, after: Place, *, most: int = BATCH) -> list[Event]:
    """The next events behind a place, at most so many and not many bytes; empty at the end."""
    # as text: the number is a xid8, which no integer is cast to
    values = {"read_tx": str(after[0]), "read_id": after[1], "most": most, "bytes": _BYTES}
    cur = await tx.execute(_QUERIES["read_material"], values)
    return [_event(row) for row in await cur.fetchall()]


def _event(row: tuple[Any, ...]) -> Event:
    return Event(
        place=(int(row[0]), row[1]),
        id=row[1],
        occurred_at=row[2],
        ingested_at=row[3],
        channel=row[4],
        kind=row[5],
        content=row[6],
        direction=row[7],
        group_id=row[8],
        person_id=row[9],
        person_name=row[10],
        session_id=row[11],
        turn_id=row[12],
        metadata=row[13],
    )
