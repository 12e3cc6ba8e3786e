"""Opening an event stream: where it starts, and what a reader gets whose place has expired."""

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from chalicelib.auth import Principal
from chalicelib.db import Database
from chalicelib.errors import PalError, TooManyRequests
from chalicelib.sessions import log
from chalicelib.sessions.hub import WATCH_SECONDS, Hub
from chalicelib.sessions.reader import Position, Reader
from chalicelib.sessions.rows import FinishedTurn, Watch


async def open_events(
    db: Database,
    hub: Hub,
    caller: Principal,
    session_id: str,
    *,
    after: str | None,
) -> tuple[Reader, Watch]:
    """A reader of all the session's events behind the id `after`; raises NotFound, InvalidField.

    Without an id it begins with the running turn, from that turn's start, or with what comes next.
    An id that has expired gets the finished message of its turn, then what comes next.
    """
    position = Position.parse(after) if after else None
    reader, watch = await hub.open(caller.tenant_id, session_id, after=position)
    if position is None or position.seq + 1 >= watch.kept_seq:
        return reader, watch
    with _dropped_on_error(hub, reader):
        async with db.tenant(caller.tenant_id) as tx:
            finished = await log.finished_turn(tx, session_id, turn_id=position.turn_id)
    end = watch.turn_seq if watch.running_turn else watch.next_seq
    reader.position = Position(seq=max(end, watch.kept_seq) - 1)
    if finished is not None:
        reader.push(*finished_event(session_id, finished))
    return reader, watch


async def replay_turn(
    db: Database, hub: Hub, caller: Principal, session_id: str, *, turn_id: str
) -> Reader:
    """A reader of one turn from its start, or of its end alone once the start has expired."""
    reader, watch = await hub.open(caller.tenant_id, session_id, after=None)
    reader.follow_only(turn_id)
    with _dropped_on_error(hub, reader):
        async with db.tenant(caller.tenant_id) as tx:
            first = await log.first_event(tx, session_id, turn_id=turn_id)
            finished = None
            if first is None or first < watch.kept_seq:
                finished = await log.finished_turn(tx, session_id, turn_id=turn_id)
    if finished is not None:
        reader.push(*finished_event(session_id, finished))
        reader.close()
    elif first is not None:
        reader.position = Position(seq=first - 1)
    return reader


@contextmanager
def _dropped_on_error(hub: Hub, reader: Reader) -> Iterator[None]:
    try:
        yield
    except BaseException:
        hub.drop(reader)
        raise


async def enter_stream(db: Database, caller: Principal, *, stream_id: str, limit: int) -> None:
    """Count a stream of this key for as long as it is renewed; TooManyRequests over the limit."""
    async with db.tenant(caller.tenant_id) as tx:
        open_now = await log.count_stream(
            tx, stream_id=stream_id, key_id=caller.key_id, seconds=WATCH_SECONDS
        )
        if open_now > limit:
            raise TooManyRequests(
                f"This key has {limit} event streams open, which is the limit.", retry_after=5
            )


async def leave_stream(db: Database, caller: Principal, stream_id: str | None) -> None:
    """Count this stream no more; None was never counted."""
    if stream_id is None:
        return
    try:
        async with db.tenant(caller.tenant_id) as tx:
            await log.forget_stream(tx, stream_id)
    except PalError:
        pass  # it lapses by itself


def finished_event(session_id: str, turn: FinishedTurn) -> tuple[str, str]:
    """(kind, data) of a turn's last event, made anew from the turn's row."""
    # with all that ends a turn, for which few who open a stream have to wait
    from chalicelib.sessions.ending import completed_data

    if turn.status == "completed":
        return "message_completed", completed_data(
            session_id=session_id,
            turn_id=turn.turn_id,
            text=turn.text or "",
            tokens_in=turn.tokens_in,
            tokens_out=turn.tokens_out,
            tokens_cached=turn.tokens_cached,
            cost_usd=turn.cost_usd,
            message_id=turn.message_id,
            finish_reason=turn.finish_reason,
        )
    error = {
        "sessionId": session_id,
        "turnId": turn.turn_id,
        "error": turn.error,
        "code": turn.error_code,
    }
    return "message_error", orjson.dumps(error).decode()
