"""Which fact of a topic stands when others come: the newest of the highest rank. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chalicelib.ids import new_id
from chalicelib.memory.distill.shapes import RANK, Fact
from chalicelib.memory.topics import fold_content

Key = tuple[str | None, str | None, str]
"""Whose and which topic: (person, group where there is no person, topic folded)."""

_REMEMBERED: Final = "remember"


def key_of(fact: Fact) -> Key:
    """Of the facts with the same key one is active."""
    group = None if fact.person_id is not None else fact.group_id or ""
    return fact.person_id, group, fact.topic_key


@dataclass(kw_only=True)
class Row:
    """A row as it is to stand. `fresh`: it is not written yet; the others say what is to change."""

    id: str
    fact: Fact
    superseded_by: str | None = None
    fresh: bool = False
    refreshed: bool = False
    superseded_now: bool = False


@dataclass(kw_only=True)
class Settled:
    """What a batch comes to. `ids` are the rows of the facts that were persisted, by their time."""

    rows: list[Row]
    ids: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def found(self) -> int:
        """How many facts were persisted."""
        return len(self.ids)


def settle(rows: Iterable[Row], facts: Sequence[Fact]) -> Settled:
    """Let facts take their places among the rows there are, whatever order they come in.

    Of the rows it needs the active ones of the facts' keys, and those that were said when one of
    the facts was: by these it knows what it has read before.
    """
    settled = Settled(rows=list(rows))
    active = {key_of(one.fact): one for one in settled.rows if one.superseded_by is None}
    read = {mark_of(one.fact): RANK[one.fact.origin] for one in settled.rows if one.superseded_by}
    # stable: of two that were said at once, the later of the batch wins
    for fact in sorted(facts, key=lambda one: one.said_at):
        now = active.get(key_of(fact))
        if now is not None and fold_content(now.fact.content) == fold_content(fact.content):
            _refresh(now, fact)
            settled.ids.append(now.id)
        elif now is not None and RANK[fact.origin] < RANK[now.fact.origin]:
            settled.dropped["outranked"] += 1
            continue
        elif read.get(mark_of(fact), 0) >= RANK[fact.origin]:
            settled.dropped["known"] += 1
            continue
        else:
            fresh = Row(id=new_id("mem"), fact=fact, fresh=True)
            settled.rows.append(fresh)
            settled.ids.append(fresh.id)
            if now is None or _stands_before(fact, now.fact):
                active[key_of(fact)] = fresh
                if now is not None:
                    now.superseded_by, now.superseded_now = fresh.id, True
                    read[mark_of(now.fact)] = RANK[now.fact.origin]
            else:
                fresh.superseded_by = now.id
                read[mark_of(fact)] = RANK[fact.origin]
    return settled


def _stands_before(fact: Fact, other: Fact) -> bool:
    if RANK[fact.origin] != RANK[other.origin]:
        return RANK[fact.origin] > RANK[other.origin]
    return fact.said_at >= other.said_at


def mark_of(fact: Fact) -> tuple[object, ...]:
    """What a fact that is read a second time is known by."""
    return *key_of(fact), fold_content(fact.content), fact.said_at


def _refresh(row: Row, fact: Fact) -> None:
    """Said once more: that alone makes it no surer, but a better source does."""
    old = row.fact
    gain = RANK[fact.origin] - RANK[old.origin]
    said_at = fact.said_at if gain > 0 else max(old.said_at, fact.said_at) if not gain else None
    new = replace(
        old,
        confidence=max(old.confidence, fact.confidence),
        origin=fact.origin if gain > 0 else old.origin,
        said_at=said_at or old.said_at,
    )
    told = fact.source_kind == _REMEMBERED != old.source_kind and gain >= 0
    if gain > 0 or told:
        new = replace(
            new,
            source_kind=fact.source_kind,
            session_id=fact.session_id,
            event_id=fact.event_id,
            said_by=fact.said_by,
            key_id=fact.key_id,
        )
    row.fact, row.refreshed = new, True
