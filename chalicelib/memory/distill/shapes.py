"""What the parts of a pass hand to one another: events, lines, chunks, items. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Role = Literal["user", "assistant", "tool"]
Origin = Literal["stated", "observed", "inferred", "promoted"]
SourceKind = Literal["session", "events", "run", "remember"]

RANK: dict[Origin, int] = {"stated": 3, "observed": 2, "promoted": 2, "inferred": 1}
"""A lower one never supersedes a higher."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A row of the timeline as a pass reads it. `place` is its place in the order of ingest.

    `person_name` is what the person is called, if anything. An event of kind `turn` on channel
    `session` holds a turn's messages as `pal.told` writes them.
    """

    place: tuple[int, str]
    id: str
    occurred_at: datetime
    ingested_at: datetime
    channel: str
    kind: str
    content: str
    direction: Literal["inbound", "outbound"] | None = None
    group_id: str | None = None
    person_id: str | None = None
    person_name: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def said_at(self) -> datetime:
        """By which the newest wins: a time that lies ahead of its ingest counts as that."""
        return min(self.occurred_at, self.ingested_at)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One message of a chunk, `number` from 1. Only a `user` line is evidence.

    `part` of `parts`: a message too long for a chunk is told in several.
    """

    number: int
    event: Event
    role: Role
    text: str
    part: int = 1
    parts: int = 1

    @property
    def evidence(self) -> bool:
        """Whether a fact may rest on it: what a person said, not what they were told."""
        return self.role == "user"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What the model reads at once: lines of one person's conversations, or of one group's.

    `person_id` is the one person whose it is; None in a group, or where no one is known.
    """

    lines: tuple[Line, ...]
    person_id: str | None = None
    person_name: str | None = None
    group_id: str | None = None

    @property
    def first(self) -> tuple[int, str]:
        """The earliest of its events, by ingest."""
        return min(line.event.place for line in self.lines)

    @property
    def last(self) -> tuple[int, str]:
        """The latest of its events, by ingest."""
        return max(line.event.place for line in self.lines)

    @property
    def people(self) -> dict[str, str | None]:
        """The ids and names of those who speak in it."""
        return {
            line.event.person_id: line.event.person_name
            for line in self.lines
            if line.event.person_id is not None and line.evidence
        }


@dataclass(frozen=True, kw_only=True)
class Item:
    """A fact as the model gave it, checked in itself: trimmed, bounded, confident enough.

    `line` is the number of the line that says it, where the model named one. `inferred`: the model
    says that it was concluded and not said.
    """

    topic: str
    content: str
    confidence: float
    person_hint: str | None = None
    occurred_at: datetime | None = None
    line: int | None = None
    inferred: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A model's answer, read. `dropped` counts what was not taken, by reason."""

    items: tuple[Item, ...]
    dropped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Known:
    """An active fact that the model is told of, so that topics do not drift."""

    topic: str
    content: str
    person_id: str | None
    person_name: str | None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """An item that may be written: whose it is, who said it, where."""

    topic: str
    topic_key: str
    content: str
    confidence: float
    origin: Origin
    source_kind: SourceKind
    said_at: datetime
    person_id: str | None = None
    said_by: str | None = None
    group_id: str | None = None
    session_id: str | None = None
    event_id: str | None = None
    key_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one slice of a pass came to. `found` counts the items that were persisted."""

    found: int
    more: bool
    chunks: int = 0
    events: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
