"""Shapes of what is known: distillates, search, remember, export. Memory's own is snake_case."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field

from chalicelib.api.memory_schemas import PersonOut
from chalicelib.api.schemas import SessionOut
from chalicelib.memory.distill.shapes import Origin, SourceKind
from chalicelib.memory.episodes import EpisodeKind
from chalicelib.memory.facts import Audience
from chalicelib.memory.search.service import Tier
from chalicelib.memory.topics import fold_topic
from chalicelib.shapes import In, Name, Text

CONTENT_AT_MOST: Final = 2_000
_TOPIC_AT_MOST: Final = 80


def _trimmed(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _topic(value: Any) -> Any:
    value = _trimmed(value)
    if isinstance(value, str) and value and not fold_topic(value):
        raise ValueError("must hold more than spaces and _")
    return value


class RememberIn(In):
    """What is to be remembered, about a person if one is named; said in a group if one is."""

    content: Annotated[
        Text, BeforeValidator(_trimmed), Field(min_length=1, max_length=CONTENT_AT_MOST)
    ]
    topic: (
        Annotated[Text, BeforeValidator(_topic), Field(min_length=1, max_length=_TOPIC_AT_MOST)]
        | None
    ) = None
    person_id: str | None = None
    group_id: Name | None = None


class DistillateOut(BaseModel):
    """A fact that holds. `source_ref` is the session or event that says it, while that is there.

    `visible_to` tells whose sessions may be told of it: its person's (whom it is about or who said
    it), its group's, or all of the tenant's.
    """

    id: str
    person_id: str | None = None
    topic: str
    content: str
    confidence: float
    origin: Origin
    source_kind: SourceKind
    source_ref: str | None = None
    visible_to: Audience
    created_at: datetime
    updated_at: datetime


class DistillatesOut(BaseModel):
    """A page of the facts that hold, the latest first; none while distillation is off."""

    enabled: bool
    distillates: list[DistillateOut]


class PastDistillateOut(DistillateOut):
    """A fact of a chain; those that hold no more say by which one and when they were superseded."""

    superseded_by: str | None = None
    superseded_at: datetime | None = None


class HistoryOut(BaseModel):
    """How a fact came to be what it is, the newest first."""

    distillates: list[PastDistillateOut]


class DistillOut(BaseModel):
    """What a slice of a pass persisted, and whether it left more to be read."""

    enabled: bool
    found: int
    more: bool | None = None


class FoundOut(BaseModel):
    """Something that was found; the higher the score, the better it fits.

    Facts have a topic, and what came of a session has a kind.
    """

    tier: Tier
    id: str
    topic: str | None = None
    kind: EpisodeKind | None = None
    content: str
    score: float
    occurred_at: datetime
    person_id: str | None = None
    source_kind: SourceKind
    source_ref: str | None = None
    externalId: str | None = None


class SearchOut(BaseModel):
    """What was found, the best first."""

    results: list[FoundOut]


class EpisodeOut(BaseModel):
    """What came of a session; `source_ref` is the session, `sources` its messages.

    `visible_to` tells whose sessions may be told of it: its group's, or its person's, if it has
    one: of neither, it is told in none.
    """

    id: str
    kind: EpisodeKind
    content: str
    origin: Literal["promoted"]
    occurred_at: datetime
    person_id: str | None = None
    group_id: str | None = None
    source_kind: Literal["session"]
    source_ref: str
    sources: list[str]
    visible_to: Literal["person", "group"]


class EpisodesOut(BaseModel):
    """A page of what came of sessions, the newest first."""

    episodes: list[EpisodeOut]


class EmbeddingsOut(BaseModel):
    """How much of what can be found has its vector; `model` is null where none are made."""

    model: str | None
    done: int
    total: int


class IndexOut(BaseModel):
    """How far the index of what can be searched has come."""

    embeddings: EmbeddingsOut


class ForgottenOut(BaseModel):
    """That something was forgotten. What it said is held no more."""

    topic: str
    forgotten_at: datetime


class HeldPersonOut(PersonOut):
    """A person with the ids that lead to them."""

    merged_ids: list[str]
    forgotten: list[ForgottenOut]


class HeldFactOut(BaseModel):
    """A fact about the person or said by them, also one that holds no more."""

    id: str
    person_id: str | None = None
    said_by: str | None = None
    group_id: str | None = None
    topic: str
    content: str
    confidence: float
    origin: Origin
    source_kind: SourceKind
    session_id: str | None = None
    event_id: str | None = None
    said_at: datetime
    created_at: datetime
    updated_at: datetime
    superseded_by: str | None = None
    superseded_at: datetime | None = None


class HeldEventOut(BaseModel):
    """An event of the person's timeline."""

    id: str
    channel: str
    kind: str
    direction: str | None = None
    content: str
    occurred_at: datetime
    ingested_at: datetime
    external_id: str | None = None
    group_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    metadata: dict[str, Any] | None = None


class HeldEpisodeOut(BaseModel):
    """What came of a session of the person's; `sources` are the ids of its messages."""

    id: str
    session_id: str
    group_id: str | None = None
    kind: EpisodeKind
    content: str
    sources: list[str]
    occurred_at: datetime
    created_at: datetime


class NarrativeLineOut(BaseModel):
    """A line and the ids of the facts and episodes it rests on; `plain`: no model wrote it."""

    text: str
    sources: list[str]
    plain: bool = False


class HeldNarrativeOut(BaseModel):
    """The person's narrative. A line is told only while all that it rests on is there."""

    id: str
    lines: list[NarrativeLineOut]
    created_at: datetime
    updated_at: datetime


class HeldCandidateOut(BaseModel):
    """What waits, or has waited, for approval to become a memory."""

    id: str
    tier: Tier
    person_id: str | None = None
    group_id: str | None = None
    session_id: str | None = None
    content: str | None = None
    proposal: dict[str, Any] | None = None
    status: Literal["pending", "approved", "denied"]
    memory_id: str | None = None
    created_at: datetime
    decided_at: datetime | None = None


class HeldPinOut(BaseModel):
    """A text that is pinned, and the message that it is of, if it is of one."""

    text: str
    messageId: str | None = None


class HeldNodeOut(BaseModel):
    """A node of a session's execution tree."""

    kind: str
    text: str
    status: str
    outcome: str | None = None
    sources: list[str]


class HeldStateOut(BaseModel):
    """What a session of the person's works with; `id` is the session's."""

    id: str
    pins: list[HeldPinOut]
    nodes: list[HeldNodeOut]


class ExportOut(BaseModel):
    """A page of all that is held on a person.

    A session whose messages do not fit is there again on the next page, with those that follow.
    """

    person: HeldPersonOut
    distillates: list[HeldFactOut]
    events: list[HeldEventOut]
    sessions: list[SessionOut]
    episodes: list[HeldEpisodeOut]
    narratives: list[HeldNarrativeOut]
    candidates: list[HeldCandidateOut]
    states: list[HeldStateOut]
