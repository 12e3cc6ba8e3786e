"""How a session ends for good, and how one that was cut off in mid-turn goes on.

The end seals what the session worked with: it stays for audit, and no later session is given it.
What came of it is promoted into the memory, in the same transaction.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from chalicelib.agents.definition import parse_definition
from chalicelib.auth import Principal
from chalicelib.context.tree_store import read_nodes
from chalicelib.db import Database, Tx, load_queries
from chalicelib.db.connections import name_of
from chalicelib.errors import Conflict, InProgress, NotFound, PalError
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import new_id
from chalicelib.isolation.reaper import Reaper
from chalicelib.isolation.store import Ending, close_vms
from chalicelib.memory.candidates import propose_episodes
from chalicelib.memory.episodes import eligible, hold_person, promote
from chalicelib.memory.facts import read_clock
from chalicelib.memory.narrative.keeping import touch
from chalicelib.memory.policy import read_policy
from chalicelib.sessions import store
from chalicelib.sessions.approvals import supersede_approvals
from chalicelib.sessions.dispatch import Dispatch
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.rows import Head, LogRow, Status

_QUERIES: Final = load_queries(__file__, "closing.sql")
_log = logging.getLogger(__name__)

_IDLE_BATCH: Final = 50
_PATIENCE: Final = 2.0
_WITHIN: Final = 30.0

HandOut = Callable[[Sequence[str]], Awaitable[None]]

Settle = Callable[[str, str], Awaitable[None]]
"""Called with (tenant id, session id) before the end: brings the tree up to date, in bounds."""

_INSTEAD: Final[dict[Status, tuple[str, str]]] = {
    "active": ("not_interrupted", "Nothing was cut off in this session: post a message to it."),
    "awaiting_approval": (
        "not_interrupted",
        "Nothing was cut off in this session: decide its approval, or post a message to it.",
    ),
    "processing": ("turn_running", "The session's turn is running or queued already."),
    "stopped": (
        "session_stopped",
        "The session is stopped. Create a new session: what was remembered is retrieved into it.",
    ),
    "ended": (
        "session_ended",
        "The session has ended. Create a new session: what was remembered is retrieved into it.",
    ),
}


class Closing:
    """Ends and resumes sessions.

    `send` dispatches a queued turn, as `Sessions.send`. `retell` has the tenant's narratives
    rewritten by a model. `auto_save` has its timeline read for facts, where the session's agent
    wants that; None where it is off. `reaper` ends the VMs of sessions that have ended; without it
    the sweep does.
    """

    def __init__(
        self,
        db: Database,
        hub: Hub,
        *,
        send: Dispatch,
        settle: Settle | None = None,
        retell: HandOut | None = None,
        auto_save: HandOut | None = None,
        reaper: Reaper | None = None,
    ) -> None:
        self._db, self._hub, self._send = db, hub, send
        self._settle, self._retell, self._auto_save = settle, retell, auto_save
        self._reaper = reaper
        self._handed: set[asyncio.Task[None]] = set()

    async def end(
        self, caller: Principal, session_id: str, *, once: Once | None = None
    ) -> dict[str, Any]:
        """End the session: `{status, promoted}`, the same each time.

        Raises NotFound, and InProgress while a turn runs or waits to.
        """
        await self._bring_up_to_date(caller.tenant_id, session_id)
        answer = await self._end(caller.tenant_id, session_id, once=once)
        assert answer is not None
        return answer

    async def end_idle(self, seconds: float, *, within: float = _WITHIN) -> int:
        """End sessions, of any tenant, in which nothing has happened for so long: how many.

        None is begun with once `within` seconds are over.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        values = {"idle": seconds, "most": _IDLE_BATCH}
        async with self._db.system() as tx:
            found = await (await tx.execute(_QUERIES["idle_sessions"], values)).fetchall()
        ended = 0
        for tenant_id, session_id in found:
            if loop.time() >= until:
                break
            try:
                async with self._db.tenant(tenant_id) as tx:
                    if await _in_use(tx, session_id, seconds):
                        continue
                await self._bring_up_to_date(tenant_id, session_id)
                ended += await self._end(tenant_id, session_id, idle=seconds) is not None
            except PalError as exc:
                # one session's trouble is not the others'; it is found again later
                _log.warning("end skipped", extra={"action": "end_skipped", "error": exc.code})
            except Exception as exc:
                _log.error(
                    "end skipped", extra={"action": "end_skipped", "error": type(exc).__name__}
                )
        return ended

    async def resume(
        self, caller: Principal, session_id: str, *, once: Once | None = None
    ) -> dict[str, Any]:
        """Take the turn up again that was cut off: `{status, turnId}`.

        Raises NotFound, and Conflict in every state but `interrupted`, saying what to do instead.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            head = await store.lock_head(tx, session_id)
            if head is None:
                raise _no_session()
            if head.status != "interrupted":
                code, instead = _INSTEAD[head.status]
                raise Conflict(instead, code=code)
            values = {"session_id": session_id, "new_turn": new_id("tur")}
            row = await (await tx.execute(_QUERIES["resume_session"], values)).fetchone()
            assert row is not None
            answer = {"status": "processing", "turnId": row[0]}
            await finish_once(tx, once, answer)
        _log.info("session resumed", extra={"action": "session_resumed"})
        await self._send(caller.tenant_id, session_id)
        return answer

    async def close(self) -> None:
        """Let go of passes that this process still runs for sessions that have ended."""
        for task in self._handed:
            task.cancel()
        await asyncio.gather(*self._handed, return_exceptions=True)

    async def _bring_up_to_date(self, tenant_id: str, session_id: str) -> None:
        if self._settle is None:
            return
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["look_at"], {"session_id": session_id})
            row = await cur.fetchone()
        if row is None or not row[0]:
            return
        try:
            await self._settle(tenant_id, session_id)
        except Exception as exc:
            # what the tree lacks of the last turn is no reason to keep the session open
            _log.warning(
                "ended without its last turn",
                extra={"action": "settle_failed", "error": name_of(exc)},
            )

    async def _end(
        self,
        tenant_id: str,
        session_id: str,
        *,
        once: Once | None = None,
        idle: float | None = None,
    ) -> dict[str, Any] | None:
        """The answer; None if the session is not `idle` for so long any more."""
        ending: list[Ending] = []
        async with self._db.tenant(tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            head = await store.lock_head(tx, session_id)
            if head is None:
                raise _no_session()
            ended = None
            if idle is not None and (head.status == "ended" or await _in_use(tx, session_id, idle)):
                return None
            if head.status == "ended":
                promoted = await _read_promoted(tx, session_id)
            else:
                _require_quiet(head)
                promoted, ended = await _seal(tx, session_id)
                ending = await close_vms(tx, session_id)
            answer = {"status": "ended", "promoted": promoted}
            await finish_once(tx, once, answer)
        if ended is not None:
            _log.info("session ended", extra={"action": "session_ended", "promoted": promoted})
            self._hub.publish(session_id, ended)
            await self._tell_memory(tenant_id, session_id)
            if self._reaper is not None:
                await self._reaper.end_soon(tenant_id, ending)
        return answer

    async def _saves(self, tenant_id: str, session_id: str) -> bool:
        async with self._db.tenant(tenant_id) as tx:
            cur = await tx.execute(_QUERIES["read_agent"], {"session_id": session_id})
            row = await cur.fetchone()
        return row is not None and parse_definition(row[0]).memory.auto_save

    async def _tell_memory(self, tenant_id: str, session_id: str) -> None:
        """Have what came of it read; what takes its time goes on behind the answer."""
        hand_out = self._retell
        if self._auto_save is not None and await self._saves(tenant_id, session_id):
            hand_out = self._auto_save
        if hand_out is None:
            return
        task = asyncio.get_running_loop().create_task(_handed_out(hand_out, tenant_id))
        self._handed.add(task)
        task.add_done_callback(self._handed.discard)
        await asyncio.wait((task,), timeout=_PATIENCE)


async def _handed_out(hand_out: HandOut, tenant_id: str) -> None:
    try:
        await hand_out([tenant_id])
    except Exception as exc:
        # the schedule comes by in any case
        _log.warning(
            "pass not handed out", extra={"action": "hand_out_failed", "error": type(exc).__name__}
        )


async def _seal(tx: Tx, session_id: str) -> tuple[int, LogRow]:
    """End a session whose head is locked: how much was promoted, and the event."""
    values: dict[str, Any] = {"session_id": session_id}
    await tx.execute(_QUERIES["hold_state"], values)
    await supersede_approvals(tx, session_id)
    promoted = await _promote(tx, session_id)
    cur = await tx.execute(_QUERIES["end_session"], {**values, "promoted": promoted})
    row = await cur.fetchone()
    assert row is not None
    return promoted, LogRow(seq=row[0], kind="session_ended", data=row[1])


async def _promote(tx: Tx, session_id: str) -> int:
    """Write what came of the session as the tenant's policy has it: how much is memory now."""
    cur = await tx.execute(_QUERIES["read_owner"], {"session_id": session_id})
    row = await cur.fetchone()
    assert row is not None
    person_id, group_id = await hold_person(tx, row[0]), row[1]
    policy, now = await read_policy(tx), await read_clock(tx)
    proposed = eligible(await read_nodes(tx, session_id))
    by_word = {
        word: [one for one in proposed if policy.promote[one.kind] == word]
        for word in ("auto", "approve")
    }
    promoted = await promote(
        tx,
        session_id=session_id,
        person_id=person_id,
        group_id=group_id,
        proposed=by_word["auto"],
        now=now,
    )
    if by_word["approve"]:
        await propose_episodes(
            tx,
            session_id=session_id,
            person_id=person_id,
            group_id=group_id,
            proposed=by_word["approve"],
        )
    if promoted:
        await touch(tx, person_id=person_id, group_id=group_id, now=now)
    return promoted


async def _read_promoted(tx: Tx, session_id: str) -> int:
    cur = await tx.execute(_QUERIES["read_promoted"], {"session_id": session_id})
    row = await cur.fetchone()
    return int(row[0]) if row else 0


async def _in_use(tx: Tx, session_id: str, idle: float) -> bool:
    values = {"session_id": session_id, "idle": idle}
    return await (await tx.execute(_QUERIES["still_in_use"], values)).fetchone() is not None


def _require_quiet(head: Head) -> None:
    waits = head.queued_turn is not None and head.status != "interrupted"
    if head.running_turn is not None or waits:
        raise InProgress(
            "A turn is running or queued: wait for its end or cancel it, then end the session.",
            code="turn_running",
            retry_after=1,
        )


def _no_session() -> NotFound:
    return NotFound("There is no such session.")
