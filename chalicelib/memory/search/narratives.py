"""Narratives searched: which lines of them answer a question.

Only lines that hold are found. Over all of a tenant, narratives are found by the facts and episodes
that they rest on, and their lines are looked at then.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.db import Tx, load_queries
from chalicelib.memory.narrative.shapes import Line, Narrative
from chalicelib.memory.narrative.store import read_narratives
from chalicelib.memory.search.episodes import Scope
from chalicelib.memory.search.ranking import freshness, weigh
from chalicelib.memory.search.terms import Query

_QUERIES: Final = load_queries(__file__, "narratives.sql")

_CAP: Final = 300
_OWNERS_AT_MOST: Final = 50
_ROWS_AT_LEAST: Final = 20


async def find_narratives(
    tx: Tx, query: Query, scope: Scope, *, limit: int, now: datetime
) -> list[dict[str, Any]]:
    """The narratives that answer best, best first, in the contract's shape, with the lines that do.

    A narrative is a person's or a group's, so of a person in a group there is none.
    """
    if not query.terms:
        return []
    people, groups = await _owners(tx, query, scope)
    if not people and not groups:
        return []
    narratives = await read_narratives(tx, people=people, groups=groups)
    told = [(one, line) for one in narratives for line in one.lines if _within(line, scope)]
    held = await _held_by(tx, query, [line for _, line in told])
    weights = _weights(query, held)
    by_id: dict[str, tuple[Narrative, list[Line], set[int]]] = {}
    for (narrative, line), terms in zip(told, held, strict=True):
        if terms:
            _, lines, found = by_id.setdefault(narrative.id, (narrative, [], set()))
            lines.append(line)
            found |= terms
    scored = [
        _result(narrative, lines, sum(weights[part] for part in found), now=now)
        for narrative, lines, found in by_id.values()
    ]
    scored.sort(key=lambda one: (-one["score"], one["id"]))
    return scored[:limit]


async def _owners(tx: Tx, query: Query, scope: Scope) -> tuple[list[str], list[str]]:
    """The people and the groups whose narratives are looked at."""
    if scope.group_id is not None or scope.person_id is not None:
        if scope.group_id is not None and scope.person_id is not None:
            return [], []
        people = [] if scope.person_id is None else [scope.person_id]
        return people, [] if scope.group_id is None else [scope.group_id]
    words, parts = query.flat()
    values = {"words": words, "parts": parts, "cap": _CAP, "most": _OWNERS_AT_MOST}
    rows = await (await tx.execute(_QUERIES["owners"], values)).fetchall()
    return (
        [person for person, _, _ in rows if person is not None],
        [group for _, group, _ in rows if group is not None],
    )


async def _held_by(tx: Tx, query: Query, lines: Sequence[Line]) -> list[set[int]]:
    """By line, the terms that it holds."""
    if not lines:
        return []
    texts = [one.text for one in lines]
    rows = await (await tx.execute(_QUERIES["words_of"], {"texts": texts})).fetchall()
    return [
        {part for part, forms in enumerate(query.terms) if not set(forms).isdisjoint(lexemes)}
        for (lexemes,) in rows
    ]


def _weights(query: Query, held: Iterable[set[int]]) -> list[float]:
    """The share of the query's weight that each term has; 1 in all."""
    lines = list(held)
    parts = range(len(query.terms))
    holders = [sum(1 for one in lines if part in one) for part in parts]
    weights = [weigh(number, max(len(lines), _ROWS_AT_LEAST)) for number in holders]
    whole = sum(weights) or 1.0
    return [one / whole for one in weights]


def _within(line: Line, scope: Scope) -> bool:
    if line.at is None:
        return False
    if scope.since is not None and line.at < scope.since:
        return False
    return scope.until is None or line.at < scope.until


def _result(
    narrative: Narrative, lines: Sequence[Line], share: float, *, now: datetime
) -> dict[str, Any]:
    newest = max(one.at for one in lines if one.at is not None)
    result: dict[str, Any] = {
        "tier": "narrative",
        "id": narrative.id,
        "content": "\n".join(one.text for one in lines),
        "score": round(share + freshness(newest, now), 4),
        "occurred_at": newest.astimezone(UTC),
        # a pass writes it, out of several sources
        "source_kind": "run",
    }
    if narrative.person_id is not None:
        result["person_id"] = narrative.person_id
    return result
