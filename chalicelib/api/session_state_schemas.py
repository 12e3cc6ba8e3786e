"""Shapes of a session's state: pins, the execution tree, its end and its resumption."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from chalicelib.api.schemas import CONTENT_AT_MOST
from chalicelib.context.shapes import NodeKind, NodeStatus, Tier
from chalicelib.sessions.pins import PIN_CHARACTERS, PINS_AT_MOST
from chalicelib.shapes import In, Out, Text


class PinsIn(In):
    """What is to be at hand for the whole of a session: texts, or ids of its messages."""

    pins: Annotated[
        list[Annotated[Text, Field(min_length=1, max_length=PIN_CHARACTERS)]],
        Field(max_length=PINS_AT_MOST),
    ]


class PinsOut(Out):
    """The pins as they were given."""

    pins: list[str]


class NodeOut(Out):
    """A node of the tree. A folded one is told of in a prompt only by its parent's outcome."""

    id: str
    parent_id: str | None = None
    kind: NodeKind
    text: str
    status: NodeStatus
    outcome: str | None = None
    sources: list[str]
    folded: bool
    opened_at: datetime
    closed_at: datetime | None = None


class TreeOut(Out):
    """The execution tree, whole; `path` leads from the top to the `active` node."""

    active: str | None
    path: list[str]
    nodes: list[NodeOut]


class EndedOut(Out):
    """The session has ended, and so much of it has become memory."""

    status: Literal["ended"]
    promoted: int


class ResumedOut(Out):
    """The turn that was cut off is taken up again by this one."""

    status: Literal["processing"]
    turn_id: str


class ContextIn(In):
    """For which message, and within how many tokens; at most the model's own budget counts."""

    query: Annotated[Text, Field(min_length=1, max_length=CONTENT_AT_MOST)] | None = None
    token_budget: Annotated[int, Field(ge=1, le=10_000_000)] | None = None


class SectionOut(Out):
    """A part of the context, and the ids of what it rests on."""

    tier: Tier
    kind: str
    text: str
    tokens: int
    sources: list[str]


class DroppedOut(Out):
    """What was left out of the context, and why."""

    tier: Tier
    id: str
    reason: str


class ContextOut(Out):
    """The context as a model would read it, its sections in that order; `tokens` is their sum."""

    sections: list[SectionOut]
    tokens: int
    budget: int
    dropped: list[DroppedOut]
