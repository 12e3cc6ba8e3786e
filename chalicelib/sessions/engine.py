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
from chalicelib.context.upkeep import Counted, Upkeep
from chalicelib.db import Database
from chalicelib.errors import PalError, TurnCancelled, TurnTimedOut
from chalicelib.ids import new_id
from chalicelib.sessions import store
from chalicelib.sessions.commit import commit_turn
from chalicelib.sessions.ending import CANCELLED, Reply
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.journal import open_journal
from chalicelib.sessions.keeper import Keeper, RunningTurn, event_row
from chalicelib.sessions.produce import Producer
from chalicelib.sessions.rows import ClaimedTurn, LogRow
from chalicelib.sessions.teller import Teller

_log = logging.getLogger(__name__)

_CUT: Final = "The turn was cut off before it ended; its messages are taken up again."


class Engine:
    """All turns of one process."""

    def __init__(
        self,
        db: Database,
        hub: Hub,
        producer: Producer,
        upkeep: Upkeep,
        *,
        lease: float,
        timeout: float,
    ) -> None:
        self._db, self._hub, self._producer, self._upkeep = db, hub, producer, upkeep
        self._lease, self._timeout = lease, timeout
        self.keeper = Keeper(db, hub, lease=lease)
        self._tasks: set[asyncio.Task[None]] = set()
        self._behind: set[asyncio.Task[None]] = set()  # those of them that work behind a reply
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
        """Until no turn runs here and the work behind each is done.

        A Lambda does no work after it asks for its next invocation.
        """
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
        """Have every turn that runs here give its lease back now; what is behind one is left."""
        for task in tuple(self._behind):
            task.cancel()
        for turn in tuple(self.keeper.running.values()):
            turn.end("drained")

    async def run_session(
        self, tenant_id: str, session_id: str, claimed: ClaimedTurn | None = None
    ) -> None:
        """Run queued turns until none is left, `claimed` first."""
        while await self.run_turn(tenant_id, session_id, claimed):
            claimed = None

    async def run_turn(
        self, tenant_id: str, session_id: str, claimed: ClaimedTurn | None = None
    ) -> bool:
        """Run one queued turn, or `claimed`; whether the session has another one queued."""
        telemetry.bind(tenant_id=tenant_id, session_id=session_id)
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
            LogRow(
                seq=cut.seq,
                kind="message_error",
                turn_id=cut.turn_id,
                generation=cut.generation,
                data=cut.event,
            ),
        )
        return cut.queued_turn is not None and cut.status != "interrupted"

    def _spawn(self, coro: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _work_behind(self, claimed: ClaimedTurn, reply: Reply) -> None:
        """Keep the session's tree and context, in a task that no one waits for but the drain."""
        task = self._spawn(self._keep_up(claimed, reply))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _keep_up(self, claimed: ClaimedTurn, reply: Reply) -> None:
        await self._upkeep.run(claimed.tenant_id, claimed.session_id, counted=_counted(reply))

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
                event_row(claimed.seq, "turn_started", claimed, claimed.event),
            )
            with telemetry.span("turn"):
                reply = await self._work(turn, began)
            if turn.ending == "lost":
                return self._abandon(turn)
            if turn.ending == "drained":
                await self.cut(claimed.tenant_id, claimed.session_id, generation=claimed.generation)
                return False
            more = await self._commit(turn, reply)
            if more is None:
                return self._abandon(turn)
        finally:
            self.keeper.remove(turn)
            self._hub.end_live(live)
        self._tell(reply, duration=time.monotonic() - began)
        self._work_behind(claimed, reply)
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

    async def _commit(self, turn: RunningTurn, reply: Reply) -> bool | None:
        try:
            return await commit_turn(self._db, self._hub, turn, reply, lease=self._lease)
        except PalError:
            raise
        except Exception:
            # a turn whose end cannot be written would be taken up again for ever
            _log.exception("turn could not be ended", extra={"action": "turn_not_ended"})
            reply.error = PalError("Something went wrong on our side.")
            reply.decided, reply.rounds, reply.approvals, reply.journaled = [], [], [], True
            return await commit_turn(self._db, self._hub, turn, reply, lease=self._lease)

    def _abandon(self, turn: RunningTurn) -> bool:
        _log.warning("lease lost", extra={"action": "lease_lost"})
        self._hub.wake(turn.claimed.session_id)
        return False

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


def _counted(reply: Reply) -> Counted | None:
    finished = reply.finished
    if finished is None or not finished.tokens_in or not reply.estimated:
        return None
    return Counted(
        model=f"{finished.provider}:{finished.model}",
        tokens=finished.tokens_in,
        estimated=reply.estimated,
    )
