"""How likely an event answers a query: by its own words and its neighbours', and the rest. Pure.

The weights were measured on conversations (see scripts/bench-memory); each is a round number, and
a tenth more or less changes little.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

# how far from a word's event another one is that it still speaks of, and how much of it
_REACH: Final = ((0, 1.0), (1, 0.8), (2, 0.5), (-1, 0.5), (3, 0.3), (-2, 0.3))
_MEANT: Final = ((0, 1.0), (1, 0.5), (2, 0.3), (-1, 0.3))
_CONVERSATION: Final = 0.3
_MEANING: Final = 0.3
_PERSON: Final = 0.3
_ASKS: Final = 0.2
_DAY: Final = 0.4
_RECENCY: Final = 0.1
_YEAR: Final = 365.25 * 86_400
_ROWS_AT_LEAST: Final = 20  # below it, what is rare says little
_LEAST: Final = 0.1  # of the best: what is below it by its words is not looked at further

TALK: Final = 10_000
"""Places of a stream that are one conversation."""

Hit = tuple[int, int, int]
"""(stream, place, at) of an event that holds a term or is near in meaning; `at` in s since 1970."""

Place = tuple[int, int]
"""(stream, place) of an event, or where one may be."""

# a place as one number, which is what makes ten thousand of them a matter of milliseconds
_STREAM: Final = 1 << 32
_HALF: Final = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A place that may answer, scored without what only its row says."""

    place: Place
    score: float


def weigh(holders: int, rows: int) -> float:
    """The weight of a term that so many of the rows hold (BM25's idf, never below 0)."""
    return math.log(1 + (max(rows, holders) - holders + 0.5) / (holders + 0.5))


def share_terms(held: Mapping[int, Mapping[str, float]], *, rows: int) -> dict[str, float]:
    """By id, how much of the query's weight it holds: 1 for all of its terms, each wholly.

    `held` has by term the ids that hold it, and how much of it; `rows` is what they are among.
    """
    rows = max(rows, _ROWS_AT_LEAST)
    weights = {part: weigh(len(some), rows) for part, some in held.items()}
    whole = sum(weights.values()) or 1.0
    shares: dict[str, float] = defaultdict(float)
    for part, some in held.items():
        for one, degree in some.items():
            shares[one] += degree * weights[part] / whole
    return shares


def freshness(at: datetime, now: datetime) -> float:
    """What being new adds to the score of what answers anyway: it orders equals."""
    return _RECENCY * math.exp(-max((now - at).total_seconds(), 0.0) / _YEAR)


def rank_places(
    found: Mapping[int, Iterable[Hit]],
    weights: Mapping[int, float],
    near: Iterable[tuple[Hit, float]],
    days: Mapping[Place, float],
    *,
    most: int,
) -> list[Candidate]:
    """The best places for these terms and meanings, best first.

    `found` has the hits of each term, `near` those nearest in meaning with their cosine, `days` how
    near the time of each hit is to one that was asked for.
    """
    bases = _Bases()
    placed = {
        term: {bases[stream] + place for stream, place, _ in hits} for term, hits in found.items()
    }
    covered = dict.fromkeys(set().union(*placed.values()), 0.0)
    words: dict[int, float] = {}
    for term, middles in placed.items():
        weight = weights[term]
        shares: dict[int, float] = {}
        for middle in middles:
            for by, share in _REACH:
                key = middle + by
                if shares.get(key, 0.0) < share:
                    shares[key] = share
        for key, share in shares.items():
            words[key] = words.get(key, 0.0) + weight * share
            if key in covered:
                covered[key] += weight
    talks = _talks(covered)
    meant: dict[int, float] = {}
    for (stream, place, _), cosine in near:
        for by, share in _MEANT if cosine > 0 else ():
            key = bases[stream] + place + by
            meant[key] = meant.get(key, 0.0) + share * cosine
    dated = {bases[stream] + place: near_by for (stream, place), near_by in days.items()}
    return _best(words, talks, meant, dated, bases, most=most)


def strongest(
    found: Mapping[int, Iterable[Hit]], weights: Mapping[int, float], *, most: int
) -> list[Place]:
    """The events that hold the most by themselves; a first look, without what is around them."""
    held: dict[Place, float] = {}
    for term, hits in found.items():
        for stream, place, _ in hits:
            held[stream, place] = held.get((stream, place), 0.0) + weights[term]
    return heapq.nlargest(most, held, key=lambda place: (held[place], place))


def finish(candidate: Candidate, *, named: bool, asks: float) -> float:
    """The score with what its row says: whether a named person said it, how much of it asks."""
    return candidate.score + _PERSON * named - _ASKS * asks


def spread_days(days: Mapping[Place, float]) -> dict[Place, float]:
    """The days of hits, given to the places around them, which are of the same hour."""
    spread: dict[Place, float] = {}
    for (stream, place), near in days.items():
        if near:
            for by, _ in _REACH:
                key = (stream, place + by)
                spread[key] = max(spread.get(key, 0.0), near)
    return spread


class _Bases(dict[int, int]):
    """What is added to a place of each stream to tell it from those of the others."""

    def __missing__(self, stream: int) -> int:
        base = self[stream] = len(self) * _STREAM + _HALF
        return base


def _talk(key: int) -> int:
    """The conversation of a place, as a number of its own."""
    stream, place = divmod(key, _STREAM)
    return stream * _STREAM + (place - _HALF) // TALK


def _talks(covered: Mapping[int, float]) -> dict[int, float]:
    """By conversation, the weight of the terms that meet at the best of its places."""
    talks: dict[int, float] = {}
    for key, weight in covered.items():
        talk = _talk(key)
        if talks.get(talk, 0.0) < weight:
            talks[talk] = weight
    return talks


def _best(
    words: Mapping[int, float],
    talks: Mapping[int, float],
    meant: Mapping[int, float],
    days: Mapping[int, float],
    bases: Mapping[int, int],
    *,
    most: int,
) -> list[Candidate]:
    least = _LEAST * max(words.values(), default=0.0)
    keys = {key for key, value in words.items() if value >= least} | meant.keys() | days.keys()
    told = {key: words.get(key, 0.0) + _CONVERSATION * talks.get(_talk(key), 0.0) for key in keys}
    best_told = max(told.values(), default=0.0) or 1.0
    best_meant = max(meant.values(), default=0.0) or 1.0
    scored = [
        (
            value / best_told
            + _MEANING * meant.get(key, 0.0) / best_meant
            + _DAY * days.get(key, 0.0),
            -key,
        )
        for key, value in told.items()
    ]
    streams = {base // _STREAM: stream for stream, base in bases.items()}
    return [
        Candidate(
            place=(streams[-key // _STREAM], -key % _STREAM - _HALF),
            score=score,
        )
        for score, key in heapq.nlargest(most, scored)
    ]
