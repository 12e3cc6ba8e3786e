"""Keeps the turns that run in this process: logs their text, renews their leases, hears of cancels.

One tick serves all of them, one transaction a tenant: a row in a transaction of its own costs
about 1 ms of CPU, and a hundred turns would each want four a second.
"""

import asyncio
import contextvars
import logging
import time
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

from chalicelib.db import Database
from chalicelib.errors import PalError
from chalicelib.sessions import store
from chalicelib.sessions.hub import Hub, LiveTurn
from chalicelib.sessions.rows import ClaimedTurn, LogRow, PendingText

_log = logging.getLogger(__name__)

TICK: Final = 0.05
_LOG_EVERY: Final = 0.25
_LOG_AT: Final = 4096
_SIGN_OF_LIFE: Final = 2.0

Ending = Literal["cancelled", "lost", "drained"]


@dataclass(kw_only=True, eq=False)
class RunningTurn:
    """A turn at work here. `logged` counts the characters that the log holds.

    `work` produces the reply; it is cancelled, with `ending` saying why, when the turn must end.
    """

    claimed: ClaimedTurn
    live: LiveTurn
    work: "asyncio.Task[object] | None" = None
    ending: Ending | None = None
    watched: bool = False
    logged: int = 0
    contact: float = 0.0

    def end(self, why: Ending) -> None:
        """Stop the work at its next await; the first reason given stays."""
        if self.ending is None:
            self.ending = why
            if self.work is not None:
                self.work.cancel()

    def due(self, now: float, lease: float) -> bool:
        """Whether the log is to hear of this turn now."""
        unlogged = self.live.length - self.logged
        waited = now - self.contact
        if unlogged:
            return waited >= (TICK if self.watched else _LOG_EVERY) or unlogged >= _LOG_AT
        return waited >= min(lease / 3, _SIGN_OF_LIFE)


class Keeper:
    """The ticking of all running turns of this process."""

    def __init__(self, db: Database, hub: Hub, *, lease: float) -> None:
        self._db, self._hub, self._lease = db, hub, lease
        self.running: dict[str, RunningTurn] = {}
        self.flushes = 0
        self._ticking: asyncio.Task[None] | None = None

    def add(self, turn: RunningTurn) -> None:
        """Keep this turn until `remove`."""
        turn.contact = time.monotonic()
        self.running[turn.claimed.turn_id] = turn
        if self._ticking is None:
            # of no turn's context: its log lines are about all of them
            self._ticking = asyncio.get_running_loop().create_task(
                self._tick(), context=contextvars.Context()
            )

    def remove(self, turn: RunningTurn) -> None:
        """The turn has ended."""
        self.running.pop(turn.claimed.turn_id, None)

    async def _tick(self) -> None:
        try:
            while self.running:
                await asyncio.sleep(TICK)
                now = time.monotonic()
                due = [one for one in self.running.values() if one.due(now, self._lease)]
                due.sort(key=lambda one: one.claimed.tenant_id)
                for tenant_id, turns in groupby(due, key=lambda one: one.claimed.tenant_id):
                    try:
                        await self._write(tenant_id, list(turns))
                    except Exception:
                        # one tenant's fault must not cost the others their leases
                        _log.exception("keeping broke", extra={"action": "keeper_broke"})
        finally:
            self._ticking = None

    async def _write(self, tenant_id: str, turns: list[RunningTurn]) -> None:
        given = [
            PendingText(
                session_id=one.claimed.session_id,
                turn_id=one.claimed.turn_id,
                generation=one.claimed.generation,
                start=one.logged,
                text=one.live.text()[one.logged :],
            )
            for one in turns
        ]
        try:
            async with self._db.tenant(tenant_id) as tx:
                written = await store.write_deltas(tx, given, lease=self._lease)
        except PalError as exc:
            # the turns run on; their leases hold for a while, and the text is still here
            _log.warning("deltas not logged", extra={"action": "flush_error", "error": exc.code})
            return
        self.flushes += 1
        told = {row.turn_id: row for row in written}
        for turn, text in zip(turns, given, strict=True):
            row = told[text.turn_id]
            if row.stale:
                turn.end("lost")
                continue
            if not row.written:
                continue
            turn.contact = time.monotonic()
            turn.watched = row.watched
            if text.text and row.seq is not None and turn.logged == text.start:
                turn.logged += len(text.text)
                self._hub.publish(text.session_id, delta_row(row.seq, turn.claimed, text))
            if row.cancel_requested:
                turn.end("cancelled")


def delta_row(seq: int, turn: ClaimedTurn, text: PendingText) -> LogRow:
    """The log row that this text became."""
    return LogRow(
        seq=seq,
        kind="delta",
        turn_id=turn.turn_id,
        generation=turn.generation,
        start=text.start,
        text=text.text,
    )


def event_row(seq: int, kind: str, turn: ClaimedTurn, data: str) -> LogRow:
    """The log row of an event of this turn."""
    return LogRow(seq=seq, kind=kind, turn_id=turn.turn_id, generation=turn.generation, data=data)
