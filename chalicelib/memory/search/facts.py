"""The distillates searched: which active facts answer a question."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

from chalicelib.db import Tx, load_queries
from chalicelib.memory.search.episodes import Scope
from chalicelib.memory.search.periods import Period, find_periods
from chalicelib.memory.search.ranking import freshness, share_terms
from chalicelib.memory.search.terms import Query, is_named

_QUERIES: Final = load_queries(__file__, "facts.sql")

_SCOPE_AT_MOST: Final = 1_000
_CAP: Final = 1_000
_NEAREST: Final = 50
_MISSPELT_AT_MOST: Final = 5_000  # of the newest, looked through for a word that is written wrong

_MEANING: Final = 0.4
_PERSON: Final = 0.3
_DAY: Final = 0.3
_CONFIDENCE: Final = 0.1
_MISSPELT: Final = 0.5  # of a word's weight


@dataclass(frozen=True, kw_only=True)
class _Fact:
    id: str
    topic: str
    content: str
    confidence: float
    said_at: datetime
    person_id: str | None
    source_kind: str
    session_id: str | None
    event_id: str | None
    name: str | None


async def find_facts(
    tx: Tx,
    query: Query,
    scope: Scope,
    *,
    vector: tuple[str, str] | None,
    limit: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """The active facts that answer best, best first, in the contract's shape.

    `vector` is the query's model and its vector as Postgres writes it, if there is one.
    """
    near = await _near(tx, scope, vector) if vector is not None else {}
    if scope.group_id is not None or scope.person_id is not None:
        facts = await _read(tx, _QUERIES["read_scoped"], {**scope.values(), "most": _SCOPE_AT_MOST})
        held = await _held_by(tx, query, [one.id for one in facts])
    else:
        held = await _held(tx, query)
        ids = sorted({one for some in held.values() for one in some} | near.keys())
        facts = await _read(tx, _QUERIES["read_facts"], {**scope.values(), "ids": ids})
    periods = find_periods(query.text, now=now)
    shares = share_terms(held, rows=len(facts))
    scored = [
        (score, one)
        for one in facts
        if (score := _score(one, query, shares, near, periods, now=now)) > 0
    ]
    scored.sort(key=lambda pair: (-pair[0], -pair[1].said_at.timestamp(), pair[1].id))
    return [_result(one, score) for score, one in scored[:limit]]


def _score(
    fact: _Fact,
    query: Query,
    shares: Mapping[str, float],
    near: Mapping[str, float],
    periods: Sequence[Period],
    *,
    now: datetime,
) -> float:
    """0 where nothing speaks for it; how sure and how new it is only orders what does."""
    said = int(fact.said_at.timestamp())
    told = (
        shares.get(fact.id, 0.0)
        + _MEANING * max(near.get(fact.id, 0.0), 0.0)
        + _PERSON * is_named(fact.name, query.words)
        + _DAY * max((period.nearness(said) for period in periods), default=0.0)
    )
    if told <= 0:
        return 0.0
    return told + _CONFIDENCE * fact.confidence + freshness(fact.said_at, now)


async def _held(tx: Tx, query: Query) -> dict[int, dict[str, float]]:
    """By term, the facts that hold it, wholly (1) or written wrong."""
    words, parts = query.flat()
    values = {"words": words, "parts": parts, "cap": _CAP}
    rows = await (await tx.execute(_QUERIES["find_facts"], values)).fetchall()
    held: dict[int, dict[str, float]] = {part: {} for part in range(len(query.terms))}
    for part, fact_id in rows:
        held[part][fact_id] = 1.0
    # a word that no fact has may be one that is written wrong
    spelt = [word for word in _unknown(query, held) if len(word) >= 4][:5]
    if spelt:
        for fact_id, number in await (
            await tx.execute(_QUERIES["find_like"], {"spelt": spelt, "most": _MISSPELT_AT_MOST})
        ).fetchall():
            held.setdefault(len(query.terms) + number, {})[fact_id] = _MISSPELT
    return held


def _unknown(query: Query, held: Mapping[int, Mapping[str, float]]) -> list[str]:
    found = [form for part, some in held.items() if some for form in query.terms[part]]
    missing = [form for part, some in held.items() if not some for form in query.terms[part]]
    return sorted(
        word
        for word in query.words
        if any(word.startswith(form[:4]) for form in missing)
        and not any(word.startswith(form) for form in found)
    )


async def _held_by(tx: Tx, query: Query, ids: Sequence[str]) -> dict[int, dict[str, float]]:
    rows = await (await tx.execute(_QUERIES["words_of"], {"ids": list(ids)})).fetchall()
    held: dict[int, dict[str, float]] = {part: {} for part in range(len(query.terms))}
    for fact_id, lexemes in rows:
        has = set(lexemes)
        for part, forms in enumerate(query.terms):
            if has.intersection(forms):
                held[part][fact_id] = 1.0
            elif _written_nearly(forms[0], has):
                held[part][fact_id] = _MISSPELT
    return held


def _written_nearly(word: str, has: Iterable[str]) -> bool:
    grams = _trigrams(word)
    return len(word) >= 4 and any(
        2 * len(grams & other) >= len(grams | other)
        for other in (_trigrams(one) for one in has if abs(len(one) - len(word)) <= 2)
    )


def _trigrams(word: str) -> set[str]:
    padded = f"  {word} "
    return {padded[place : place + 3] for place in range(len(padded) - 2)}


async def _near(tx: Tx, scope: Scope, vector: tuple[str, str]) -> dict[str, float]:
    model, written = vector
    values = {**scope.values(), "model": model, "vector": written, "most": _NEAREST}
    rows = await (await tx.execute(_QUERIES["near_facts"], values)).fetchall()
    return {fact_id: cosine for fact_id, cosine in rows if cosine > 0}


async def _read(tx: Tx, query: LiteralString, values: Mapping[str, Any]) -> list[_Fact]:
    rows = await (await tx.execute(query, values)).fetchall()
    return [_fact(row) for row in rows]


def _fact(row: Sequence[Any]) -> _Fact:
    return _Fact(
        id=row[0],
        topic=row[1],
        content=row[2],
        confidence=row[3],
        said_at=row[4],
        person_id=row[5],
        source_kind=row[6],
        session_id=row[7],
        event_id=row[8],
        name=row[9],
    )


def _result(fact: _Fact, score: float) -> dict[str, Any]:
    result: dict[str, Any] = {
        "tier": "semantic",
        "id": fact.id,
        "content": fact.content,
        "score": round(score, 4),
        "occurred_at": fact.said_at.astimezone(UTC),
        "source_kind": fact.source_kind,
        "topic": fact.topic,
    }
    if fact.person_id is not None:
        result["person_id"] = fact.person_id
    if source := fact.session_id or fact.event_id:
        result["source_ref"] = source
    return result
