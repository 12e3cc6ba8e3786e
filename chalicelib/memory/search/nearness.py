"""What is near a query in meaning, where there are vectors."""

from typing import TYPE_CHECKING, Any, Final

from chalicelib.db import Tx, load_queries
from chalicelib.memory.search.ranking import Hit

if TYPE_CHECKING:
    from chalicelib.memory.search.episodes import Scope

_QUERIES: Final = load_queries(__file__, "nearness.sql")

EXACT_AT_MOST: Final = 15_000
"""Rows of a tenant or a time up to which every vector is compared, not the signs of it first."""

_NEAREST: Final = 100
_COARSE: Final = 400


async def has_vectors(tx: Tx) -> bool:
    """Whether the database has a place for vectors: not without pgvector."""
    row = await (await tx.execute(_QUERIES["has_vectors"])).fetchone()
    return bool(row and row[0])


async def near_events(
    tx: Tx, *, model: str, vector: str, rows: int, scope: "Scope"
) -> list[tuple[Hit, float]]:
    """The events nearest to the vector, with the cosine; `rows` is the size of the scope."""
    values: dict[str, Any] = {
        **scope.values(),
        "model": model,
        "vector": vector,
        "most": _NEAREST,
        "coarse": _COARSE,
    }
    query = _QUERIES["near_all"] if rows <= EXACT_AT_MOST else _QUERIES["near_coarse"]
    if scope.group_id is not None:
        query = _QUERIES["near_scope"]
    elif scope.person_id is not None:
        query = _QUERIES["near_person"]
    elif (scope.since or scope.until) and await _is_small(tx, scope):
        # or the nearest of all may leave nothing of it
        query = _QUERIES["near_scope"]
    found = await (await tx.execute(query, values)).fetchall()
    return [((stream, place, at), cosine) for stream, place, at, cosine in found]


async def _is_small(tx: Tx, scope: "Scope") -> bool:
    values = {**scope.values(), "rows": EXACT_AT_MOST + 1}
    row = await (await tx.execute(_QUERIES["count_period"], values)).fetchone()
    return row is not None and row[0] <= EXACT_AT_MOST
