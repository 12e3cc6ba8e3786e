"""Server-sent events as bytes."""

from collections.abc import Iterable
from typing import Final

from chalicelib.sessions.reader import FeedEvent

PING: Final = b": ping\n\n"
RETRY: Final = b"retry: 1500\n\n"
HEADERS: Final = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),
)


def encode(events: Iterable[FeedEvent]) -> bytes:
    """The bytes of these events; one without a name is a heartbeat, a comment line."""
    parts = []
    for event in events:
        if not event.name:
            parts.append(": ping\n\n")
            continue
        parts.append(f"id: {event.id}\nevent: {event.name}\ndata: {event.data}\n\n")
    return "".join(parts).encode()
