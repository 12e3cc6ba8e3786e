"""The commit of a turn: its reply, its journal and its approvals, in one transaction, once."""

import asyncio
import time

from chalicelib.db import Database, Tx
from chalicelib.errors import Unavailable
from chalicelib.sessions import journal, log, store
from chalicelib.sessions.approvals import write_approvals
from chalicelib.sessions.ending import Reply, approval_event, end_of
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.keeper import RunningTurn, delta_row, event_row
from chalicelib.sessions.rows import LogRow, PendingText


async def commit_turn(
    db: Database, hub: Hub, turn: RunningTurn, reply: Reply, *, lease: float
) -> bool | None:
    """End the turn as its reply says, and tell the readers.

    Whether another turn is queued; None if the lease is lost. A cancel that was acknowledged by
    now makes it cancelled. Tries again for as long as the lease can hold, then raises Unavailable.
    """
    claimed = turn.claimed
    deadline = time.monotonic() + lease
    tried = False
    while True:
        try:
            async with db.tenant(claimed.tenant_id) as tx:
                ended = await _end(tx, turn, reply, lease=lease)
                if ended is None and tried:
                    # an earlier try may have committed before its connection broke
                    known = await log.finished_turn(tx, claimed.session_id, turn_id=claimed.turn_id)
                    if known is not None and known.status != "cut":
                        hub.wake(claimed.session_id)
                        return True
            break
        except Unavailable:
            # fenced, so trying again can write it once at most
            tried = True
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)
    if ended is None:
        return None
    rows, more = ended
    for row in rows:
        hub.publish(claimed.session_id, row)
    return more


async def _end(
    tx: Tx, turn: RunningTurn, reply: Reply, *, lease: float
) -> tuple[list[LogRow], bool] | None:
    """One try: what it logged, and whether another turn is queued; None: it changed nothing."""
    claimed = turn.claimed
    rows: list[LogRow] = []
    if reply.used_tools:
        head = await journal.append_events(tx, claimed, [], lease=lease)
        if head is None:
            return None
        if head.cancel_requested:
            reply.cancel()
        if head.closed:
            reply.call_off()
        if reply.approvals and reply.error is None:
            rows += await _ask(tx, turn, reply, lease=lease)
        await journal.close_journal(tx, claimed, reply.decided)
    end = end_of(turn, reply)
    ended = await store.end_turn(tx, claimed, end)
    if ended is None and end.status == "completed":
        # cancelled at the last moment, if the lease is still this runner's
        reply.cancel()
        end = end_of(turn, reply)
        ended = await store.end_turn(tx, claimed, end)
    if ended is None:
        return None
    seq, queued = ended
    if end.tail:
        text = PendingText(
            session_id=claimed.session_id,
            turn_id=claimed.turn_id,
            generation=claimed.generation,
            start=end.start,
            text=end.tail,
        )
        rows.append(delta_row(seq - 1, claimed, text))
    rows.append(event_row(seq, end.kind, claimed, end.event))
    return rows, queued is not None


async def _ask(tx: Tx, turn: RunningTurn, reply: Reply, *, lease: float) -> list[LogRow]:
    """Leave the approvals that the turn ends with: the events that ask for them."""
    claimed = turn.claimed
    events = [approval_event(claimed, one) for one in reply.approvals]
    logged = await journal.append_events(tx, claimed, events, lease=lease)
    assert logged is not None, "the head is locked since the last look at it"
    await write_approvals(tx, claimed, reply.approvals)
    return [
        event_row(logged.first + place, kind, claimed, data)
        for place, (kind, data) in enumerate(events)
    ]
