"""Writes what happens within a turn, and tells the readers: each write fenced, each once.

A write whose connection breaks is tried again while the lease can hold; whether the broken try
had committed is asked before that, so that nothing is written twice.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from chalicelib.db import Database, Tx
from chalicelib.errors import PalError, Unavailable
from chalicelib.sessions import journal
from chalicelib.sessions.ending import to_json
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.keeper import RunningTurn, event_row

Event = tuple[str, dict[str, Any]]
"""The kind of an event and its data, without the session's and the turn's ids."""


class Teller:
    """The events of one running turn."""

    def __init__(self, db: Database, hub: Hub, turn: RunningTurn, *, lease: float) -> None:
        self._db, self._hub, self._turn, self._lease = db, hub, turn, lease

    async def tell(self, kind: str, **data: Any) -> None:
        """An event that readers may ignore: trouble in telling it costs no one the answer."""
        try:
            await self._once([(kind, data)], None)
        except PalError:
            return

    async def write(
        self,
        events: list[Event],
        work: Callable[[Tx], Awaitable[None]],
        *,
        done: Callable[[Tx], Awaitable[bool]],
    ) -> None:
        """Write events and what goes with them in one transaction.

        `done` tells whether an earlier try has committed. Raises Unavailable when the database
        stays away for longer than the lease; ends the turn when the lease is lost.
        """
        deadline = time.monotonic() + self._lease
        tried = False
        while True:
            try:
                if tried:
                    async with self._db.tenant(self._turn.claimed.tenant_id) as tx:
                        if await done(tx):
                            self._hub.wake(self._turn.claimed.session_id)
                            return
                await self._once(events, work)
                return
            except Unavailable:
                tried = True
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _once(
        self, events: list[Event], work: Callable[[Tx], Awaitable[None]] | None
    ) -> None:
        claimed = self._turn.claimed
        rows = [
            (kind, to_json(sessionId=claimed.session_id, turnId=claimed.turn_id, **data))
            for kind, data in events
        ]
        async with self._db.tenant(claimed.tenant_id) as tx:
            logged = await journal.append_events(tx, claimed, rows, lease=self._lease)
            if logged is not None and work is not None:
                await work(tx)
        if logged is None:
            self._turn.end("lost")
            await asyncio.sleep(0)  # the end is a cancellation, which arrives at an await
            raise asyncio.CancelledError
        self.publish(logged.first, rows)
        if logged.cancel_requested:
            self._turn.end("cancelled")

    def publish(self, first: int, rows: list[tuple[str, str]]) -> None:
        """Tell readers here of rows that were logged from `first` on."""
        claimed = self._turn.claimed
        for place, (kind, data) in enumerate(rows):
            self._hub.publish(claimed.session_id, event_row(first + place, kind, claimed, data))
