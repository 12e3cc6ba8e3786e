"""Approvals: a person's yes or no to one call of a tool, bound to what was shown, used once.

A turn whose model asks for a gated call ends and leaves an approval. Deciding queues a turn that
runs the call, or tells the model that it was denied, and goes on from there. Approvals stay open
while later messages are answered; a later turn that stops for an approval itself supersedes them,
as stopping the session does. Undecided ones expire.
"""

import logging
from typing import Any, Final, Literal

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.errors import Conflict, NotFound, PalError
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import is_id, new_id
from chalicelib.sessions import approvals, store
from chalicelib.sessions.approvals import Approval
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.lifecycle import Sessions
from chalicelib.sessions.rows import LogRow

_log = logging.getLogger(__name__)

Decision = Literal["approve", "deny"]
_STATUS: Final = {"approve": "approved", "deny": "denied"}
_BATCH: Final = 500


class Approvals:
    """What callers do with approvals."""

    def __init__(self, db: Database, hub: Hub, sessions: Sessions) -> None:
        self._db, self._hub, self._sessions = db, hub, sessions

    async def find(
        self,
        caller: Principal,
        *,
        before: str | None,
        status: str | None,
        session_id: str | None,
        most: int,
    ) -> list[Approval]:
        """The newest approvals below the id `before`."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return await approvals.list_approvals(
                tx, before=before, status=status, session_id=session_id, most=most
            )

    async def decide(
        self,
        caller: Principal,
        approval_id: str,
        decision: Decision,
        *,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """Approve or deny: `{id, status, turnId}`, the turn being the one that goes on.

        Raises NotFound, and Conflict when it was decided, has expired or was superseded, or when
        the session takes nothing any more.
        """
        status = _STATUS[decision]
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            seen = await _get(tx, approval_id)
            head = await store.lock_head(tx, seen.session_id)
            # the lock may have been waited for, so what was read before it does not count
            seen = await _get(tx, approval_id)
            if seen.status != "pending":
                raise Conflict(
                    f"There is nothing left to decide: this approval is {seen.status}.",
                    code=f"approval_{seen.status}",
                    details=[{"field": "decision", "reason": f"it is {seen.status}"}],
                )
            if head is None or head.status in ("stopped", "ended"):
                state = "gone" if head is None else head.status
                raise Conflict(f"The session is {state}.", code=f"session_{state}")
            decided = await approvals.decide(
                tx, seen, status=status, key_id=caller.key_id, new_turn=new_id("tur")
            )
            if decided is None:
                raise _no_approval()
            answer = {"id": approval_id, "status": status, "turnId": decided.turn_id}
            await finish_once(tx, once, answer)
        self._hub.publish(
            seen.session_id,
            LogRow(
                seq=decided.seq,
                kind="approval_decided",
                turn_id=decided.turn_id,
                data=decided.event,
            ),
        )
        if not decided.busy:
            await self._sessions.send(caller.tenant_id, seen.session_id)
        return answer

    async def expire_due(self) -> int:
        """Expire what is overdue, of all tenants: how many. The model hears it in a later turn."""
        async with self._db.system() as tx:
            due = await approvals.due_approvals(tx, most=_BATCH)
        total = 0
        for tenant_id, session_id in due:
            try:
                total += await self._expire(tenant_id, session_id)
            except PalError as exc:
                # one session's trouble is not the others'; it is found again next time
                _log.warning(
                    "expiry skipped", extra={"action": "expiry_skipped", "error": exc.code}
                )
        return total

    async def _expire(self, tenant_id: str, session_id: str) -> int:
        async with self._db.tenant(tenant_id) as tx:
            if await store.lock_head(tx, session_id) is None:
                return 0
            events = await approvals.expire(tx, session_id)
        for seq, data in events:
            self._hub.publish(session_id, LogRow(seq=seq, kind="approval_decided", data=data))
        return len(events)


async def _get(tx: Tx, approval_id: str) -> Approval:
    found = await approvals.get_approval(tx, approval_id)
    if found is None:
        raise _no_approval()
    return found


def require_approval_id(text: str) -> str:
    """The id from a path; NotFound if it cannot be one, as for one that does not exist."""
    if not is_id(text, "apr"):
        raise _no_approval()
    return text


def _no_approval() -> NotFound:
    return NotFound("There is no such approval.")
