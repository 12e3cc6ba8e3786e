"""A tenant with a large memory, written straight into the server's database."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from memorybench.words import Language

from chalicelib.ids import new_id
from contextbench.place import Database

_TOPICS = 40
_KINDS = ("decision", "outcome", "commitment", "answer")
_LINES = 10
_NOW = datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much there is in all, and how much of it the one with most has."""

    events: int
    facts: int
    episodes: int
    people: int
    heaviest_facts: int
    heaviest_episodes: int

    @classmethod
    def of(cls, memories: int) -> "Sizes":
        """Six tenths events, three tenths facts, a tenth episodes; 300 people if it is 100,000."""
        return cls(
            events=memories * 6 // 10,
            facts=memories * 3 // 10,
            episodes=memories // 10,
            people=max(3, memories * 3 // 1000),
            heaviest_facts=memories // 100,
            heaviest_episodes=memories * 3 // 1000,
        )


def user(number: int) -> str:
    """The handle of a person; 0 is the one with most."""
    return f"user{number}"


class _Filler:
    def __init__(self, conn: psycopg.Connection[tuple[object, ...]], sizes: Sizes) -> None:
        self._conn, self._sizes = conn, sizes
        self._language, self._chance = Language(31), random.Random(31)
        row = conn.execute("SELECT id FROM pal.tenants").fetchone()
        assert row is not None
        self.tenant = str(row[0])
        self.people = [new_id("per") for _ in range(sizes.people)]
        self.sessions = [new_id("sess") for _ in range(sizes.people)]
        self._sources: dict[int, list[tuple[str, str]]] = {}

    def fill(self) -> None:
        self._copy("people", "id, tenant_id, name, name_key", self._people())
        self._copy(
            "person_handles", "tenant_id, channel, handle, given, person_id", self._handles()
        )
        self._copy("sessions", "id, tenant_id, agent_name, person_id", self._ended())
        columns = "id, tenant_id, occurred_at, channel, kind, person_id, group_id, content"
        self._copy("memory_events", columns, self._events())
        columns = (
            "id, tenant_id, person_id, said_by, topic, topic_key, content, confidence, origin,"
            " source_kind, said_at"
        )
        self._copy("memory_distillates", columns, self._facts())
        columns = "id, tenant_id, session_id, person_id, kind, content, content_key, occurred_at"
        self._copy("memory_episodes", columns, self._episodes())
        self._copy("memory_narratives", "id, tenant_id, person_id, lines", self._narratives())
        # all of it has been read: no pass is due
        self._conn.execute(
            "INSERT INTO pal.memory_passes (tenant_id, read_tx, began_at, ended_at)"
            " VALUES (%s, '9223372036854775807', now(), now())"
            " ON CONFLICT (tenant_id) DO UPDATE SET read_tx = excluded.read_tx",
            [self.tenant],
        )

    def _copy(self, table: str, columns: str, rows: Iterator[tuple[Any, ...]]) -> None:
        statement = f"COPY pal.{table} ({columns}) FROM STDIN"
        with self._conn.cursor().copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def _people(self) -> Iterator[tuple[Any, ...]]:
        for number, person in enumerate(self.people):
            yield person, self.tenant, f"Person {number}", f"person {number}"

    def _handles(self) -> Iterator[tuple[Any, ...]]:
        for number, person in enumerate(self.people):
            yield self.tenant, "user", user(number), user(number), person

    def _ended(self) -> Iterator[tuple[Any, ...]]:
        for person, session in zip(self.people, self.sessions, strict=True):
            yield session, self.tenant, "bench", person

    def _events(self) -> Iterator[tuple[Any, ...]]:
        for number in range(self._sizes.events):
            owner = number % self._sizes.people
            told = self._sentence(20)
            group = f"g{owner}"
            yield (
                *(new_id("evt"), self.tenant, self._moment(), "bench", "message"),
                *(self.people[owner], group, told),
            )

    def _owners(self, total: int, heaviest: int) -> Iterator[int]:
        for number in range(total):
            yield 0 if number < heaviest else 1 + number % (self._sizes.people - 1)

    def _facts(self) -> Iterator[tuple[Any, ...]]:
        for number, owner in enumerate(self._owners(self._sizes.facts, self._sizes.heaviest_facts)):
            made, topic = new_id("mem"), f"topic {number} {self._chance.randrange(_TOPICS)}"
            content, person = self._sentence(12), self.people[owner]
            self._sources.setdefault(owner, []).append((made, content))
            yield (
                *(made, self.tenant, person, person, topic, topic, content, 0.9, "stated"),
                *("session", self._moment()),
            )

    def _episodes(self) -> Iterator[tuple[Any, ...]]:
        for number, owner in enumerate(
            self._owners(self._sizes.episodes, self._sizes.heaviest_episodes)
        ):
            made, content = new_id("epi"), self._sentence(14)
            self._sources.setdefault(owner, []).append((made, content))
            yield (
                *(made, self.tenant, self.sessions[owner], self.people[owner]),
                *(_KINDS[number % 4], content, hashlib.sha256(content.encode()).digest()),
                self._moment(),
            )

    def _narratives(self) -> Iterator[tuple[Any, ...]]:
        for owner, known in self._sources.items():
            lines = [
                {"text": content, "sources": [made]}
                for made, content in self._chance.sample(known, min(_LINES, len(known)))
            ]
            yield new_id("nar"), self.tenant, self.people[owner], json.dumps(lines)

    def _sentence(self, words: int) -> str:
        return " ".join(self._language.draw(words)).capitalize() + "."

    def _moment(self) -> datetime:
        return _NOW - timedelta(minutes=self._chance.randrange(1, 500_000))


def fill(database: Database, sizes: Sizes) -> None:
    """Write it all, as passes and ends of sessions would have."""
    with database.connect() as conn:
        _Filler(conn, sizes).fill()
    database.analyse()
