"""Export: all that is held on a person, a page at a time, so that nothing has to be left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, LiteralString, NamedTuple

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx, load_queries
from chalicelib.memory.directory import shown, survivor
from chalicelib.sessions import store
from chalicelib.sessions.rows import Message, Session
from chalicelib.texts import rfc3339

_QUERIES: Final = load_queries(__file__, "export.sql")

BYTES_AT_MOST: Final = 4 << 20
_SESSION_BYTES: Final = 1_000


class Place(NamedTuple):
    """Where a page begins: behind this id of a section, or within this session behind a message."""

    section: int = 0
    id: str = ""
    ordinal: int = 0
    seq: int = 0


# a page's token holds these numbers: what is added comes behind
SECTIONS = FACTS, EVENTS, SESSIONS, EPISODES, NARRATIVES, CANDIDATES, STATES = range(7)


@dataclass(kw_only=True)
class Page:
    """A part of an export. A session whose messages go on is there again on the next page."""

    person: dict[str, Any]
    facts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[tuple[Session, list[Message]]] = field(default_factory=list)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    narratives: list[dict[str, Any]] = field(default_factory=list)
    candidates: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    next: Place | None = None


class Export:
    """Reads pages of what is held on a person."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(
        self, caller: Principal, person_id: str, *, place: Place, most: int, size: int
    ) -> Page:
        """At most so many things from there on, in about `size` bytes. Raises NotFound."""
        async with self._db.tenant(caller.tenant_id) as tx:
            person = await survivor(tx, person_id)
            page = Page(person=await _person(tx, person))
            for section in SECTIONS[place.section :]:
                within = place if place.section == section else Place(section)
                if most <= 0 or size <= 0:
                    page.next = within
                    break
                read = _sessions if section == SESSIONS else _rows
                most, size = await read(tx, page, person, within, most, size)
                if page.next is not None:
                    break
        return page


async def _person(tx: Tx, person: str) -> dict[str, Any]:
    body = await shown(tx, person)
    merged = await tx.execute(_QUERIES["merged_ids"], {"person": person})
    body["merged_ids"] = [row[0] for row in await merged.fetchall()]
    forgotten = await tx.execute(_QUERIES["forgotten"], {"person": person})
    body["forgotten"] = [
        {"topic": row[0], "forgotten_at": rfc3339(row[1])} for row in await forgotten.fetchall()
    ]
    return body


async def _rows(
    tx: Tx, page: Page, person: str, place: Place, most: int, size: int
) -> tuple[int, int]:
    values = {"person": person, "after": place.id, "bytes": size, "most": most + 1}
    query, rows_of = _part(page, place.section)
    cur = await tx.execute(query, values)
    names = [one.name for one in cur.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in await cur.fetchall()]
    kept = rows[:most]
    rows_of.extend(_body(row) for row in kept)
    if not kept:
        return most, size
    if kept[0]["found"] > len(kept):
        page.next = Place(place.section, kept[-1]["id"])
    return most - len(kept), size - int(kept[-1]["total"])


def _part(page: Page, section: int) -> tuple[LiteralString, list[dict[str, Any]]]:
    """The query of a section, and the part of the page that its rows are for."""
    return {
        FACTS: (_QUERIES["facts"], page.facts),
        EVENTS: (_QUERIES["events"], page.events),
        EPISODES: (_QUERIES["episodes"], page.episodes),
        NARRATIVES: (_QUERIES["narratives"], page.narratives),
        CANDIDATES: (_QUERIES["candidates"], page.candidates),
        STATES: (_QUERIES["states"], page.states),
    }[section]


async def _sessions(
    tx: Tx, page: Page, person: str, place: Place, most: int, size: int
) -> tuple[int, int]:
    values = {"person": person, "since": place.id, "most": most + 1}
    cur = await tx.execute(_QUERIES["session_ids"], values)
    for (session_id,) in await cur.fetchall():
        begun = session_id == place.id
        after = (place.ordinal, place.seq) if begun else (0, 0)
        if most <= 0 or size <= 0:
            page.next = Place(SESSIONS, session_id, *after)
            break
        session = await store.get_session(tx, session_id)
        if session is None:
            continue
        messages, more = await store.page_messages(
            tx, session_id, after=after, bytes_at_most=size, most=most
        )
        page.sessions.append((session, messages))
        if more:
            page.next = Place(SESSIONS, session_id, messages[-1].turn_ordinal, messages[-1].seq)
            break
        most -= 1 + len(messages)
        size -= _SESSION_BYTES + sum(len(one.content.encode()) for one in messages)
    return most, size


def _body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: rfc3339(value) if isinstance(value, datetime) else value
        for name, value in row.items()
        if value is not None and name not in ("total", "found")
    }
