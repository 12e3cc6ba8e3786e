"""The sessions' SQL: one function a query, a transaction in, a row object out, no decisions.

The caller owns the transaction.
"""

from typing import Any, Final

from psycopg.types.json import Jsonb

from chalicelib.context.given import Ground
from chalicelib.db import Tx, load_queries
from chalicelib.ids import new_id
from chalicelib.memory.handles import Handle
from chalicelib.sessions.rows import (
    Accepted,
    ClaimedTurn,
    CutTurn,
    Head,
    Message,
    PendingText,
    Session,
    TurnEnd,
    Written,
)

_QUERIES: Final = load_queries(__file__)


async def insert_session(
    tx: Tx,
    *,
    session_id: str,
    agent_name: str,
    environment: str | None,
    user_id: str | None,
    group_id: str | None,
    metadata: dict[str, Any] | None,
    user: Handle | None,
) -> None:
    """Write a new session and its head, and the person whose handle `user` is if there is none."""
    values = {
        "id": session_id,
        "agent_name": agent_name,
        "environment": environment,
        "user_id": user_id,
        "group_id": group_id,
        "metadata": None if metadata is None else Jsonb(metadata),
        "handle": user and user.value,
        "contact": user and user.contact,
        "new_person": user and new_id("per"),
    }
    await tx.execute(_QUERIES["insert_session"], values)


async def agent_defined(tx: Tx, name: str) -> bool:
    """Whether the tenant has an agent of this name."""
    row = await _one(tx, "agent_defined", name=name)
    return bool(row and row[0])


async def get_session(tx: Tx, session_id: str) -> Session | None:
    """The session, None if this tenant has none of that id."""
    row = await _one(tx, "get_session", session_id=session_id)
    return _session(row) if row else None


async def list_sessions(
    tx: Tx,
    *,
    before: str | None,
    agent: str | None,
    status: str | None,
    group_id: str | None,
    most: int,
) -> list[Session]:
    """The newest sessions below the id `before`."""
    values = {"before": before, "agent": agent, "status": status, "group_id": group_id}
    cur = await tx.execute(_QUERIES["list_sessions"], {**values, "most": most})
    return [_session(row) for row in await cur.fetchall()]


async def newest_messages(
    tx: Tx, session_id: str, *, bytes_at_most: int, most: int
) -> tuple[list[Message], bool]:
    """The newest messages that fit, oldest first, and whether older ones were left out."""
    values = {"session_id": session_id, "bytes": bytes_at_most, "most": most + 1}
    cur = await tx.execute(_QUERIES["newest_messages"], values)
    rows = await cur.fetchall()
    left_out = len(rows) > 1 and (bool(rows[0][9]) or len(rows) > most)
    return [_message(row) for row in rows[left_out:]], left_out


async def page_messages(
    tx: Tx, session_id: str, *, after: tuple[int, int], bytes_at_most: int, most: int
) -> tuple[list[Message], bool]:
    """Messages behind (turn ordinal, seq) in the transcript's order, and whether there are more."""
    values = {
        "session_id": session_id,
        "after_ordinal": after[0],
        "after_seq": after[1],
        "bytes": bytes_at_most,
        "most": most + 1,
    }
    cur = await tx.execute(_QUERIES["page_messages"], values)
    rows = await cur.fetchall()
    more = bool(rows) and rows[0][9] > min(len(rows), most)
    return [_message(row) for row in rows[:most]], more


async def lock_head(tx: Tx, session_id: str) -> Head | None:
    """Lock the session's head until the transaction ends; None if there is no such session."""
    row = await _one(tx, "lock_head", session_id=session_id)
    if row is None:
        return None
    return Head(
        status=row[0],
        running_turn=row[1],
        queued_turn=row[2],
        generation=row[3],
        next_seq=row[4],
        lapsed=bool(row[5]),
        watched=row[6],
    )


async def accept_message(
    tx: Tx,
    *,
    session_id: str,
    message_id: str,
    new_turn: str,
    content: str,
    attachments: list[dict[str, Any]] | None,
    hints: dict[str, Any] | None,
    event: str,
) -> Accepted | None:
    """Store a message in the session's queued turn, or in `new_turn`; None if it takes none.

    `event` is the JSON of `user_message` with an empty `turnId`.
    """
    row = await _one(
        tx,
        "accept_message",
        session_id=session_id,
        message_id=message_id,
        new_turn=new_turn,
        content=content,
        attachments=None if attachments is None else Jsonb(attachments),
        hints=None if hints is None else Jsonb(hints),
        event=event,
    )
    if row is None:
        return None
    return Accepted(
        message_id=message_id,
        turn_id=row[1],
        seq=row[0],
        busy=row[2],
        event=event.replace('"turnId":""', f'"turnId":"{row[1]}"', 1),
    )


async def claim_turn(
    tx: Tx, *, tenant_id: str, session_id: str, lease: float
) -> ClaimedTurn | None:
    """Take the queued turn for `lease` seconds; None if none waits, one runs or it is interrupted.

    Call `lock_head` first in the same transaction.
    """
    row = await _one(tx, "claim_turn", session_id=session_id, lease=lease)
    if row is None:
        return None
    return ClaimedTurn(
        tenant_id=tenant_id,
        session_id=session_id,
        turn_id=row[0],
        cut_turn=row[1],
        generation=row[2],
        seq=row[3],
        watched=row[4],
        accepted_at=row[5],
        event=row[6],
        agent_name=row[7],
        history=row[8],
        cancel_requested=row[9],
        pending=row[10] or "[]",
        resumes_turn=row[11],
        user_id=row[12],
        person_id=row[13],
        group_id=row[14],
        definition=row[15],
        agent_missing=row[16],
        own_keys=row[17],
        summary=row[18],
        pins=row[19],
        tree=row[20],
        calibration=row[21],
        counted_model=row[22],
        local_time=row[23],
        timezone=row[24],
        person_name=row[25],
        decided=row[26],
    )


async def read_ground(tx: Tx, session_id: str) -> Ground | None:
    """The session as a turn would find it now; None if there is none of that id."""
    row = await _one(tx, "read_ground", session_id=session_id)
    if row is None:
        return None
    return Ground(
        tenant_id=row[15],
        session_id=session_id,
        agent_name=row[0],
        history=row[1],
        person_id=row[2],
        group_id=row[3],
        definition=row[4],
        agent_missing=row[5],
        own_keys=row[6],
        summary=row[7],
        pins=row[8],
        tree=row[9],
        calibration=row[10],
        counted_model=row[11],
        local_time=row[12],
        timezone=row[13],
        person_name=row[14],
    )


async def write_deltas(tx: Tx, given: list[PendingText], *, lease: float) -> list[Written]:
    """Log text and renew leases of running turns, all of this transaction's tenant."""
    values = {
        "sessions": [one.session_id for one in given],
        "turns": [one.turn_id for one in given],
        "generations": [one.generation for one in given],
        "starts": [one.start for one in given],
        "texts": [one.text for one in given],
        "lease": lease,
    }
    cur = await tx.execute(_QUERIES["write_deltas"], values)
    return [
        Written(
            turn_id=row[0],
            seq=row[1],
            cancel_requested=row[2],
            watched=row[3],
            written=row[4],
            stale=row[5],
        )
        for row in await cur.fetchall()
    ]


async def end_turn(tx: Tx, turn: ClaimedTurn, end: TurnEnd) -> tuple[int, str | None] | None:
    """Commit a turn: (seq of its last event, the turn queued next); None if the lease is lost."""
    row = await _one(
        tx,
        "end_turn",
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        generation=turn.generation,
        event_id=new_id("evt"),
        **vars(end),
    )
    return (row[0], row[1]) if row else None


async def cut_turn(
    tx: Tx, *, session_id: str, new_turn: str, error: str, generation: int | None = None
) -> CutTurn | None:
    """End the running turn if its lease lapsed, or is of `generation` (given back); else None.

    Call `lock_head` first in the same transaction.
    """
    row = await _one(
        tx,
        "cut_turn",
        session_id=session_id,
        new_turn=new_turn,
        error=error,
        generation=generation,
    )
    if row is None:
        return None
    return CutTurn(
        seq=row[0],
        turn_id=row[1],
        generation=row[2],
        queued_turn=row[3],
        status=row[4],
        event=row[5],
    )


async def stop_session(tx: Tx, session_id: str) -> tuple[int, str] | None:
    """Mark the session stopped: (seq, data) of the event; None if it was stopped already."""
    row = await _one(tx, "stop_session", session_id=session_id)
    return (row[0], row[1]) if row else None


async def request_cancel(tx: Tx, session_id: str) -> str | None:
    """Ask the runner of the running turn to end it: that turn's id, None if none runs."""
    row = await _one(tx, "request_cancel", session_id=session_id)
    return row[0] if row else None


async def delete_session(tx: Tx, session_id: str) -> bool:
    """Delete the session with all that hangs on it; False if there was none."""
    await _one(tx, "hold_memory", session_id=session_id)
    return await _one(tx, "delete_session", session_id=session_id) is not None


async def due_sessions(tx: Tx, *, unclaimed: float, most: int) -> list[tuple[str, str, bool]]:
    """(tenant, session, lapsed) of lapsed turns and of turns unclaimed for seconds; any tenant."""
    cur = await tx.execute(_QUERIES["due_sessions"], {"unclaimed": unclaimed, "most": most})
    return [(row[0], row[1], row[2]) for row in await cur.fetchall()]


async def _one(tx: Tx, query: str, **values: Any) -> Any:
    return await (await tx.execute(_QUERIES[query], values)).fetchone()


def _session(row: Any) -> Session:
    return Session(
        id=row[0],
        tenant_id=row[1],
        agent_name=row[2],
        status=row[3],
        summary=row[4],
        created_at=row[5],
        updated_at=row[6],
        user_id=row[7],
        group_id=row[8],
        metadata=row[9],
    )


def _message(row: Any) -> Message:
    return Message(
        id=row[0],
        role=row[1],
        content=row[2],
        created_at=row[3],
        turn_id=row[4],
        attachments=row[5],
        tool_calls=row[6],
        turn_ordinal=row[7],
        seq=row[8],
    )
