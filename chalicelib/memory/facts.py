"""The distillates' SQL, and the one way in which facts get into it.

The caller owns the transaction. Locks are taken in one order: people, what is about no one,
sessions, events, distillates, narratives.
"""

import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from chalicelib.db import Tx, load_queries
from chalicelib.memory import people
from chalicelib.memory.distill.shapes import Fact, Known, Origin, SourceKind
from chalicelib.memory.narrative.shapes import owners_of
from chalicelib.memory.narrative.store import mark_stale
from chalicelib.memory.supersession import Row, settle
from chalicelib.memory.topics import content_key, moved_key

_QUERIES: Final = load_queries(__file__, "facts.sql")

KNOWN_AT_MOST: Final = 200

Gate = Callable[[Tx, Sequence[Fact], Iterable[Row], Counter[str]], Awaitable[list[Fact]]]
"""Which facts may be written unasked, given the rows there are; see `candidates.hold_back`."""

Audience = Literal["person", "group", "tenant"]


@dataclass(frozen=True, kw_only=True)
class Distillate:
    """A row as callers see it. `superseded_by` is None for an active one."""

    id: str
    person_id: str | None
    topic: str
    content: str
    confidence: float
    origin: Origin
    source_kind: SourceKind
    session_id: str | None
    event_id: str | None
    created_at: datetime
    updated_at: datetime
    superseded_by: str | None
    superseded_at: datetime | None
    group_id: str | None
    said_by: str | None

    @property
    def visible_to(self) -> Audience:
        """In whose sessions it may be told, as `session_facts` has it.

        Of a person: whom it is about or who said it, if anyone knows who that was.
        """
        if self.group_id is not None:
            return "group"
        of_no_one = self.person_id is None and self.said_by is None
        return "tenant" if of_no_one and self.source_kind == "remember" else "person"


async def write_facts(
    tx: Tx,
    facts: Sequence[Fact],
    *,
    dropped: Counter[str] | None = None,
    in_pass: bool = False,
    gate: Gate | None = None,
    ids: list[str] | None = None,
    changed: list[Fact] | None = None,
) -> int:
    """Let facts take their places, whoever their people are by now: how many were persisted.

    What was inserted or said once more counts as that. What is not written is counted in `dropped`,
    by reason: of a person or a source that was deleted (`gone`), `forgotten` since it was said,
    `outranked` by what is there, or `known` from an earlier reading. `in_pass`: the caller ends a
    slice after this, whose row is the one that `hold_unattached` locks. Without a `gate` all of
    them may be written. `ids` takes the rows of what was persisted, and `changed` what holds from
    now on or does no more: then it is the caller who marks the narratives. Raises Unavailable.
    """
    lost: Counter[str] = Counter() if dropped is None else dropped
    named = [one for fact in facts for one in (fact.person_id, fact.said_by) if one is not None]
    now = await people.hold_survivors(tx, named)
    if in_pass or any(one.person_id is None for one in facts):
        await hold_unattached(tx)
    kept = [
        _of_those_now(one, now) for one in facts if one.person_id is None or one.person_id in now
    ]
    kept = await _with_sources(tx, kept)
    lost["gone"] += len(facts) - len(kept)
    gone = await _forgotten(tx, kept)
    lost["forgotten"] += len(gone)
    kept = [one for number, one in enumerate(kept) if number not in gone]
    if not kept:
        return 0
    rows = await _lock_rows(tx, kept)
    if gate is not None:
        kept = await gate(tx, kept, rows, lost)
    settled = settle(rows, kept)
    lost.update(settled.dropped)
    await _write(tx, settled.rows)
    if ids is not None:
        ids += settled.ids
    if changed is not None:
        changed += _changed(settled.rows)
        return settled.found
    people_now, groups = owners_of(_changed(settled.rows))
    await mark_stale(tx, people=people_now, groups=groups)
    return settled.found


async def hold_rows(tx: Tx, given: Sequence[Fact]) -> None:
    """Lock the rows among which facts will take their places, whose people are locked."""
    if given:
        await _lock_rows(tx, given)


async def hold_unattached(tx: Tx) -> None:
    """Lock what is about no one in particular until the transaction ends; people come before."""
    await tx.execute(_QUERIES["hold_unattached"])


async def read_clock(tx: Tx) -> datetime:
    """What the time is, rather than when the transaction began."""
    row = await (await tx.execute(_QUERIES["clock"])).fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


async def active_facts(
    tx: Tx, *, person_ids: Iterable[str], group_id: str | None, most: int = KNOWN_AT_MOST
) -> list[Known]:
    """What is known of these people, and of others where they are not; the newest first.

    In a group only what was said there, since its answer is told to all of it. Without one what
    these people said in private and, of themselves, what was said in groups or by no one known.
    """
    values = {"people": sorted(person_ids), "group_id": group_id, "most": most}
    cur = await tx.execute(_QUERIES["active_facts"], values)
    return [
        Known(topic=row[0], content=row[1], person_id=row[2], person_name=row[3])
        for row in await cur.fetchall()
    ]


async def read_active(
    tx: Tx, *, person_id: str | None, group_id: str | None, topic_key: str
) -> Distillate | None:
    """The active row of a person and topic, or of a group and topic where there is no person."""
    values = {"person_id": person_id, "group_id": group_id, "topic_key": topic_key}
    row = await (await tx.execute(_QUERIES["active_of"], values)).fetchone()
    return _distillate(row) if row else None


async def list_distillates(
    tx: Tx,
    *,
    person_id: str | None,
    topic_key: str | None,
    text: str | None,
    before: tuple[datetime, str] | None,
    most: int,
) -> list[Distillate]:
    """The active rows below the place `before`, (updated_at, id), the last changed first.

    Each word of `text` is part of the topic or the content.
    """
    values = {
        "person_id": person_id,
        "topic_key": topic_key,
        "words": text and [people.like(word) for word in _searched(text)],
        "updated": before and before[0],
        "id": before and before[1],
        "most": most,
    }
    cur = await tx.execute(_QUERIES["list_distillates"], values)
    return [_distillate(row) for row in await cur.fetchall()]


async def read_chain(tx: Tx, distillate_id: str) -> list[Distillate]:
    """The whole chain that a row belongs to, its active row first; empty if there is none."""
    cur = await tx.execute(_QUERIES["chain_ids"], {"id": distillate_id})
    ids = [row[0] for row in await cur.fetchall()]
    cur = await tx.execute(_QUERIES["read_chain"], {"ids": ids})
    return [_distillate(row) for row in await cur.fetchall()]


async def hold_chain(tx: Tx, chain: Sequence[Distillate]) -> None:
    """Lock the rows of a chain whose person is locked."""
    await tx.execute(_QUERIES["hold_chain"], {"ids": [one.id for one in chain]})


async def forget_chain(tx: Tx, chain: Sequence[Distillate]) -> None:
    """Delete a chain whose person is locked, and leave a tombstone without its words."""
    ids = [one.id for one in chain]
    contents = sorted({content_key(one.content) for one in chain})
    await tx.execute(_QUERIES["insert_tombstone"], {"ids": ids, "contents": contents})
    await tx.execute(_QUERIES["delete_chain"], {"ids": ids})


def _searched(text: str) -> list[str]:
    """The words of a text as the database folds what it compares them with."""
    return unicodedata.normalize("NFKC", text).lower().split()


def _of_those_now(fact: Fact, now: Mapping[str, str]) -> Fact:
    """The fact with those who its people are by now; a speaker who is gone is no one."""
    speaker = now.get(fact.said_by or "")
    key = fact.topic_key
    if fact.person_id is None and fact.said_by and speaker:
        key = moved_key(key, place=fact.said_by, to=speaker)
    person = fact.person_id and now[fact.person_id]
    return replace(fact, person_id=person, said_by=speaker, topic_key=key)


async def _with_sources(tx: Tx, facts: Sequence[Fact]) -> list[Fact]:
    """Those whose sources are there, and stay so until the transaction ends."""
    sessions = sorted({one.session_id for one in facts if one.session_id is not None})
    events = sorted({one.event_id for one in facts if one.event_id is not None})
    there: set[str | None] = {None}
    if sessions:
        cur = await tx.execute(_QUERIES["hold_sessions"], {"ids": sessions})
        there.update(row[0] for row in await cur.fetchall())
    if events:
        cur = await tx.execute(_QUERIES["hold_events"], {"ids": events})
        there.update(row[0] for row in await cur.fetchall())
    return [one for one in facts if {one.session_id, one.event_id} <= there]


async def _forgotten(tx: Tx, facts: Sequence[Fact]) -> set[int]:
    if not facts:
        return set()
    values = {
        "numbers": list(range(len(facts))),
        "people": [one.person_id for one in facts],
        "groups": [one.group_id for one in facts],
        "topic_keys": [one.topic_key for one in facts],
        "content_keys": [content_key(one.content) for one in facts],
        "said": [one.said_at for one in facts],
    }
    cur = await tx.execute(_QUERIES["forgotten"], values)
    return {row[0] for row in await cur.fetchall()}


async def _lock_rows(tx: Tx, facts: Sequence[Fact]) -> list[Row]:
    values = {
        "people": sorted({one.person_id for one in facts if one.person_id is not None}),
        "no_one": any(one.person_id is None for one in facts),
        "topic_keys": sorted({one.topic_key for one in facts}),
        "said": sorted({one.said_at for one in facts}),
    }
    cur = await tx.execute(_QUERIES["lock_rows"], values)
    return [_row(one) for one in await cur.fetchall()]


async def _write(tx: Tx, rows: Sequence[Row]) -> None:
    # superseded before their successors are there: at any time one of a topic is active
    ended = [one for one in rows if one.superseded_now and not one.fresh]
    if ended:
        successors = [one.superseded_by for one in ended]
        values: dict[str, Any] = {"ids": [one.id for one in ended], "successors": successors}
        await tx.execute(_QUERIES["supersede"], values)
    if again := [one for one in rows if one.refreshed and not one.fresh]:
        await tx.execute(_QUERIES["refresh"], _changes(again))
    if fresh := [one for one in rows if one.fresh]:
        facts = [one.fact for one in fresh]
        values = {
            "people": [one.person_id for one in facts],
            "groups": [one.group_id for one in facts],
            "topics": [one.topic for one in facts],
            "topic_keys": [one.topic_key for one in facts],
            "contents": [one.content for one in facts],
            "successors": [one.superseded_by for one in fresh],
        }
        await tx.execute(_QUERIES["insert_rows"], _changes(fresh) | values)


def _changed(rows: Sequence[Row]) -> list[Fact]:
    """What holds from now on, and what did until now."""
    return [
        one.fact for one in rows if one.superseded_now or (one.fresh and one.superseded_by is None)
    ]


def _changes(rows: Sequence[Row]) -> dict[str, Any]:
    facts = [one.fact for one in rows]
    return {
        "ids": [one.id for one in rows],
        "confidences": [one.confidence for one in facts],
        "origins": [one.origin for one in facts],
        "said": [one.said_at for one in facts],
        "source_kinds": [one.source_kind for one in facts],
        "sessions": [one.session_id for one in facts],
        "events": [one.event_id for one in facts],
        "said_by": [one.said_by for one in facts],
        "keys": [one.key_id for one in facts],
    }


def _row(row: tuple[Any, ...]) -> Row:
    fact = Fact(
        person_id=row[1],
        said_by=row[2],
        group_id=row[3],
        topic=row[4],
        topic_key=row[5],
        content=row[6],
        confidence=row[7],
        origin=row[8],
        source_kind=row[9],
        session_id=row[10],
        event_id=row[11],
        key_id=row[12],
        said_at=row[13],
    )
    return Row(id=row[0], fact=fact, superseded_by=row[14])


def _distillate(row: tuple[Any, ...]) -> Distillate:
    return Distillate(
        id=row[0],
        person_id=row[1],
        topic=row[2],
        content=row[3],
        confidence=row[4],
        origin=row[5],
        source_kind=row[6],
        session_id=row[7],
        event_id=row[8],
        created_at=row[9],
        updated_at=row[10],
        superseded_by=row[11],
        superseded_at=row[12],
        group_id=row[13],
        said_by=row[14],
    )
