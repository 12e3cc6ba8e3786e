"""The timeline searched: which of its events answer a question."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

from chalicelib.db import Tx, load_queries
from chalicelib.memory.search.nearness import near_events
from chalicelib.memory.search.periods import Period, find_periods
from chalicelib.memory.search.ranking import (
    Candidate,
    Hit,
    Place,
    finish,
    rank_places,
    spread_days,
    strongest,
    weigh,
)
from chalicelib.memory.search.terms import Query, is_named, read_query

_QUERIES: Final = load_queries(__file__, "episodes.sql")

SCOPE_AT_MOST: Final = 3_000
"""Rows of a group or of a person up to which all of them are looked at."""

_CAP: Final = 1_000
_ROWS_AT_MOST: Final = 20_001
_CANDIDATES: Final = 200
# of the events that are likely by their terms, and by their meaning, those around which the common
# terms are looked for
_AROUND: Final = 60
_AROUND_NEAR: Final = 20
_COMMON: Final = 20  # of a term over the cap, one row in so many is taken to hold it
_MISSPELT_AT_MOST: Final = 500
_MISSPELT_CHARACTERS: Final = 1_000  # of each: a megabyte takes a quarter of a second a word
_PEOPLE_AT_MOST: Final = 5_000
_ALIKE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where to look; None everywhere. From `since`, and before `until`."""

    group_id: str | None = None
    person_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def values(self) -> dict[str, Any]:
        """As parameters of the queries."""
        return {
            "group": self.group_id,
            "person": self.person_id,
            "since": self.since,
            "until": self.until,
        }


@dataclass(kw_only=True)
class _Found:
    """The hits of each term; of a `common` one not all. `rows` is the size of the scope."""

    hits: dict[int, list[Hit]]
    rows: int
    common: set[int]

    def weights(self) -> dict[int, float]:
        held = {part: len(hits) for part, hits in self.hits.items()}
        for part in self.common:
            held[part] = max(_CAP + 1, self.rows // _COMMON)
        return {part: weigh(count, self.rows) for part, count in held.items()}


async def read_terms(tx: Tx, text: str) -> Query:
    """The query of this text."""
    row = await (await tx.execute(_QUERIES["read_words"], {"text": text})).fetchone()
    assert row is not None
    return read_query(text, row[0])


async def find_events(
    tx: Tx,
    query: Query,
    scope: Scope,
    *,
    vector: tuple[str, str] | None,
    limit: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """The events that answer best, best first, in the contract's shape.

    `vector` is the query's model and its vector as Postgres writes it, if there is one.
    """
    found = await _find_terms(tx, query, scope)
    near = []
    if vector is not None:
        model, written = vector
        near = await near_events(tx, model=model, vector=written, rows=found.rows, scope=scope)
    if found.common and (found.hits or near):
        await _read_around(tx, query, found, near)
    ranked = _rank(found, near, find_periods(query.text, now=now))
    scores = await _finish(tx, query, scope, ranked) if ranked else {}
    if not scores:
        scores = await _find_misspelt(tx, query, scope, limit=limit)
    best = sorted(scores, key=lambda one: (-scores[one], one))[:limit]
    return await _read_events(tx, best, scores)


def _rank(
    found: _Found, near: list[tuple[Hit, float]], periods: Sequence[Period]
) -> list[Candidate]:
    days: dict[Place, float] = {}
    if periods:
        every = [hit for hits in found.hits.values() for hit in hits] + [hit for hit, _ in near]
        days = spread_days(
            {
                (stream, place): max(period.nearness(at) for period in periods)
                for stream, place, at in every
            }
        )
    return rank_places(found.hits, found.weights(), near, days, most=_CANDIDATES)


async def _find_terms(tx: Tx, query: Query, scope: Scope) -> _Found:
    words, parts = query.flat()
    values = {**scope.values(), "words": words, "parts": parts, "most": SCOPE_AT_MOST + 1}
    if scope.group_id is not None or scope.person_id is not None:
        in_group = scope.group_id is not None
        query_text = _QUERIES["read_scope"] if in_group else _QUERIES["read_person"]
        found = await _read_scope(tx, query_text, values)
        if found.rows <= SCOPE_AT_MOST:
            return found
    return await _find_by_index(tx, query, scope, values)


async def _read_scope(tx: Tx, query: LiteralString, values: Mapping[str, Any]) -> _Found:
    rows = await (await tx.execute(query, values)).fetchall()
    held = [row[1:] for row in rows if row[1] is not None]
    return _Found(hits=_by_term(held), rows=rows[0][0], common=set())


async def _find_by_index(tx: Tx, query: Query, scope: Scope, values: dict[str, Any]) -> _Found:
    row = await (await tx.execute(_QUERIES["count_rows"], {"most": _ROWS_AT_MOST})).fetchone()
    assert row is not None
    found = _Found(hits={}, rows=row[0], common=set())
    values = {**values, "cap": _CAP}
    found.hits = _by_term(await (await tx.execute(_QUERIES["find_words"], values)).fetchall())
    found.common = {part for part, hits in found.hits.items() if len(hits) > _CAP}
    for part in found.common:
        del found.hits[part]
    if len(found.common) > 1:
        words, parts = query.flat(found.common)
        both = {**values, "words": words, "parts": parts}
        rows = await (await tx.execute(_QUERIES["find_both"], both)).fetchall()
        for one, other, stream, place, at in rows:
            found.hits.setdefault(one, []).append((stream, place, at))
            found.hits.setdefault(other, []).append((stream, place, at))
        found.hits = {part: list(dict.fromkeys(hits)) for part, hits in found.hits.items()}
    if found.common and not found.hits:
        # all of them are common: the newest rows are as good as any
        newest = await _read_scope(tx, _QUERIES["read_scope"], values)
        found.hits = newest.hits
    return found


async def _read_around(
    tx: Tx, query: Query, found: _Found, near: Sequence[tuple[Hit, float]]
) -> None:
    """Add the hits of the common terms around the likeliest events."""
    likely = strongest(found.hits, found.weights(), most=_AROUND)
    likely += [(stream, place) for (stream, place, _), _ in near[:_AROUND_NEAR]]
    words, parts = query.flat(found.common)
    values = {**_columns(likely), "words": words, "parts": parts}
    rows = await (await tx.execute(_QUERIES["read_around"], values)).fetchall()
    for part, hits in _by_term(rows).items():
        found.hits[part] = list(dict.fromkeys([*found.hits.get(part, ()), *hits]))


async def _finish(
    tx: Tx, query: Query, scope: Scope, ranked: Sequence[Candidate]
) -> dict[str, float]:
    """The score of each candidate that is there and in scope, by its event's id."""
    by_place: dict[Place, Candidate] = {one.place: one for one in ranked}
    values = {**scope.values(), **_columns([one.place for one in ranked])}
    rows = await (await tx.execute(_QUERIES["read_candidates"], values)).fetchall()
    named = {name: is_named(name, query.words) for name in {row[4] for row in rows}}
    return {
        event_id: finish(by_place[stream, place], named=named[name], asks=asks)
        for event_id, stream, place, asks, name in rows
    }


async def _find_misspelt(tx: Tx, query: Query, scope: Scope, *, limit: int) -> dict[str, float]:
    spelt = sorted((word for word in query.words if len(word) >= 4), key=len)[-3:]
    if not spelt:
        return {}
    values = {
        **scope.values(),
        "spelt": spelt,
        "most": _MISSPELT_AT_MOST,
        "characters": _MISSPELT_CHARACTERS,
        "people": _PEOPLE_AT_MOST,
        "limit": limit,
    }
    rows = await (await tx.execute(_QUERIES["find_misspelt"], values)).fetchall()
    return {
        event_id: max(likeness or 0.0, _ALIKE * bool(named))
        for event_id, likeness, named in rows
        if named or (likeness or 0.0) >= _ALIKE
    }


async def _read_events(
    tx: Tx, ids: Sequence[str], scores: Mapping[str, float]
) -> list[dict[str, Any]]:
    rows = await (await tx.execute(_QUERIES["read_events"], {"ids": list(ids)})).fetchall()
    by_id = {row[0]: row for row in rows}
    return [_result(by_id[one], scores[one]) for one in ids if one in by_id]


def _result(row: tuple[Any, ...], score: float) -> dict[str, Any]:
    event_id, content, occurred_at, person_id, session_id, external_id = row
    result: dict[str, Any] = {
        "tier": "episodic",
        "id": event_id,
        "content": content,
        "score": round(score, 4),
        "occurred_at": occurred_at.astimezone(UTC),
        "source_kind": "session" if session_id else "events",
        "source_ref": session_id or event_id,
    }
    if person_id is not None:
        result["person_id"] = person_id
    if external_id is not None:
        result["externalId"] = external_id
    return result


def _by_term(rows: Iterable[Sequence[Any]]) -> dict[int, list[Hit]]:
    hits: dict[int, list[Hit]] = defaultdict(list)
    for part, stream, place, at in rows:
        hits[part].append((stream, place, at))
    return dict(hits)


def _columns(places: Sequence[Place]) -> dict[str, list[int]]:
    return {"streams": [one for one, _ in places], "places": [one for _, one in places]}
