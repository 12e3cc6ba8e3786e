"""Shapes of people and of the timeline. What comes in is camelCase; memory's own is snake_case."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, model_validator

from chalicelib.api.schemas import CONTENT_AT_MOST
from chalicelib.memory.handles import HANDLE_AT_MOST
from chalicelib.shapes import In, JsonObject, Name, Text, wrong_at

EVENTS_AT_MOST: Final = 500
_HANDLES_AT_MOST: Final = 50

_MOMENT: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(2200, 1, 1, tzinfo=UTC)

_DIRECTIONS: Final = {"in": "inbound", "out": "outbound"}


def read_moment(value: Any) -> datetime:
    """A time with its offset, in UTC; raises ValueError saying what is wrong with it."""
    if not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError("must be an RFC 3339 time with its offset, such as 2026-03-01T09:30:00Z")
    try:
        moment = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError("is no such day or time") from exc
    # a time of year 1 or 9999 is a program's word for "unknown", and would win or lose every tie
    if not _FIRST <= moment < _LAST:
        raise ValueError("must be a time from 1900 to 2199")
    return moment


def _direction(value: Any) -> Any:
    return _DIRECTIONS.get(value, value) if isinstance(value, str) else value


Moment = Annotated[AwareDatetime, BeforeValidator(read_moment)]
GivenHandle = Annotated[Text, Field(min_length=1, max_length=HANDLE_AT_MOST)]


class HandleIn(In):
    """What a person is called on a channel. A phone number comes with + and its country code."""

    channel: Name
    handle: GivenHandle


class EventPersonIn(HandleIn):
    """Whose event it is; the name is kept for someone who has none."""

    name: Name | None = None


class EventIn(In):
    """Something that was said or done. `occurredAt` may be late or in the future."""

    channel: Name
    kind: Name
    content: Annotated[Text, Field(min_length=1, max_length=CONTENT_AT_MOST)]
    occurred_at: Moment
    direction: Annotated[Literal["inbound", "outbound"], BeforeValidator(_direction)] | None = None
    external_id: Annotated[Text, Field(min_length=1, max_length=1_000)] | None = None
    group_id: Name | None = None
    person: EventPersonIn | None = None
    metadata: JsonObject | None = None


class EventsIn(In):
    """A batch: all of it is written, or nothing."""

    events: Annotated[list[EventIn], Field(max_length=EVENTS_AT_MOST)]


class IngestedOut(BaseModel):
    """How many were new, and how many had come before."""

    inserted: int
    duplicates: int


class PersonIn(In):
    """A person who is not known yet, by a name, handles or both."""

    name: Name | None = None
    handles: Annotated[list[HandleIn], Field(max_length=_HANDLES_AT_MOST, default_factory=list)]
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _is_someone(self) -> "PersonIn":
        if self.name is None and not self.handles:
            raise wrong_at(("handles",), "must not be empty without a name")
        return self


class MergeIn(In):
    """Two people who are one: `from` becomes part of `into`."""

    source: Annotated[str, Field(alias="from")]
    into: str


class HandleOut(BaseModel):
    """A handle in its normal form, and as it first came."""

    channel: str
    handle: str
    as_given: str


class PersonOut(BaseModel):
    """A person, with every handle they are known by."""

    id: str
    name: str | None = None
    handles: list[HandleOut]
    metadata: dict[str, Any] | None = None
    created_at: datetime
    updated_at: datetime


class PeopleOut(BaseModel):
    """A page of people, newest first."""

    people: list[PersonOut]


class DuplicateOut(BaseModel):
    """People who share a number, an address or a name."""

    reason: Literal["phone", "email", "name"]
    value: str
    people: list[PersonOut]


class DuplicatesOut(BaseModel):
    """People who are likely one, the surest first; at most 50 groups of at most 10."""

    duplicates: list[DuplicateOut]
