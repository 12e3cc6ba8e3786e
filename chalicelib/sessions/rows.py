"""What the store returns: one frozen shape per kind of row."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from chalicelib.context.given import Ground
from chalicelib.sessions.calls import Journal

Status = Literal["active", "processing", "awaiting_approval", "interrupted", "stopped", "ended"]


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session without its messages."""

    id: str
    tenant_id: str
    agent_name: str
    status: Status
    summary: str | None
    created_at: datetime
    updated_at: datetime
    user_id: str | None
    group_id: str | None
    metadata: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of the transcript, which is in the order of (turn_ordinal, seq).

    `turn_ordinal` counts the session's turns from 1, `seq` is the message's place in the event log.
    """

    id: str
    role: str
    content: str
    created_at: datetime
    turn_id: str
    attachments: list[dict[str, Any]] | None
    tool_calls: list[dict[str, Any]] | None
    turn_ordinal: int
    seq: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head row, locked: what may happen next in a session."""

    status: Status
    running_turn: str | None
    queued_turn: str | None
    generation: int
    next_seq: int
    lapsed: bool
    watched: bool


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A stored message: its turn, its place in the log, whether another turn runs meanwhile."""

    message_id: str
    turn_id: str
    seq: int
    busy: bool
    event: str


@dataclass(frozen=True, kw_only=True)
class ClaimedTurn(Ground):
    """A turn this process may run, with all that its prompt is made of.

    `pending` is the JSON text of the turn's own messages. `cut_turn` was cut before this one and is
    taken up by it; `resumes_turn` is that one, or the one that stopped for an approval. `decided`:
    calls were decided on since. (turn_id, generation) is the fencing token of every later write.
    """

    turn_id: str
    cut_turn: str | None
    resumes_turn: str | None
    generation: int
    seq: int
    watched: bool
    accepted_at: datetime
    event: str
    user_id: str | None
    pending: str
    cancel_requested: bool
    decided: bool
    journal: Journal = field(default_factory=Journal)


@dataclass(frozen=True, kw_only=True)
class PendingText:
    """Text of a running turn that the log does not hold yet; empty text is a mere heartbeat."""

    session_id: str
    turn_id: str
    generation: int
    start: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of a PendingText: `written` (or skipped this time), `stale`: stop the turn."""

    turn_id: str
    seq: int | None
    cancel_requested: bool
    watched: bool
    written: bool
    stale: bool


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """How a turn ends: the last text for the log, the event, what the model will see of it."""

    status: Literal["completed", "failed"]
    kind: Literal["message_completed", "message_error"]
    event: str
    appended: str
    start: int = 0
    tail: str = ""
    message_id: str | None = None
    text: str | None = None
    provider: str | None = None
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    rounds: int = 0
    finish_reason: str | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class CutTurn:
    """A turn that lost its runner; `queued_turn` takes its messages up, None if none does."""

    turn_id: str
    generation: int
    seq: int
    event: str
    queued_turn: str | None
    status: Status


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """A row of the event log: a delta has `start` and `text`, every other kind `data` (JSON)."""

    seq: int
    kind: str
    turn_id: str | None = None
    generation: int | None = None
    start: int | None = None
    text: str | None = None
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Where a session's log stands at the moment a reader registered."""

    status: Status
    running_turn: str | None
    queued_turn: str | None
    generation: int
    next_seq: int
    turn_seq: int
    kept_seq: int


@dataclass(frozen=True, kw_only=True)
class FinishedTurn:
    """How a turn ended, for a reader whose place in the log is gone."""

    turn_id: str
    status: Literal["completed", "failed", "cut"]
    generation: int
    text: str | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_usd: float | None
    message_id: str | None
    finish_reason: str | None
    error: str | None
    error_code: str | None
