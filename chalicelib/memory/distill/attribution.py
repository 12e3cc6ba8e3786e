"""Whose a fact is. Who someone is, is told by handles; a name alone only where it leaves no choice.

What was said of someone who is not known, or may be one of several, stays about no one: it is
never guessed at, and never becomes the speaker's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from chalicelib.db import Tx, load_queries
from chalicelib.memory.distill.shapes import Chunk, Fact, Item, Line, Origin
from chalicelib.memory.handles import USER, InvalidHandle, fold_name, read_handle
from chalicelib.memory.people import survivors
from chalicelib.memory.topics import fold_topic, unattached_key

_QUERIES: Final = load_queries(__file__, "attribution.sql")

_SURE: Final = ("email", "phone", "sms", "whatsapp", "telegram")
"""Channels whose handles cannot be taken for a name, once a bare word is not asked for there."""

_SEVERAL: Final = "several"
_MARKS: Final = ("@", "+", "/")

Handles = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Said:
    """An item with the line that says it, in the chunk where that stands."""

    item: Item
    line: Line
    chunk: Chunk


@dataclass(frozen=True, kw_only=True)
class _Who:
    """What the tenant knows: who people are by now, and whose handles and names are whose."""

    now: Mapping[str, str]
    owners: Mapping[tuple[str, str], str]
    namesakes: Mapping[str, str]  # `_SEVERAL` where the name leaves a choice


async def attribute(tx: Tx, all_of: Sequence[Said], *, unsure: Counter[str]) -> list[Fact]:
    """The facts of these items, in their order.

    `unsure` counts those that are about no one: `unknown_person` or `ambiguous_person`.
    """
    who = await _look_up(tx, all_of)
    facts = []
    for said in all_of:
        person, found = _person(said, who)
        if found not in ("speaker", "other"):
            unsure[found] += 1
        facts.append(_fact(said, who, person=person, about_speaker=found == "speaker"))
    return facts


async def _look_up(tx: Tx, all_of: Sequence[Said]) -> _Who:
    hints = {one.item.person_hint for one in all_of if one.item.person_hint}
    speakers = {one for said in all_of for one in said.chunk.people}
    speakers |= {said.line.event.person_id or "" for said in all_of}
    now = await survivors(tx, sorted(speakers))
    if not hints:
        return _Who(now=now, owners={}, namesakes={})
    asked = sorted({key for one in all_of for each in _handles(one) for key in each})
    values = {"channels": [one[0] for one in asked], "handles": [one[1] for one in asked]}
    cur = await tx.execute(_QUERIES["owners"], values)
    owners = {(row[0], row[1]): row[2] for row in await cur.fetchall()}
    names = sorted({fold_name(hint) for hint in hints})
    cur = await tx.execute(_QUERIES["namesakes"], {"names": names})
    namesakes = {row[0]: row[2] if row[1] == 1 else _SEVERAL for row in await cur.fetchall()}
    return _Who(now=now, owners=owners, namesakes=namesakes)


def _handles(said: Said) -> tuple[Handles, Handles]:
    """What the hint may be as a handle: surely one, and one that may be a mere name as well."""
    hint = said.item.person_hint or ""
    marked = any(mark in hint for mark in _MARKS) or hint.strip().isdigit()
    sure = _SURE if marked else ()
    return _read(hint, sure), _read(hint, (USER, said.line.event.channel)) - _read(hint, sure)


def _read(hint: str, channels: Sequence[str]) -> Handles:
    found = set()
    for channel in channels:
        try:
            found.add(read_handle(channel, hint).key)
        except InvalidHandle:
            continue
    return frozenset(found)


Found = Literal["speaker", "other", "unknown_person", "ambiguous_person"]


def _person(said: Said, who: _Who) -> tuple[str | None, Found]:
    event = said.line.event
    speaker = who.now.get(event.person_id or "")
    hint = said.item.person_hint or ""
    name = fold_name(hint)
    if not name or hint == event.person_id:
        return speaker, "speaker"
    if hint in said.chunk.people:  # by the id that the model was shown
        return who.now.get(hint), "other"
    sure, loose = ({who.owners[one] for one in each & set(who.owners)} for each in _handles(said))
    if speaker in sure | loose or (event.person_name and fold_name(event.person_name) == name):
        return speaker, "speaker"
    here = {who.now[one]: named for one, named in said.chunk.people.items() if one in who.now}
    by_name_here = {one for one, named in here.items() if named and fold_name(named) == name}
    elsewhere = {who.namesakes[name]} if name in who.namesakes else set()
    for candidates in (by_name_here | ((sure | loose) & set(here)), sure, loose | elsewhere):
        if len(candidates) == 1 and _SEVERAL not in candidates:
            return candidates.pop(), "other"
        if candidates:
            return None, "ambiguous_person"
    return None, "unknown_person"


def _fact(said: Said, who: _Who, *, person: str | None, about_speaker: bool) -> Fact:
    item, event = said.item, said.line.event
    speaker = who.now.get(event.person_id or "")
    origin: Origin = "stated" if about_speaker else "observed"
    # in private, what keeps two people's friends of one name apart
    place = (speaker or "") if item.person_hint and event.group_id is None else ""
    no_ones = unattached_key(item.topic, name=item.person_hint or "", place=place)
    return Fact(
        topic=item.topic,
        topic_key=no_ones if person is None else fold_topic(item.topic),
        content=item.content,
        confidence=item.confidence,
        origin="inferred" if item.inferred else origin,
        source_kind="events" if event.session_id is None else "session",
        said_at=event.said_at,
        person_id=person,
        said_by=speaker,
        group_id=event.group_id,
        session_id=event.session_id,
        event_id=event.id,
    )
