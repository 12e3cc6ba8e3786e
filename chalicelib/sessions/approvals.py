"""The approvals' SQL: one function a query. The caller owns the transaction."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from chalicelib.db import Tx, load_queries
from chalicelib.sessions import journal
from chalicelib.sessions.calls import DENIED, EXPIRED, SUPERSEDED, NewApproval, arguments_hash
from chalicelib.sessions.rows import ClaimedTurn

_QUERIES: Final = load_queries(__file__, "approvals.sql")


@dataclass(frozen=True, kw_only=True)
class Approval:
    """A call that waits, or waited, for a person. `arguments` is JSON text, as it will be run."""

    id: str
    session_id: str
    turn_id: str
    call_id: str
    tool: str
    arguments: str
    status: str
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision's event, and the turn that goes on; `busy` while another one runs."""

    seq: int
    turn_id: str
    busy: bool
    event: str


async def get_approval(tx: Tx, approval_id: str) -> Approval | None:
    """The approval, None if this tenant has none of that id."""
    row = await (await tx.execute(_QUERIES["get_approval"], {"id": approval_id})).fetchone()
    return _approval(row) if row else None


async def list_approvals(
    tx: Tx, *, before: str | None, status: str | None, session_id: str | None, most: int
) -> list[Approval]:
    """The newest approvals below the id `before`."""
    values = {"before": before, "status": status, "session_id": session_id, "most": most}
    cur = await tx.execute(_QUERIES["list_approvals"], values)
    return [_approval(row) for row in await cur.fetchall()]


async def decide(
    tx: Tx, seen: Approval, *, status: str, key_id: str, new_turn: str
) -> Decided | None:
    """Decide an approval that is pending under the head's lock; None if it is no more."""
    values = {
        "id": seen.id,
        "status": status,
        "result": DENIED if status == "denied" else None,
        "key_id": key_id,
        "new_turn": new_turn,
    }
    row = await (await tx.execute(_QUERIES["decide"], values)).fetchone()
    if row is None:
        return None
    await journal.show_calls(tx, seen.turn_id)
    return Decided(seq=row[0], turn_id=row[1], busy=row[2], event=row[3])


async def expire(tx: Tx, session_id: str) -> list[tuple[int, str]]:
    """Expire what is overdue in a session whose head is locked: (seq, data) of each event."""
    values = {"session_id": session_id, "result": EXPIRED}
    rows = await (await tx.execute(_QUERIES["expire_approvals"], values)).fetchall()
    for turn_id in {row[1] for row in rows}:
        await journal.show_calls(tx, turn_id)
    return [(row[0], row[2]) for row in rows]


async def write_approvals(tx: Tx, turn: ClaimedTurn, new: list[NewApproval]) -> None:
    """The approvals that a turn ends with; open ones of earlier turns are superseded by them.

    Call it behind `journal.append_events` in the same transaction.
    """
    await supersede_approvals(tx, turn.session_id)
    values = {
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "ids": [one.id for one in new],
        "calls": [one.call.id for one in new],
        "tools": [one.call.name for one in new],
        "arguments": [one.call.arguments for one in new],
        "hashes": [arguments_hash(turn.session_id, one.call.id, one.call.arguments) for one in new],
        "expires_at": new[0].expires_at,
    }
    await tx.execute(_QUERIES["insert_approvals"], values)


async def supersede_approvals(tx: Tx, session_id: str) -> None:
    """Close what is open of a session, the head being locked: a late decision is refused."""
    values = {"session_id": session_id, "result": SUPERSEDED}
    cur = await tx.execute(_QUERIES["supersede_approvals"], values)
    for turn_id in {row[0] for row in await cur.fetchall()}:
        await journal.show_calls(tx, turn_id)


async def due_approvals(tx: Tx, *, most: int) -> list[tuple[str, str]]:
    """(tenant, session) with a pending approval whose time is over; any tenant."""
    cur = await tx.execute(_QUERIES["due_approvals"], {"most": most})
    return [(row[0], row[1]) for row in await cur.fetchall()]


def _approval(row: Any) -> Approval:
    return Approval(
        id=row[0],
        session_id=row[1],
        turn_id=row[2],
        call_id=row[3],
        tool=row[4],
        arguments=row[5],
        status="expired" if row[10] else row[6],
        created_at=row[7],
        expires_at=row[8],
        decided_at=row[9],
    )
