"""A request and its answer, the same whichever way they came in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from chalicelib.errors import (
    InvalidField,
    InvalidRequest,
    NotFound,
    PalError,
    TooLarge,
    UnsupportedMediaType,
)
from chalicelib.texts import is_storable

BODY_AT_MOST: Final = 1 << 20
PAGE_SIZE: Final = 50
PAGE_SIZE_AT_MOST: Final = 200

C = TypeVar("C", bound=str)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request. Header names are lower case; of a repeated query parameter the last counts."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    request_id: str
    params: Mapping[str, str] = field(default_factory=dict)

    def require_size(self) -> None:
        """Raise TooLarge for a body over the limit, whether anyone reads it or not."""
        if len(self.body) > BODY_AT_MOST:
            raise too_large()

    def json(self) -> Any:
        """The body's JSON; raises UnsupportedMediaType or InvalidRequest."""
        self.require_json_type()
        try:
            # not orjson: it refuses a lone surrogate, of which the caller is to be told the field
            return json.loads(self.body.decode("utf-8-sig"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as exc:
            raise InvalidRequest("The body is not valid JSON.") from exc

    def require_json_type(self) -> None:
        """Raise UnsupportedMediaType unless the body is declared as JSON (or not at all)."""
        declared = self.headers.get("content-type", "application/json")
        if declared.partition(";")[0].strip().lower() != "application/json":
            raise UnsupportedMediaType("Send the body as Content-Type: application/json.")

    def text_query(self, name: str) -> str | None:
        """A query parameter, None if absent or empty; raises InvalidField for a NUL or the like."""
        value = self.query.get(name) or None
        if value is not None and not is_storable(value):
            raise InvalidField.of(name, "holds a character that cannot be stored")
        return value

    def choice_query(self, name: str, allowed: Sequence[C]) -> C | None:
        """A query parameter that is one of these, None if absent or empty; raises InvalidField."""
        text = self.text_query(name)
        if text is None:
            return None
        for one in allowed:
            if text == one:
                return one
        raise InvalidField.of(name, f"must be one of {', '.join(allowed)}")

    def page_size(self) -> int:
        """`pageSize`: 50 if absent, at most 200; raises InvalidField."""
        text = self.query.get("pageSize") or str(PAGE_SIZE)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            raise InvalidField.of("pageSize", "must be a whole number from 1")
        return min(int(text), PAGE_SIZE_AT_MOST)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A status, a JSON body (None: no body) and headers beyond the usual ones."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The body as JSON text, empty for none."""
        if self.body is None:
            return ""
        try:
            return orjson.dumps(self.body).decode()
        except TypeError:
            # metadata may hold numbers of more than 64 bits: 1e20 comes out of the database so
            return json.dumps(self.body, ensure_ascii=False, separators=(",", ":"))


def error_answer(error: PalError, request_id: str) -> Answer:
    """The answer that tells this error in the contract's shape."""
    return Answer(status=error.status, body=error.body(request_id), headers=error.headers)


def no_path() -> NotFound:
    """The error for a path that no route has."""
    return NotFound("There is nothing at this path.")


def too_large() -> TooLarge:
    """The error for a body over the limit."""
    return TooLarge(f"The body is larger than {BODY_AT_MOST} bytes.")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
