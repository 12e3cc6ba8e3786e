"""What callers do with a session: create, look, post, stop, cancel, delete."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from chalicelib.auth import Principal
from chalicelib.db import Database
from chalicelib.errors import Conflict, NotFound, PalError, Unavailable
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import new_id
from chalicelib.isolation.store import close_vms
from chalicelib.memory.handles import user_handle
from chalicelib.sessions import store
from chalicelib.sessions.approvals import supersede_approvals
from chalicelib.sessions.dispatch import Dispatch
from chalicelib.sessions.hub import Hub
from chalicelib.sessions.journal import StoredCall, read_call
from chalicelib.sessions.naming import no_session
from chalicelib.sessions.reader import Reader
from chalicelib.sessions.rows import LogRow, Message, Session
from chalicelib.texts import rfc3339

if TYPE_CHECKING:
    from chalicelib.isolation.reaper import Reaper
    from chalicelib.sessions.engine import Engine

_log = logging.getLogger(__name__)

MESSAGES_BYTES: Final = 4 << 20
_MESSAGES_MOST: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A user's message as it came in. `hints` are the contract's, by their camelCase names."""

    content: str
    attachments: list[dict[str, Any]] | None = None
    hints: dict[str, Any] | None = None


class Sessions:
    """The sessions domain of one process. The engine is made where a turn is first thought of."""

    def __init__(
        self,
        db: Database,
        hub: Hub,
        engine: "Callable[[], Engine]",
        dispatch: Dispatch,
        reaper: "Reaper",
    ) -> None:
        self._db, self._hub, self._engine, self._reaper = db, hub, engine, reaper
        self.dispatch = dispatch

    async def create(
        self,
        caller: Principal,
        *,
        agent_name: str,
        environment: str | None = None,
        user_id: str | None = None,
        group_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """A new session: `{id, status}`. NotFound where the tenant wants agents defined first."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            if not caller.undefined_agents and not await store.agent_defined(tx, agent_name):
                raise NotFound(f"There is no agent {agent_name}.")
            answer = {"id": new_id("sess"), "status": "active"}
            await store.insert_session(
                tx,
                session_id=answer["id"],
                agent_name=agent_name,
                environment=environment,
                user_id=user_id,
                group_id=group_id,
                metadata=metadata,
                user=user_handle(user_id),
            )
            await finish_once(tx, once, answer)
        return answer

    async def get(self, caller: Principal, session_id: str) -> tuple[Session, list[Message], bool]:
        """The session, its newest 4 MB of messages, and whether older ones were left out."""
        async with self._db.tenant(caller.tenant_id) as tx:
            session = await store.get_session(tx, session_id)
            if session is None:
                raise no_session()
            messages, truncated = await store.newest_messages(
                tx, session_id, bytes_at_most=MESSAGES_BYTES, most=_MESSAGES_MOST
            )
        return session, messages, truncated

    async def find(
        self,
        caller: Principal,
        *,
        before: str | None,
        agent: str | None,
        status: str | None,
        group_id: str | None,
        most: int,
    ) -> list[Session]:
        """The newest sessions below the id `before`, without messages."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return await store.list_sessions(
                tx, before=before, agent=agent, status=status, group_id=group_id, most=most
            )

    async def page(
        self, caller: Principal, session_id: str, *, after: tuple[int, int], most: int
    ) -> tuple[list[Message], bool]:
        """Messages behind (turn ordinal, seq), 4 MB at most, and whether there are more."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if await store.get_session(tx, session_id) is None:
                raise no_session()
            return await store.page_messages(
                tx, session_id, after=after, bytes_at_most=MESSAGES_BYTES, most=most
            )

    async def tool_call(
        self, caller: Principal, session_id: str, call_id: str
    ) -> StoredCall | None:
        """One tool call of a session, None if there is none of that id."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return await read_call(tx, session_id, call_id)

    async def post(
        self, caller: Principal, session_id: str, message: NewMessage, *, once: Once | None = None
    ) -> dict[str, Any]:
        """Store a message and have its turn run: `{status, turnId, messageId}`.

        When this returns, the message is not lost any more. Raises NotFound, Conflict when the
        session is stopped or ended, Unavailable while this process drains.
        """
        answer, row, busy = await self._accept(caller, session_id, message, once)
        if row is not None:
            self._hub.publish(session_id, row)
            if not busy:
                await self.send(caller.tenant_id, session_id)
        return answer

    async def post_and_follow(
        self, caller: Principal, session_id: str, message: NewMessage, *, once: Once | None = None
    ) -> tuple[Reader | None, dict[str, Any]]:
        """Store a message, run its turn in this process, and read that turn from its start.

        The reader is None when the message had been posted before, with the same idempotency key:
        then the turn of the answer is to be replayed.
        """
        answer, row, busy = await self._accept(caller, session_id, message, once)
        if row is None:
            return None, answer
        reader = self._hub.open_turn(caller.tenant_id, session_id, row, turn_id=answer["turnId"])
        try:
            ours = None
            if not busy:
                ours = await self._engine().claim_and_start(caller.tenant_id, session_id)
            if ours != answer["turnId"]:
                # it waits for another turn, or another process was quicker to claim it
                await self._hub.watch(caller.tenant_id, session_id)
        except PalError as exc:
            # the message is stored and will be answered, so the stream stays open for it
            _log.warning("not started", extra={"action": "not_started", "error": exc.code})
        except BaseException:
            self._hub.drop(reader)
            raise
        return reader, answer

    async def stop(
        self, caller: Principal, session_id: str, *, once: Once | None = None
    ) -> dict[str, Any]:
        """Take no more messages; what was accepted before is still answered. `{status}`.

        The session's VM ends now, also for a turn that is at work.
        """
        answer = {"status": "stopped"}
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            head = await store.lock_head(tx, session_id)
            if head is None:
                raise no_session()
            if head.status == "ended":
                raise Conflict("The session has ended.", code="session_ended")
            await supersede_approvals(tx, session_id)
            stopped = await store.stop_session(tx, session_id)
            ending = await close_vms(tx, session_id)
            await finish_once(tx, once, answer)
        if stopped is not None:
            row = LogRow(
                seq=stopped[0],
                kind="session_stopped",
                data=stopped[1],
            )
            self._hub.publish(session_id, row)
        await self._reaper.end_soon(caller.tenant_id, ending)
        return answer

    async def cancel(
        self, caller: Principal, session_id: str, *, once: Once | None = None
    ) -> dict[str, Any]:
        """End the running turn at its next safe point: `{status, turnId?}`. Fine if none runs."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            head = await store.lock_head(tx, session_id)
            if head is None:
                raise no_session()
            turn_id = await store.request_cancel(tx, session_id)
            answer: dict[str, Any] = {"status": "cancelling" if turn_id else head.status}
            if turn_id:
                answer["turnId"] = turn_id
            await finish_once(tx, once, answer)
        if turn_id:
            self._engine().cancel(turn_id)
        return answer

    async def delete(self, caller: Principal, session_id: str) -> None:
        """Delete the session and all that hangs on it; a turn in flight vanishes with it."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if await store.lock_head(tx, session_id) is None:
                raise no_session()
            ending = await close_vms(tx, session_id)
            await store.delete_session(tx, session_id)
        self._hub.deleted(session_id)
        self._engine().forget(session_id)
        await self._reaper.end_soon(caller.tenant_id, ending)

    async def _accept(
        self, caller: Principal, session_id: str, message: NewMessage, once: Once | None
    ) -> tuple[dict[str, Any], LogRow | None, bool]:
        if self._engine().draining:
            raise Unavailable("This process is shutting down; try again.", retry_after=1)
        message_id = new_id("msg")
        event = {
            "sessionId": session_id,
            "turnId": "",
            "messageId": message_id,
            "content": message.content,
            "timestamp": rfc3339(datetime.now(UTC)),
        }
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before), None, False
            accepted = await store.accept_message(
                tx,
                session_id=session_id,
                message_id=message_id,
                new_turn=new_id("tur"),
                content=message.content,
                attachments=message.attachments,
                hints=message.hints,
                event=orjson.dumps(event).decode(),
            )
            if accepted is None:
                head = await store.lock_head(tx, session_id)
                if head is None:
                    raise no_session()
                raise Conflict(
                    f"The session is {head.status} and takes no messages.",
                    code=f"session_{head.status}",
                )
            answer = {
                "status": "processing",
                "turnId": accepted.turn_id,
                "messageId": message_id,
            }
            await finish_once(tx, once, answer)
        row = LogRow(
            seq=accepted.seq,
            kind="user_message",
            turn_id=accepted.turn_id,
            data=accepted.event,
        )
        return answer, row, accepted.busy

    async def send(self, tenant_id: str, session_id: str) -> None:
        """Dispatch the session's queued turn; a failure is left to the sweep."""
        try:
            await self.dispatch(tenant_id, session_id)
        except Exception as exc:
            # the message is stored and the sweep will find it, so the caller gets its 202
            _log.warning(
                "dispatch failed",
                extra={"action": "dispatch_failed", "error": type(exc).__name__},
            )
