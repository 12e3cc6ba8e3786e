"""Promoted episodes searched: what came of earlier sessions that answers a question.

Scored as facts are, by words, people and days, so that both stand in one list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

from chalicelib.db import Tx, load_queries
from chalicelib.memory.search.episodes import Scope
from chalicelib.memory.search.periods import Period, find_periods
from chalicelib.memory.search.ranking import freshness, share_terms
from chalicelib.memory.search.terms import Query, is_named

_QUERIES: Final = load_queries(__file__, "promoted.sql")

_SCOPE_AT_MOST: Final = 1_000
_CAP: Final = 1_000

_PERSON: Final = 0.3
_DAY: Final = 0.3
_PROMOTED: Final = 0.1  # what a sure fact has for its confidence


@dataclass(frozen=True, kw_only=True)
class _Found:
    id: str
    kind: str
    content: str
    occurred_at: datetime
    session_id: str
    person_id: str | None
    group_id: str | None
    name: str | None


async def find_episodes(
    tx: Tx, query: Query, scope: Scope, *, limit: int, now: datetime
) -> list[dict[str, Any]]:
    """The episodes that answer best, best first, in the contract's shape, with their `kind`.

    One of a group is nobody's own, so it has no `person_id`.
    """
    if scope.group_id is not None or scope.person_id is not None:
        values = {**scope.values(), "most": _SCOPE_AT_MOST}
        found = await _read(tx, _QUERIES["read_scoped"], values)
        held = await _held_by(tx, query, [one.id for one in found])
    else:
        held = await _held(tx, query)
        ids = sorted({one for some in held.values() for one in some})
        found = await _read(tx, _QUERIES["read_episodes"], {**scope.values(), "ids": ids})
    periods = find_periods(query.text, now=now)
    shares = share_terms(held, rows=len(found))
    scored = [
        (score, one)
        for one in found
        if (score := _score(one, query, shares.get(one.id, 0.0), periods, now=now)) > 0
    ]
    scored.sort(key=lambda pair: (-pair[0], -pair[1].occurred_at.timestamp(), pair[1].id))
    return [_result(one, score) for score, one in scored[:limit]]


def _score(
    one: _Found, query: Query, share: float, periods: Sequence[Period], *, now: datetime
) -> float:
    """0 where nothing speaks for it; how new it is only orders what does."""
    at = int(one.occurred_at.timestamp())
    told = (
        share
        + _PERSON * is_named(one.name, query.words)
        + _DAY * max((period.nearness(at) for period in periods), default=0.0)
    )
    if told <= 0:
        return 0.0
    return told + _PROMOTED + freshness(one.occurred_at, now)


async def _held(tx: Tx, query: Query) -> dict[int, dict[str, float]]:
    """By term, the tenant's episodes that hold it."""
    words, parts = query.flat()
    values = {"words": words, "parts": parts, "cap": _CAP}
    held: dict[int, dict[str, float]] = {part: {} for part in range(len(query.terms))}
    for part, episode_id in await (await tx.execute(_QUERIES["find_episodes"], values)).fetchall():
        held[part][episode_id] = 1.0
    return held


async def _held_by(tx: Tx, query: Query, ids: Sequence[str]) -> dict[int, dict[str, float]]:
    rows = await (await tx.execute(_QUERIES["words_of"], {"ids": list(ids)})).fetchall()
    held: dict[int, dict[str, float]] = {part: {} for part in range(len(query.terms))}
    for episode_id, lexemes in rows:
        has = set(lexemes)
        for part, forms in enumerate(query.terms):
            if has.intersection(forms):
                held[part][episode_id] = 1.0
    return held


async def _read(tx: Tx, query: LiteralString, values: Mapping[str, Any]) -> list[_Found]:
    rows = await (await tx.execute(query, values)).fetchall()
    return [
        _Found(
            id=row[0],
            kind=row[1],
            content=row[2],
            occurred_at=row[3],
            session_id=row[4],
            person_id=row[5],
            group_id=row[6],
            name=row[7],
        )
        for row in rows
    ]


def _result(one: _Found, score: float) -> dict[str, Any]:
    result: dict[str, Any] = {
        "tier": "episodic",
        "id": one.id,
        "kind": one.kind,
        "content": one.content,
        "score": round(score, 4),
        "occurred_at": one.occurred_at.astimezone(UTC),
        "source_kind": "session",
        "source_ref": one.session_id,
    }
    if one.person_id is not None and one.group_id is None:
        result["person_id"] = one.person_id
    return result
