"""The event feed of one process: who reads which session, and what runs here.

The log in Postgres is the truth. Of a session that has readers here, the hub keeps how far the log
is known without a gap (`Feed.seq`). Rows this process wrote are published to it directly; a row
that leaves a gap, or word from another process, makes it read the log. A reader first pulls the
log at its own pace, and is attached, in one step without an await, when it has all the hub knows.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Final

import orjson

from chalicelib.db import Database
from chalicelib.errors import NotFound, PalError
from chalicelib.sessions import log
from chalicelib.sessions.reader import FeedEvent, LivePiece, Position, Reader

if TYPE_CHECKING:
    from chalicelib.sessions.rows import LogRow, Watch

_log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 90.0
_PAGE: Final = 200
_REORDER_WAIT: Final = 0.02
_READ_AGAIN: Final = 1.0


class LiveTurn:
    """The text of a turn that runs in this process, and how much of it the log holds."""

    __slots__ = ("_hub", "_pieces", "generation", "length", "session_id", "turn_id")

    def __init__(self, hub: "Hub", session_id: str, turn_id: str, generation: int) -> None:
        self._hub = hub
        self.session_id, self.turn_id, self.generation = session_id, turn_id, generation
        self._pieces: list[str] = []
        self.length = 0

    def add(self, text: str) -> None:
        """Take a piece from the provider and hand it to every reader that follows live."""
        feed = self._hub.feeds.get(self.session_id)
        if feed is not None and feed.readers:
            piece = LivePiece(self.length, text, orjson.dumps(text).decode())
            for reader in tuple(feed.readers):
                reader.take_piece(self.turn_id, self.generation, piece)
        self._pieces.append(text)
        self.length += len(text)

    def text(self) -> str:
        """All of it so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Feed:
    """One session as this process sees it. `seq` is None until the log's end is known."""

    __slots__ = (
        "again",
        "ahead",
        "fetching",
        "opening",
        "readers",
        "seq",
        "session_id",
        "tenant_id",
        "watched_until",
        "woken",
    )

    def __init__(self, tenant_id: str, session_id: str) -> None:
        self.tenant_id, self.session_id = tenant_id, session_id
        self.seq: int | None = None
        self.ahead: dict[int, LogRow] = {}
        self.readers: set[Reader] = set()
        self.opening = 0
        self.watched_until = 0.0
        self.woken = 0
        self.again = False
        self.fetching: asyncio.Task[None] | None = None


class Hub:
    """All feeds and live turns of this process."""

    def __init__(self, db: Database, *, buffer: int) -> None:
        self._db = db
        self._buffer = buffer
        self.feeds: dict[str, Feed] = {}
        self.live: dict[str, LiveTurn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ── writing ──────────────────────────────────────────────────────────────────────────────
    def begin_live(self, session_id: str, turn_id: str, generation: int) -> LiveTurn:
        """A turn starts in this process; call before its `turn_started` is published."""
        live = self.live[session_id] = LiveTurn(self, session_id, turn_id, generation)
        return live

    def end_live(self, live: LiveTurn) -> None:
        """The turn has ended here, its last event has been published."""
        if self.live.get(live.session_id) is live:
            del self.live[live.session_id]

    def publish(self, session_id: str, row: "LogRow") -> None:
        """A row that this process has committed to the log."""
        feed = self.feeds.get(session_id)
        if feed is None or (feed.seq is not None and row.seq <= feed.seq):
            return
        feed.ahead[row.seq] = row
        self._advance(feed)
        if feed.ahead and feed.seq is not None:
            # another task of this process may be about to publish what is missing
            loop = asyncio.get_running_loop()
            loop.call_later(_REORDER_WAIT, self._fetch_if_behind, feed)

    def wake(self, session_id: str, seq: int | None = None) -> None:
        """Another process wrote up to `seq` (None: unknown); read the log if that is news."""
        feed = self.feeds.get(session_id)
        if feed is None:
            return
        feed.woken = max(feed.woken, seq or 0)
        if feed.seq is not None and (seq is None or seq > feed.seq):
            self._fetch(feed)

    def deleted(self, session_id: str) -> None:
        """The session is gone: its readers end, those of a turn with an error."""
        feed = self.feeds.get(session_id)
        if feed is None:
            return
        error = {"sessionId": session_id, "error": "The session was deleted."}
        for reader in tuple(feed.readers):
            if reader.closed:
                continue  # told already, here or by its turn's end
            if turn := reader.position.turn_id or reader.only_turn:
                body = {**error, "turnId": turn, "code": "session_deleted"}
                reader.push("message_error", orjson.dumps(body).decode())
            reader.close()

    def close_readers(self) -> None:
        """End every stream; each reader can go on elsewhere from its last id."""
        for feed in self.feeds.values():
            for reader in feed.readers:
                reader.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────
    async def open(
        self, tenant_id: str, session_id: str, *, after: Position | None
    ) -> "tuple[Reader, Watch]":
        """A reader right behind `after`; None: from the start of the running turn, or from now.

        Raises NotFound. The feed holds the reader until `events` has ended or `drop` is called.
        """
        feed = self._feed(tenant_id, session_id)
        feed.opening += 1
        try:
            until = time.time() + WATCH_SECONDS
            async with self._db.tenant(tenant_id) as tx:
                watch = await log.watch_session(tx, session_id, until=until)
            if watch is None:
                raise NotFound("There is no such session.")
            feed.watched_until = until
            end = watch.next_seq - 1
            if feed.seq is None:
                feed.seq = end
                self._advance(feed)
            self.wake(session_id, max(end, feed.woken))
            start = after or Position(seq=watch.turn_seq - 1 if watch.running_turn else end)
            if start.seq > end:
                start = Position(seq=end)  # of another log: there is nothing behind it
            reader = Reader(session_id, start, most=self._buffer)
            feed.readers.add(reader)
            return reader, watch
        finally:
            feed.opening -= 1
            self._release(feed)

    def open_turn(self, tenant_id: str, session_id: str, row: "LogRow", *, turn_id: str) -> Reader:
        """A reader of one turn, from the row of its message, which this process just wrote."""
        feed = self._feed(tenant_id, session_id)
        reader = Reader(session_id, Position(seq=row.seq - 1), most=self._buffer, only_turn=turn_id)
        if feed.seq is None:
            feed.seq = row.seq - 1
        feed.readers.add(reader)
        if feed.seq == row.seq - 1:
            reader.attached = True
        else:
            reader.take_row(row)
        self.publish(session_id, row)
        return reader

    async def watch(self, tenant_id: str, session_id: str) -> None:
        """Hear of what other processes write to a session that has a reader here."""
        until = time.time() + WATCH_SECONDS
        async with self._db.tenant(tenant_id) as tx:
            watch = await log.watch_session(tx, session_id, until=until)
        feed = self.feeds.get(session_id)
        if feed is None:
            return
        if watch is None:
            self.deleted(session_id)
            return
        feed.watched_until = until
        self.wake(session_id, watch.next_seq - 1)

    def drop(self, reader: Reader) -> None:
        """Let go of a reader."""
        reader.close()
        if feed := self.feeds.get(reader.session_id):
            feed.readers.discard(reader)
            self._release(feed)

    async def events(self, reader: Reader) -> AsyncGenerator[list[FeedEvent], None]:
        """Batches of events for this reader until it is closed; then the reader is dropped."""
        feed = self.feeds[reader.session_id]
        try:
            while True:
                if not reader.attached:
                    await self._pull(feed, reader)
                else:
                    await reader.wait()
                if batch := reader.drain():
                    yield batch
                elif reader.closed:
                    return
        finally:
            self.drop(reader)

    async def _pull(self, feed: Feed, reader: Reader) -> None:
        rows: list[LogRow] = []
        if feed.seq is None or reader.position.seq < feed.seq:
            rows = await self._read(feed, after=reader.position.seq)
            for row in rows:
                reader.take_row(row)
        if len(rows) == _PAGE:
            return
        if not rows and feed.seq is not None:
            reader.position.seq = max(reader.position.seq, feed.seq)  # what lay between has expired
        if feed.seq is not None and reader.position.seq >= feed.seq:
            reader.attached = True
            # rows this reader pulled are news to the feed only through the feed's own reading
            if reader.position.seq > feed.seq:
                self.wake(feed.session_id, reader.position.seq)
            self._sync_live(feed, reader)

    def _sync_live(self, feed: Feed, reader: Reader) -> None:
        live = self.live.get(feed.session_id)
        if live is not None and reader.position.turn_id == live.turn_id:
            reader.take_text(live.turn_id, live.generation, live.text())

    # ── the log ──────────────────────────────────────────────────────────────────────────────
    def _advance(self, feed: Feed) -> None:
        if feed.seq is None:
            return
        for seq in [seq for seq in feed.ahead if seq <= feed.seq]:
            del feed.ahead[seq]
        while row := feed.ahead.pop(feed.seq + 1, None):
            feed.seq = row.seq
            for reader in tuple(feed.readers):
                if reader.attached:
                    reader.take_row(row)
                    if row.kind == "turn_started":
                        self._sync_live(feed, reader)

    def _fetch_if_behind(self, feed: Feed) -> None:
        if feed.ahead:
            self._fetch(feed)

    def _fetch(self, feed: Feed) -> None:
        # what is being read now may have been asked for before the news was written
        feed.again = True
        if feed.fetching is None:
            feed.fetching = self._spawn(self._fetch_rows(feed))

    async def _fetch_rows(self, feed: Feed) -> None:
        try:
            while feed.again and feed.seq is not None and feed.readers:
                feed.again = False
                rows = await self._read(feed, after=feed.seq)
                if rows and rows[0].seq > feed.seq + 1:
                    feed.seq = rows[0].seq - 1  # the log has no gaps but what has expired
                for row in rows:
                    feed.ahead.setdefault(row.seq, row)
                self._advance(feed)
                feed.again = feed.again or len(rows) == _PAGE
            for reader in tuple(feed.readers):
                if reader.attached:
                    self._sync_live(feed, reader)
        except PalError as exc:
            _log.warning("feed not read", extra={"action": "feed_error", "error": exc.code})
            # there may be no further word of this session to try again at
            asyncio.get_running_loop().call_later(_READ_AGAIN, self.wake, feed.session_id)
        finally:
            feed.fetching = None

    async def _read(self, feed: Feed, *, after: int) -> "list[LogRow]":
        async with self._db.tenant(feed.tenant_id) as tx:
            return await log.read_events(tx, feed.session_id, after=after, most=_PAGE)

    # ── feeds come and go with their readers ─────────────────────────────────────────────────
    def _feed(self, tenant_id: str, session_id: str) -> Feed:
        feed = self.feeds.get(session_id)
        if feed is None:
            feed = self.feeds[session_id] = Feed(tenant_id, session_id)
        return feed

    def _release(self, feed: Feed) -> None:
        if feed.readers or feed.opening or self.feeds.get(feed.session_id) is not feed:
            return
        del self.feeds[feed.session_id]
        if feed.watched_until:
            self._spawn(self._unwatch(feed))

    async def _unwatch(self, feed: Feed) -> None:
        try:
            async with self._db.tenant(feed.tenant_id) as tx:
                await log.unwatch_session(tx, feed.session_id, until=feed.watched_until)
        except PalError:
            pass  # it lapses by itself

    def _spawn(self, coro: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coro, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
