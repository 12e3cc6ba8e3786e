"""What the parts of a context hand to one another: nodes, trees, and the sections of a prompt."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Tier = Literal["system", "working", "execution", "episodic", "semantic", "narrative"]
NodeKind = Literal["topic", "decision", "open_question", "task"]
NodeStatus = Literal["open", "resolved", "abandoned"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a session's execution tree; `parent` None stands right below the root.

    `sources` are the ids of the messages that it came from. A folded one is told no more but as
    part of what its parent's `outcome` says.
    """

    number: int
    parent: int | None
    kind: NodeKind
    text: str
    opened_at: datetime
    status: NodeStatus = "open"
    outcome: str | None = None
    sources: tuple[str, ...] = ()
    folded: bool = False
    closed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The nodes that are not folded, in the order of their numbers, and where the talk is.

    `count` is the number of the newest node there ever was; `active` None: at the root.
    """

    nodes: tuple[Node, ...] = ()
    active: int | None = None
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message of the transcript, as upkeep reads it; `role` is `user` or `assistant`."""

    id: str
    role: str
    content: str
    at: datetime
    ordinal: int


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a compiled context, and the ids of what it rests on."""

    tier: Tier
    kind: str
    text: str
    tokens: int
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What was left out, and why: a sentence for a person."""

    tier: Tier
    id: str
    reason: str
