"""Events and chunks of distillation, made in a line: what was said, by whom, when."""

from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.memory.distill.shapes import Chunk, Event, Line, Role

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def event(content: str, number: int = 1, **changes: Any) -> Event:
    """A message that came in; `number` is its place, and the minute it was said at."""
    said = MONDAY + timedelta(minutes=number)
    values: dict[str, Any] = {
        "place": (number, f"evt_{number}"),
        "id": f"evt_{number}",
        "occurred_at": said,
        "ingested_at": said,
        "channel": "telegram",
        "kind": "message",
        "content": content,
        "direction": "inbound",
    }
    return Event(**values | changes)


def turn(content: str, number: int = 1, **changes: Any) -> Event:
    """A turn of a session, told as `pal.told` does it."""
    session = {"channel": "session", "kind": "turn", "direction": None}
    ids = {"session_id": "sess_1", "turn_id": f"tur_{number}"}
    return event(content, number, **session | ids | changes)


def chunk(*said: tuple[Role, str] | tuple[Role, str, dict[str, Any]], **changes: Any) -> Chunk:
    """A chunk of these lines, numbered from 1, each an event of its own."""
    lines = []
    for number, (role, text, *more) in enumerate(said, start=1):
        of = event(text, number, **(more[0] if more else {}))
        lines.append(Line(number=number, event=of, role=role, text=text))
    return Chunk(lines=tuple(lines), **changes)
