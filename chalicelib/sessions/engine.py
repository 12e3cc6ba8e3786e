"""Runs turns: claim, ask the provider, stream, commit. One engine a process.

The producing of a reply is a task of its own, so that ending it (a cancel, a lost lease, a drain)
never cuts the bookkeeping that follows. Every write carries (turn, generation): a runner that has
lost its lease changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Final

from chalicelib import telemetry
from chalicelib.db import Database, Tx
from chalicelib.errors import PalError, TurnCancelled, TurnTimedOut, Unavailable
from chalicelib.ids import new_id
from chalicelib.sessions import log, store
from chalicelib.sessions.approvals import write_approvals
from chalicelib.sessions.ending import CANCELLED, Reply, approval_event, end_of
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.journal import append_events, close_journal, open_journal
from chalicelib.sessions.keeper import Keeper, RunningTurn, delta_row
from chalicelib.sessions.produce import Producer
from chalicelib.sessions.rows import ClaimedTurn, LogRow, PendingText, TurnEnd
from chalicelib.sessions.teller import Teller

_log = logging.getLogger(__name__)

_CUT: Final = "The turn was cut off before it ended; its messages are taken up again."


class Engine:
    """All turns of one process."""

    def __init__(
        self, db: Database, hub: Hub, producer: Producer, *, lease: float, timeout: float
    ) -> None:
        self._db, self._hub, self._producer = db, hub, producer
        self._lease, self._timeout = lease, timeout
        self.keeper = Keeper(db, hub, lease=lease)
        self._tasks: set[asyncio.Task[None]] = set()
        self.draining = False

    # ── from outside ─────────────────────────────────────────────────────────────────────────
    def start(self, tenant_id: str, session_id: str) -> None:
        """Run this session's queued turns, in a task of its own; harmless if there are none."""
        if not self.draining:
            self._spawn(self.run_session(tenant_id, session_id))

    async def claim_and_start(self, tenant_id: str, session_id: str) -> str | None:
        """Claim the queued turn now and run it in a task of its own; its id, None if not ours."""
        if self.draining:
            return None
        claimed = await self._claim(tenant_id, session_id)
        if claimed is None:
            return None
        self._spawn(self.run_session(tenant_id, session_id, claimed))
        return claimed.turn_id

    def cancel(self, turn_id: str) -> None:
        """End this turn, if it runs here."""
        if turn := self.keeper.running.get(turn_id):
            turn.end("cancelled")

    def forget(self, session_id: str) -> None:
        """End what runs here of a session that was deleted."""
        for turn in tuple(self.keeper.running.values()):
            if turn.claimed.session_id == session_id:
                turn.end("cancelled")

    async def wait_idle(self) -> None:
        """Until no turn runs here; a Lambda does no work after it asks for its next invocation."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def drain(self, seconds: float) -> None:
        """Claim no more; let what runs finish; what is left then gives its lease back at once."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=seconds)
        self.hurry()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=5)

    def hurry(self) -> None:
        """Have every turn that runs here give its lease back now."""
        for turn in tuple(self.keeper.running.values()):
            turn.end("drained")

    async def run_session(
        self, tenant_id: str, session_id: str, claimed: ClaimedTurn | None = None
    ) -> None:
        """Run queued turns until none is left, `claimed` first."""
        telemetry.bind(tenant_id=tenant_id, session_id=session_id)
        while await self.run_turn(tenant_id, session_id, claimed):
            claimed = None

    async def run_turn(
        self, tenant_id: str, session_id: str, claimed: ClaimedTurn | None = None
    ) -> bool:
        """Run one queued turn, or `claimed`; whether the session has another one queued."""
        try:
            if claimed is None and not self.draining:
                claimed = await self._claim(tenant_id, session_id)
            return claimed is not None and await self._run(claimed)
        except PalError as exc:
            # nothing is lost: the sweep finds the turn, queued or lapsed
            _log.warning("turn put off", extra={"action": "turn_put_off", "error": exc.code})
        except Exception:
            _log.exception("turn broke", extra={"action": "turn_broke"})
        return False

    async def cut(self, tenant_id: str, session_id: str, *, generation: int | None = None) -> bool:
        """End a lapsed turn (or the one of `generation`) for its runner; True if more is to run."""
        async with self._db.tenant(tenant_id) as tx:
            if await store.lock_head(tx, session_id) is None:
                return False
            cut = await store.cut_turn(
                tx,
                session_id=session_id,
                new_turn=new_id("tur"),
                error=_CUT,
                generation=generation,
            )
        if cut is None:
            return False
        _log.warning("turn cut", extra={"action": "turn_cut", "turn_id": cut.turn_id})
        if running := self.keeper.running.get(cut.turn_id):
            running.end("lost")
        self._hub.publish(
            session_id,
            _event_row(cut.seq, "message_error", cut.turn_id, cut.generation, cut.event),
        )
        return cut.queued_turn is not None and cut.status != "interrupted"

    def _spawn(self, coro: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── one turn ─────────────────────────────────────────────────────────────────────────────
    async def _claim(self, tenant_id: str, session_id: str) -> ClaimedTurn | None:
        async with self._db.tenant(tenant_id) as tx:
            if await store.lock_head(tx, session_id) is None:
                return None
            claimed = await store.claim_turn(
                tx, tenant_id=tenant_id, session_id=session_id, lease=self._lease
            )
            if claimed is None or not (claimed.cut_turn or claimed.decided):
                return claimed
            return replace(claimed, journal=await open_journal(tx, claimed))

    async def _run(self, claimed: ClaimedTurn) -> bool:
        """Run one claimed turn to its end; whether the session has another one queued."""
        telemetry.bind(turn_id=claimed.turn_id)
        began = time.monotonic()
        live = self._hub.begin_live(claimed.session_id, claimed.turn_id, claimed.generation)
        turn = RunningTurn(claimed=claimed, live=live, watched=claimed.watched)
        self.keeper.add(turn)
        try:
            self._hub.publish(
                claimed.session_id,
                _event_row(
                    claimed.seq, "turn_started", claimed.turn_id, claimed.generation, claimed.event
                ),
            )
            with telemetry.span("turn"):
                reply = await self._work(turn, began)
            if turn.ending == "lost":
                return self._abandon(turn)
            if turn.ending == "drained":
                await self.cut(claimed.tenant_id, claimed.session_id, generation=claimed.generation)
                return False
            more = await self._commit(turn, reply)
        finally:
            self.keeper.remove(turn)
            self._hub.end_live(live)
        self._tell(reply, duration=time.monotonic() - began)
        return more

    async def _work(self, turn: RunningTurn, began: float) -> Reply:
        found = turn.claimed.journal
        reply = Reply(decided=found.decided, rounds=found.rounds)
        if turn.claimed.cancel_requested:
            turn.ending = "cancelled"
            reply.error = TurnCancelled(CANCELLED)
            return reply
        teller = Teller(self._db, self._hub, turn, lease=self._lease)
        turn.work = asyncio.get_running_loop().create_task(
            self._producer.produce(turn, reply, teller, began=began)
        )
        try:
            async with asyncio.timeout(self._timeout):
                await turn.work
        except PalError as exc:
            reply.error = exc
        except TimeoutError:
            reply.error = TurnTimedOut(f"The turn took longer than {self._timeout:g} s.")
        except asyncio.CancelledError:
            if turn.ending is None:
                raise
            reply.error = TurnCancelled(CANCELLED)
        except Exception as exc:
            # a fault of an adapter's; its text may hold a message, so only its kind is told
            _log.error(
                "provider broke",
                extra={"action": "provider_broke", "error": type(exc).__name__},
                exc_info=_log.isEnabledFor(logging.DEBUG),
            )
            reply.error = PalError("The model's answer could not be read.", code="provider_error")
        return reply

    def _abandon(self, turn: RunningTurn) -> bool:
        _log.warning("lease lost", extra={"action": "lease_lost"})
        self._hub.wake(turn.claimed.session_id)
        return False

    # ── its end ──────────────────────────────────────────────────────────────────────────────
    async def _commit(self, turn: RunningTurn, reply: Reply) -> bool:
        end = end_of(turn, reply)
        claimed = turn.claimed
        deadline = time.monotonic() + self._lease
        tried = False
        while True:
            try:
                asked: list[LogRow] = []
                async with self._db.tenant(claimed.tenant_id) as tx:
                    ended = await self._end(tx, claimed, reply, end, asked)
                    if ended is None and end.status == "completed":
                        # cancelled at the last moment, if the lease is still this runner's
                        cancelled = replace(reply, error=TurnCancelled(CANCELLED))
                        void = end_of(turn, cancelled)
                        ended = await self._end(tx, claimed, cancelled, void, asked)
                        if ended is not None:
                            end, reply.error = void, cancelled.error
                    if ended is None and tried:
                        # an earlier try may have committed before its connection broke
                        known = await log.finished_turn(
                            tx, claimed.session_id, turn_id=claimed.turn_id
                        )
                        if known is not None and known.status != "cut":
                            self._hub.wake(claimed.session_id)
                            return True
                break
            except Unavailable:
                # fenced, so trying again can write it once at most
                tried = True
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)
        if ended is None:
            return self._abandon(turn)
        seq, queued = ended
        for row in asked:
            self._hub.publish(claimed.session_id, row)
        if end.tail:
            text = PendingText(
                session_id=claimed.session_id,
                turn_id=claimed.turn_id,
                generation=claimed.generation,
                start=end.start,
                text=end.tail,
            )
            self._hub.publish(claimed.session_id, delta_row(seq - 1, claimed, text))
        self._hub.publish(
            claimed.session_id,
            _event_row(seq, end.kind, claimed.turn_id, claimed.generation, end.event),
        )
        return queued is not None

    async def _end(
        self, tx: Tx, claimed: ClaimedTurn, reply: Reply, end: TurnEnd, asked: list[LogRow]
    ) -> tuple[int, str | None] | None:
        """One try to commit; the events of approvals that the turn ends with go into `asked`."""
        if reply.used_tools:
            fence = await append_events(tx, claimed, [], lease=self._lease)
            if fence is None or (fence[1] and end.status == "completed"):
                return None
            if end.status == "completed" and reply.approvals:
                events = [approval_event(claimed, one) for one in reply.approvals]
                logged = await append_events(tx, claimed, events, lease=self._lease)
                first = logged[0] if logged else 0
                asked += [
                    _event_row(first + n, kind, claimed.turn_id, claimed.generation, data)
                    for n, (kind, data) in enumerate(events)
                ]
                await write_approvals(tx, claimed, reply.approvals)
            await close_journal(tx, claimed, reply.decided)
        return await store.end_turn(tx, claimed, end)

    def _tell(self, reply: Reply, *, duration: float) -> None:
        finished, error = reply.finished, reply.error
        failed = error is not None and not isinstance(error, TurnCancelled)
        _log.info(
            "turn ended",
            extra={
                "action": "turn_ended",
                "outcome": error.code if error else "completed",
                "ms": round(duration * 1000),
                "provider": finished.provider if finished else None,
                "tokens_out": finished.tokens_out if finished else None,
            },
        )
        telemetry.record_turn(
            duration=duration,
            first_token=reply.first_token,
            failed=failed,
            tokens_in=finished.tokens_in if finished else None,
            tokens_out=finished.tokens_out if finished else None,
        )


def _event_row(seq: int, kind: str, turn_id: str, generation: int, data: str) -> LogRow:
    return LogRow(
        seq=seq,
        kind=kind,
        turn_id=turn_id,
        generation=generation,
        data=data,
    )
