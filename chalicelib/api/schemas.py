"""What comes in and goes out, as pydantic models. `/openapi.json` is made from them."""

import math
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from chalicelib.api.call import is_storable, printable

CONTENT_AT_MOST = 200_000
_DEPTH_AT_MOST = 64
_UNSTORABLE = "must not hold NUL or a lone surrogate"


def _wrong(path: tuple[str | int, ...], reason: str) -> ValidationError:
    """An error that names a place inside of the value; pydantic puts the outer path before it."""
    told = PydanticCustomError("value_error", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data(
        "body", [InitErrorDetails(type=told, loc=path, input=None)]
    )


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError(_UNSTORABLE)
    return text


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    _walk(value, ())
    return value


def _walk(value: Any, path: tuple[str | int, ...]) -> None:
    if len(path) > _DEPTH_AT_MOST:
        raise ValueError(f"must not nest deeper than {_DEPTH_AT_MOST}")
    if isinstance(value, str) and not is_storable(value):
        raise _wrong(path, _UNSTORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, "must not be a number too large to keep")
    if isinstance(value, dict):
        for key, inner in value.items():
            within = (*path, printable(key))
            _walk(key, within)
            _walk(inner, within)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _walk(inner, (*path, place))


Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_plain_json)]
SessionStatus = Literal[
    "active", "processing", "awaiting_approval", "interrupted", "stopped", "ended"
]


class _In(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        # pydantic cannot name a field whose name is no Unicode
        for name in value if isinstance(value, dict) else ():
            if not is_storable(name):
                raise _wrong((printable(name),), _UNSTORABLE)
        return value


class _Out(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)


class SessionIn(_In):
    """A new conversation with an agent."""

    agent_name: Name
    environment: Name | None = None
    user_id: Name | None = None
    group_id: Name | None = None
    metadata: JsonObject | None = None


class Attachment(_In):
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


class MessageIn(_In):
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
            raise _wrong(("content",), "must not be empty without attachments")
        return self


class StreamTokenIn(_In):
    """Which session the token is to admit a reader to."""

    session_id: str


class ErrorOut(_Out):
    """Every error's shape."""

    error: str
    code: str
    request_id: str
    details: list[dict[str, str]] | None = None


class SessionCreated(_Out):
    """The new session."""

    id: str
    status: SessionStatus


class MessageOut(_Out):
    """One message of the transcript."""

    id: str
    role: Literal["user", "assistant", "tool"]
    content: str
    timestamp: datetime
    turn_id: str | None = None
    attachments: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class SessionListed(_Out):
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


class MessagesPage(_Out):
    """A page of the transcript, oldest first."""

    messages: list[MessageOut]


class MessageAccepted(_Out):
    """The message is stored and will be answered; the reply comes on the event stream."""

    status: Literal["processing"]
    turn_id: str
    message_id: str


class StatusOut(_Out):
    """The state a session is in now."""

    status: str
    turn_id: str | None = None


class StreamTokenOut(_Out):
    """A token for `?token=` on the event stream of one session."""

    token: str
    expires_at: datetime


class HealthOut(_Out):
    """Whether the process and its database answer."""

    status: Literal["ok", "unavailable"]
    database: Literal["ok", "unavailable"]


class DistillatesOut(BaseModel):
    """Memory that has been distilled; `enabled` is false while distillation is off."""

    enabled: bool
    distillates: list[dict[str, Any]]


class DistillOut(BaseModel):
    """What a pass of distillation persisted."""

    enabled: bool
    found: int
