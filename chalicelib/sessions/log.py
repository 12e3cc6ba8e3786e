"""The event log's SQL, and who reads it: one function a query, as in `store`.

The caller owns the transaction.
"""

from typing import TYPE_CHECKING, Any, Final

from chalicelib.db import Tx, load_queries

if TYPE_CHECKING:
    # rows know of calls and of models, for which a process without a reader need not wait
    from chalicelib.sessions.rows import FinishedTurn, LogRow, Watch

_QUERIES: Final = load_queries(__file__, "log.sql")


async def watch_session(tx: Tx, session_id: str, *, until: float) -> "Watch | None":
    """Register this process as a reader until the epoch second; None if there is no session."""
    from chalicelib.sessions.rows import Watch

    row = await _one(tx, "watch_session", session_id=session_id, until=until)
    if row is None:
        return None
    return Watch(
        status=row[0],
        running_turn=row[1],
        queued_turn=row[2],
        generation=row[3],
        next_seq=row[4],
        turn_seq=row[5],
        kept_seq=row[6],
    )


async def unwatch_session(tx: Tx, session_id: str, *, until: float) -> None:
    """Take this process out of the session's watchers, if it is there until this very second."""
    await tx.execute(_QUERIES["unwatch_session"], {"session_id": session_id, "until": until})


async def read_events(tx: Tx, session_id: str, *, after: int, most: int) -> "list[LogRow]":
    """The log behind `after`, in order."""
    from chalicelib.sessions.rows import LogRow

    values = {"session_id": session_id, "after": after, "most": most}
    cur = await tx.execute(_QUERIES["read_events"], values)
    return [
        LogRow(
            seq=row[0],
            kind=row[1],
            turn_id=row[2],
            generation=row[3],
            start=row[4],
            text=row[5],
            data=row[6],
        )
        for row in await cur.fetchall()
    ]


async def first_event(tx: Tx, session_id: str, *, turn_id: str) -> int | None:
    """The seq of the turn's first event that the log still holds, None if it holds none."""
    row = await _one(tx, "first_event", session_id=session_id, turn_id=turn_id)
    return None if row is None or row[0] is None else int(row[0])


async def finished_turn(tx: Tx, session_id: str, *, turn_id: str | None) -> "FinishedTurn | None":
    """How this turn, or with None the newest ended one, came out."""
    from chalicelib.sessions.rows import FinishedTurn

    row = await _one(tx, "finished_turn", session_id=session_id, turn_id=turn_id)
    if row is None:
        return None
    return FinishedTurn(
        turn_id=row[0],
        status=row[1],
        generation=row[2],
        text=row[3],
        tokens_in=row[4],
        tokens_out=row[5],
        cost_usd=None if row[6] is None else float(row[6]),
        message_id=row[7],
        finish_reason=row[8],
        error=row[9],
        error_code=row[10],
        tokens_cached=row[11],
    )


async def count_stream(tx: Tx, *, stream_id: str, key_id: str, seconds: float) -> int:
    """Enter an open stream for `seconds`; how many the key has now, this one included."""
    row = await _one(tx, "count_stream", id=stream_id, key_id=key_id, seconds=seconds)
    return int(row[0]) if row else 0


async def renew_streams(tx: Tx, ids: list[str], *, seconds: float) -> None:
    """Keep these streams counted for `seconds` more."""
    await tx.execute(_QUERIES["renew_streams"], {"ids": ids, "seconds": seconds})


async def forget_stream(tx: Tx, stream_id: str) -> None:
    """Count this stream no more."""
    await tx.execute(_QUERIES["forget_stream"], {"id": stream_id})


async def feed_heads(tx: Tx, sessions: list[str]) -> list[tuple[str, int, bool]]:
    """(session, next seq, busy) of these sessions, any tenant; deleted ones are missing."""
    cur = await tx.execute(_QUERIES["feed_heads"], {"sessions": sessions})
    return [(row[0], row[1], row[2]) for row in await cur.fetchall()]


async def renew_watch(tx: Tx, sessions: list[str], *, process: str, until: float) -> None:
    """Keep a process among the watchers of these sessions, any tenant."""
    values = {"sessions": sessions, "process": process, "until": until}
    await tx.execute(_QUERIES["renew_watch"], values)


async def purge(tx: Tx, *, age: float, most: int) -> int:
    """Delete up to `most` events older than `age` seconds, and expired tokens and keys."""
    row = await _one(tx, "purge", age=age, most=most)
    return int(row[0]) if row else 0


async def _one(tx: Tx, query: str, **values: Any) -> Any:
    return await (await tx.execute(_QUERIES[query], values)).fetchone()
