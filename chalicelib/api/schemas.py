"""What comes in and goes out, as pydantic models. `/openapi.json` is made from them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from chalicelib.shapes import In, JsonObject, Name, Out, Text, wrong_at

CONTENT_AT_MOST = 200_000
ApprovalStatus = Literal["pending", "approved", "denied", "expired", "superseded"]
SessionStatus = Literal[
    "active", "processing", "awaiting_approval", "interrupted", "stopped", "ended"
]


class SessionIn(In):
    """A new conversation with an agent."""

    agent_name: Name
    environment: Name | None = None
    user_id: Name | None = None
    group_id: Name | None = None
    metadata: JsonObject | None = None


class Attachment(In):
    """An image, inline or by URL."""

    type: Literal["image"]
    media_type: Annotated[str, Field(pattern=r"^image/[a-z0-9.+-]{1,50}$")] = "image/png"
    data: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] | None = None
    url: Annotated[Text, Field(pattern=r"^https?://", max_length=2000)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "Attachment":
        if (self.data is None) == (self.url is None):
            raise ValueError("needs either data (base64) or url")
        return self


class MessageIn(In):
    """A user's message. Hints hold for its turn only."""

    content: Annotated[Text, Field(max_length=CONTENT_AT_MOST)]
    attachments: Annotated[list[Attachment], Field(max_length=10)] | None = None
    system_hint: Annotated[Text, Field(max_length=20_000)] | None = None
    turn_hint: Annotated[Text, Field(max_length=20_000)] | None = None
    no_tools: bool | None = None
    read_only_tools: bool | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "MessageIn":
        if not self.content and not self.attachments:
            raise wrong_at(("content",), "must not be empty without attachments")
        return self


class StreamTokenIn(In):
    """Which session the token is to admit a reader to."""

    session_id: str


class DecisionIn(In):
    """A person's decision on a tool call."""

    decision: Literal["approve", "deny"]


class ErrorOut(Out):
    """Every error's shape."""

    error: str
    code: str
    request_id: str
    details: list[dict[str, str]] | None = None


class SessionCreated(Out):
    """The new session."""

    id: str
    status: SessionStatus


class MessageOut(Out):
    """One message of the transcript."""

    id: str
    role: Literal["user", "assistant", "tool"]
    content: str
    timestamp: datetime
    turn_id: str | None = None
    attachments: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class SessionListed(Out):
    """A session as lists show it, without its messages."""

    id: str
    tenant_id: str
    agent_name: str
    status: SessionStatus
    created_at: datetime
    updated_at: datetime
    summary: str | None = None
    user_id: str | None = None
    group_id: str | None = None
    metadata: dict[str, Any] | None = None


class SessionOut(SessionListed):
    """A session with the newest 4 MB of its messages."""

    messages: list[MessageOut]
    messages_truncated: bool | None = None


class MessagesPage(Out):
    """A page of the transcript, oldest first."""

    messages: list[MessageOut]


class MessageAccepted(Out):
    """The message is stored and will be answered; the reply comes on the event stream."""

    status: Literal["processing"]
    turn_id: str
    message_id: str


class StatusOut(Out):
    """The state a session is in now."""

    status: str
    turn_id: str | None = None


class StreamTokenOut(Out):
    """A token for `?token=` on the event stream of one session."""

    token: str
    expires_at: datetime


class ApprovalOut(Out):
    """A tool call that waits, or waited, for a person's decision."""

    id: str
    status: ApprovalStatus
    session_id: str
    turn_id: str
    call_id: str
    name: str
    arguments: Any
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None = None


class ApprovalsPage(Out):
    """A page of approvals, newest first."""

    approvals: list[ApprovalOut]


class ApprovalDecided(Out):
    """The decision, and the turn that goes on with it."""

    id: str
    status: Literal["approved", "denied"]
    turn_id: str


class ToolCallOut(Out):
    """A tool call. `result` is what the model was given, `output` the whole of it."""

    id: str
    turn_id: str
    round: int
    name: str
    arguments: Any
    status: str
    result: str | None = None
    output: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class HealthOut(Out):
    """Whether the process and its database answer."""

    status: Literal["ok", "unavailable"]
    database: Literal["ok", "unavailable"]
