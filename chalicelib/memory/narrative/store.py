"""The narratives' SQL: one function a query, a transaction in, an object out, no decisions.

The caller owns the transaction. Narratives are locked last of all, people's before groups'.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from chalicelib.db import Tx, load_queries
from chalicelib.ids import new_id
from chalicelib.memory.narrative.shapes import Line, Narrative
from chalicelib.memory.narrative.telling import fitting

__all__ = ["Narrative", "Owner", "read_narrative"]

_QUERIES: Final = load_queries(__file__, "store.sql")


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose a narrative is: a person's or a group's. `own_keys`: the tenant has its own models."""

    person_id: str | None = None
    group_id: str | None = None
    own_keys: bool = False


async def mark_stale(tx: Tx, *, people: Iterable[str], groups: Iterable[str]) -> None:
    """Note that what these narratives rest on has changed; who has none yet is given an empty one.

    The people are locked and there.
    """
    if owners := sorted(people):
        values = {"ids": [new_id("nar") for _ in owners], "owners": owners}
        await tx.execute(_QUERIES["mark_people"], values)
    if owners := sorted(groups):
        values = {"ids": [new_id("nar") for _ in owners], "owners": owners}
        await tx.execute(_QUERIES["mark_groups"], values)


async def read_narrative(
    tx: Tx, *, person_id: str | None, group_id: str | None
) -> Narrative | None:
    """What may be told in a session: in a group the group's, else its person's. None without lines.

    Only lines of which every source is still there; what was forgotten is in none.
    """
    people = [person_id] if person_id is not None and group_id is None else []
    groups = [] if group_id is None else [group_id]
    if not people and not groups:
        return None
    for found in await read_narratives(tx, people=people, groups=groups):
        if found.lines:
            return found
    return None


async def read_narratives(
    tx: Tx, *, people: Sequence[str] = (), groups: Sequence[str] = ()
) -> list[Narrative]:
    """Those of these people and groups, each with its lines that hold."""
    values = {"people": list(people), "groups": list(groups)}
    cur = await tx.execute(_QUERIES["read_narratives"], values)
    return [_narrative(row) for row in await cur.fetchall()]


async def own_sources(tx: Tx, ids: Iterable[str]) -> dict[str, datetime]:
    """Since when these facts and episodes are there; without what is of no person and no group."""
    cur = await tx.execute(_QUERIES["own_sources"], {"ids": list(ids)})
    return {row[0]: row[1] for row in await cur.fetchall()}


async def write_lines(tx: Tx, narrative_id: str, lines: Sequence[Line], *, now: datetime) -> None:
    """Replace the lines of a narrative that is locked."""
    values = {"id": narrative_id, "lines": _stored(lines), "now": now}
    await tx.execute(_QUERIES["write_lines"], values)


async def tell_narrative(tx: Tx, narrative_id: str, lines: Sequence[Line], *, version: int) -> bool:
    """Write a model's lines; False if there is another version by now, or none."""
    values = {"id": narrative_id, "lines": _stored(lines), "version": version}
    return bool((await tx.execute(_QUERIES["tell_narrative"], values)).rowcount)


async def drop_narrative(tx: Tx, narrative_id: str, *, version: int) -> None:
    """Delete one that nothing is left of, if it is still this version."""
    values = {"id": narrative_id, "version": version}
    await tx.execute(_QUERIES["drop_narrative"], values)


async def stale_narratives(tx: Tx, *, most: int) -> list[Owner]:
    """Whose narratives are to be rewritten, the longest stale first."""
    cur = await tx.execute(_QUERIES["stale_narratives"], {"most": most})
    return [
        Owner(person_id=row[0], group_id=row[1], own_keys=row[2]) for row in await cur.fetchall()
    ]


def _stored(lines: Sequence[Line]) -> Jsonb:
    return Jsonb(
        [
            {
                "text": one.text,
                "sources": list(one.sources),
                **({"plain": True} if one.plain else {}),
            }
            for one in lines
        ]
    )


def _narrative(row: tuple[Any, ...]) -> Narrative:
    times: dict[str, datetime] = dict(zip(row[7] or (), row[8] or (), strict=True))
    lines = [
        Line(
            text=one["text"],
            sources=tuple(one["sources"]),
            plain=one.get("plain", False),
            at=max(times[source] for source in one["sources"]),
        )
        for one in row[3]
        if one["sources"] and times.keys() >= set(one["sources"])
    ]
    return Narrative(
        id=row[0],
        person_id=row[1],
        group_id=row[2],
        # of two people who were merged it may be more than one narrative's
        lines=fitting(lines),
        updated_at=row[4],
        version=row[5],
        told_at=row[6],
    )
