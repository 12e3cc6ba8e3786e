"""The fields of a request's body, checked."""

from __future__ import annotations

from typing import Any

from refusal import Refused


def text(body: dict[str, Any], name: str, *, default: str | None = None) -> str:
    """A string that can be encoded; Refused for anything else, or when it is missing."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise Refused(f"{name} must be a string.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{name} holds half of a character.") from None
    return value


def number(body: dict[str, Any], name: str, *, default: float, most: float) -> float:
    """A number above 0 and up to `most`."""
    value = body.get(name)
    if value is None:
        return min(default, most)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise Refused(f"{name} must be a number above 0 and at most {most}.")
    return value


def offset(body: dict[str, Any], name: str) -> int:
    """A whole number from 0 on; 0 when it is missing."""
    value = body.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise Refused(f"{name} must be a whole number, 0 or more.")
    return value
