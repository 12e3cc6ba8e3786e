"""Texts as Postgres and JSON hold them, and times as texts."""

from datetime import UTC, datetime


def printable(text: str) -> str:
    """This text with lone surrogates escaped, so that an answer can show it."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_storable(text: str) -> bool:
    """Whether Postgres can hold this text: no NUL and no lone surrogate."""
    if "\x00" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def rfc3339(moment: datetime) -> str:
    """`2026-07-23T10:00:00.000000Z`: UTC, always with microseconds, so that texts sort."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
