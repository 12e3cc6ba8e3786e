"""One reader of a session's events: where it stands, and what it has yet to be given.

A turn's text reaches a reader in two forms, live pieces from the hub and coalesced rows of the
log, cut at different places. Both tell their offset in the turn's text, and a reader takes of
each only what lies behind its own offset, so no character comes twice or is left out, whichever
form it saw before. All of this is pure: no I/O.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from chalicelib.errors import InvalidField
from chalicelib.ids import is_id

if TYPE_CHECKING:
    from chalicelib.sessions.rows import LogRow

ENDS: Final = frozenset({"message_completed", "message_error"})


class FeedEvent(NamedTuple):
    """One event as a reader gets it; `data` is JSON text."""

    id: str
    name: str
    data: str


class LivePiece(NamedTuple):
    """A piece of a running turn's text, as it came from the provider."""

    start: int
    text: str
    json: str


@dataclass(slots=True)
class Position:
    """A place in a session: the last log row taken, and inside a turn how much of its text.

    As an event id: `<seq>` between turns, `<seq>-<turn>-<generation>-<offset>-<count>` inside one;
    `offset` in characters, `count` the number of deltas this reader has had of the turn.
    """

    seq: int
    turn_id: str | None = None
    generation: int = 0
    offset: int = 0
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> "Position":
        """The position an event id stands for; raises InvalidField."""
        parts = text.strip().split("-")
        try:
            if len(text) > 200 or not text.isascii() or len(parts) not in (1, 5):
                raise ValueError(text)
            numbers = [int(part) for part in (parts[0], *parts[2:])]
            if min(numbers) < 0 or max(numbers) >= 1 << 62:
                raise ValueError(text)
            if len(parts) == 5 and not is_id(parts[1], "tur"):
                raise ValueError(text)
        except ValueError as exc:
            raise InvalidField.of("Last-Event-ID", "is not an id of this event stream") from exc
        if len(parts) == 1:
            return cls(seq=numbers[0])
        return cls(
            seq=numbers[0],
            turn_id=parts[1],
            generation=numbers[1],
            offset=numbers[2],
            count=numbers[3],
        )

    def __str__(self) -> str:
        if self.turn_id is None:
            return str(self.seq)
        return f"{self.seq}-{self.turn_id}-{self.generation}-{self.offset}-{self.count}"


class Reader:
    """Takes log rows and live pieces in, gives events out; bounded in what it holds.

    `only_turn` makes it the stream of one turn: it skips the other turns and ends with its own.
    """

    def __init__(
        self, session_id: str, position: Position, *, most: int, only_turn: str | None = None
    ) -> None:
        self.session_id = session_id
        self.position = position
        self.attached = False
        self.closed = False
        self.overflowed = False
        self.key_id = ""
        self.stream_id: str | None = None  # by which it is counted among its key's streams
        self.last_given = self._last_event = monotonic()
        self._idle: float | None = None
        self._ends_at: float | None = None
        self.only_turn = only_turn
        self._most = most
        self._held = 0
        self._queue: deque[FeedEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def take_row(self, row: "LogRow") -> None:
        """Take the next row of the log; one taken before changes nothing."""
        position = self.position
        if row.seq <= position.seq or self.closed:
            return
        position.seq = row.seq
        if row.kind == "delta":
            if row.turn_id and row.start is not None and row.text:
                self._take_text(row.turn_id, row.generation or 0, row.start, row.text, None)
            return
        if row.kind == "turn_started" and self._wants(row.turn_id):
            position.turn_id, position.generation = row.turn_id, row.generation or 0
            position.offset = position.count = 0
        ends = row.kind in ENDS and row.turn_id == (self.only_turn or row.turn_id)
        if ends:
            position.turn_id = None
        if self._wants(row.turn_id):
            self.push(row.kind, row.data or "{}")
        if ends and self.only_turn:
            self.close()

    def take_piece(self, turn_id: str, generation: int, piece: LivePiece) -> None:
        """Take a live piece of the running turn, if it goes on where this reader stands."""
        position = self.position
        if (
            piece.start == position.offset
            and turn_id == position.turn_id
            and generation == position.generation
            and not self.closed
        ):
            self._push_delta(turn_id, piece.text, piece.json)

    def take_text(self, turn_id: str, generation: int, text: str) -> None:
        """Take the whole text of the running turn so far, of which a part may be known."""
        if not self.closed:
            self._take_text(turn_id, generation, 0, text, None)

    def push(self, name: str, data: str) -> None:
        """Give this event, with the id of the present position."""
        self._append(FeedEvent(str(self.position), name, data))

    def ping(self) -> None:
        """Give a heartbeat: an event without a name."""
        if not self.closed:
            last_event = self._last_event
            self._append(FeedEvent("", "", ""))
            self._last_event = last_event

    def greet(self, name: str, data: str) -> None:
        """Give this event before any other that is held."""
        self._queue.appendleft(FeedEvent(str(self.position), name, data))

    def limit(self, *, idle: float, whole: float) -> None:
        """End after `idle` seconds without a turn, and after `whole` in any case."""
        self._idle, self._ends_at = idle, monotonic() + whole

    def over(self, now: float) -> bool:
        """Whether its limit has come, at this monotonic time."""
        if self._ends_at is None or self._idle is None:
            return False
        quiet = self.position.turn_id is None and now - self._last_event >= self._idle
        return quiet or now >= self._ends_at

    def follow_only(self, turn_id: str) -> None:
        """Become the stream of this turn; call before anything was taken."""
        self.only_turn = turn_id

    def close(self) -> None:
        """End the stream once what is held has been given."""
        self.closed = True
        self._wake()

    def drain(self) -> list[FeedEvent]:
        """All that is held now."""
        events = list(self._queue)
        self._queue.clear()
        self._held = 0
        return events

    async def wait(self) -> None:
        """Until there is something to drain or the stream is closed."""
        if self._queue or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wants(self, turn_id: str | None) -> bool:
        return self.only_turn is None or turn_id == self.only_turn

    def _take_text(
        self, turn_id: str, generation: int, start: int, text: str, as_json: str | None
    ) -> None:
        position = self.position
        if not self._wants(turn_id):
            return
        if turn_id != position.turn_id or generation != position.generation:
            if start != 0:
                return
            # a place before the turn that named no turn: its text begins here
            position.turn_id, position.generation = turn_id, generation
            position.offset = position.count = 0
        rest = text[position.offset - start :] if position.offset >= start else ""
        if rest:
            self._push_delta(turn_id, rest, as_json)

    def _push_delta(self, turn_id: str, text: str, as_json: str | None) -> None:
        position = self.position
        position.offset += len(text)
        position.count += 1
        delta = as_json or orjson.dumps(text).decode()
        self._append(
            FeedEvent(
                f"{position.seq}-{turn_id}-{position.generation}-{position.offset}-{position.count}",
                "message_delta",
                f'{{"sessionId":"{self.session_id}","turnId":"{turn_id}",'
                f'"seq":{position.count},"delta":{delta}}}',
            )
        )

    def _append(self, event: FeedEvent) -> None:
        self._queue.append(event)
        self._held += len(event.data) + 100
        if self._held > self._most and self.attached:
            # what it was not given it gets again from the id of the last event that reached it
            self._queue.clear()
            self.closed = self.overflowed = True
        self.last_given = self._last_event = monotonic()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
