"""The journal of tool loops: what a turn has asked for and done, so that it is done once.

A round is written down before its calls start and each result as it comes. A turn that takes up
one that was cut goes on behind what is written; a call that had started and has no result is
`unknown`. One function a query; the caller owns the transaction.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Jsonb

from chalicelib.db import Tx, load_queries
from chalicelib.providers import Reasoning
from chalicelib.sessions.calls import NOT_RUN, UNKNOWN, Call, Journal, Round
from chalicelib.sessions.rows import ClaimedTurn

_QUERIES: Final = load_queries(__file__, "journal.sql")


@dataclass(frozen=True, kw_only=True)
class StoredCall:
    """A call as a caller reads it back, `output` being the whole where `result` is an excerpt."""

    id: str
    turn_id: str
    round: int
    name: str
    arguments: str
    status: str
    result: str | None
    output: str | None
    started_at: datetime | None
    ended_at: datetime | None


async def open_journal(tx: Tx, turn: ClaimedTurn) -> Journal:
    """Take over what the turn that was cut had done, and what was decided; then read it."""
    known = {"session_id": turn.session_id, "turn_id": turn.turn_id}
    if turn.cut_turn:
        cut = {**known, "cut_turn": turn.cut_turn}
        await tx.execute(_QUERIES["adopt_rounds"], cut)
        await tx.execute(_QUERIES["adopt_calls"], cut)
    await tx.execute(_QUERIES["take_decisions"], known)
    rounds = {}
    for row in await (await tx.execute(_QUERIES["read_rounds"], known)).fetchall():
        rounds[row[0]] = Round(
            number=row[0],
            content=row[1],
            provider=row[2],
            model=row[3],
            reasoning=_reasoning(row[4]),
            tokens_in=row[5],
            tokens_out=row[6],
            tokens_cached=row[7],
            cost_usd=None if row[8] is None else float(row[8]),
        )
    decided = []
    for row in await (await tx.execute(_QUERIES["read_calls"], known)).fetchall():
        call = Call(
            id=row[0],
            turn_id=row[1],
            round=row[2],
            place=row[3],
            name=row[4],
            arguments=row[5],
            status=row[6],
            result=row[7],
            approved_hash=None if row[8] is None else bytes(row[8]),
        )
        if call.turn_id == turn.turn_id:
            rounds[call.round].calls.append(call)
        else:
            decided.append(call)
    hints = []
    if turn.resumes_turn:
        cur = await tx.execute(_QUERIES["read_hints"], known)
        hints = [row[0] or {} for row in await cur.fetchall()]
    return Journal(decided=decided, rounds=list(rounds.values()), hints=hints)


@dataclass(frozen=True, kw_only=True)
class Appended:
    """Where events were logged, and what the head says: a cancel came, the session is closed."""

    first: int
    cancel_requested: bool
    closed: bool


async def append_events(
    tx: Tx, turn: ClaimedTurn, events: list[tuple[str, str]], *, lease: float
) -> Appended | None:
    """Log (kind, JSON) events, and lock the head of the session.

    None if the lease is lost: then nothing may follow in this transaction.
    """
    values = {
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "generation": turn.generation,
        "kinds": [kind for kind, _ in events],
        "events": [data for _, data in events],
        "lease": lease,
    }
    row = await (await tx.execute(_QUERIES["append_events"], values)).fetchone()
    return Appended(first=row[0], cancel_requested=row[1], closed=row[2]) if row else None


async def insert_round(tx: Tx, turn: ClaimedTurn, made: Round) -> None:
    """Write a round and its calls, in the states they have."""
    reasoning = made.reasoning
    known = {"session_id": turn.session_id, "turn_id": turn.turn_id, "round": made.number}
    values = {
        **known,
        "content": made.content,
        "reasoning": None if reasoning is None else Jsonb(vars(reasoning)),
        "provider": made.provider,
        "model": made.model,
        "tokens_in": made.tokens_in,
        "tokens_out": made.tokens_out,
        "tokens_cached": made.tokens_cached,
        "cost_usd": made.cost_usd,
    }
    await tx.execute(_QUERIES["insert_round"], values)
    calls = {
        **known,
        "ids": [one.id for one in made.calls],
        "names": [one.name for one in made.calls],
        "arguments": [one.arguments for one in made.calls],
        "statuses": [one.status for one in made.calls],
    }
    await tx.execute(_QUERIES["insert_calls"], calls)


async def has_round(tx: Tx, turn: ClaimedTurn, number: int) -> bool:
    """Whether this round is written, for a try whose commit is in doubt."""
    values = {"turn_id": turn.turn_id, "round": number}
    row = await (await tx.execute(_QUERIES["has_round"], values)).fetchone()
    return bool(row and row[0])


async def start_calls(tx: Tx, calls: list[Call]) -> None:
    """Write down that these calls are about to run."""
    await tx.execute(_QUERIES["start_calls"], {"ids": [one.id for one in calls]})


async def finish_call(tx: Tx, call: Call, *, output: str | None) -> None:
    """Keep a call's result, and the whole of it where that is an excerpt."""
    values = {"id": call.id, "status": call.status, "result": call.result, "output": output}
    await tx.execute(_QUERIES["finish_call"], values)


async def show_calls(tx: Tx, turn_id: str) -> None:
    """Have the message of the turn that asked show its calls as they stand now."""
    await tx.execute(_QUERIES["show_calls"], {"turn_id": turn_id})


async def call_status(tx: Tx, call_id: str) -> str | None:
    """A call's state, None if there is none of that id."""
    row = await (await tx.execute(_QUERIES["call_status"], {"id": call_id})).fetchone()
    return row[0] if row else None


async def close_journal(tx: Tx, turn: ClaimedTurn, decided: list[Call]) -> None:
    """Forget the rounds of a turn that ends; calls that are open by then are closed.

    Those of `decided` are shown on the messages of the turns that asked for them.
    """
    values = {
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "unknown": UNKNOWN,
        "not_run": NOT_RUN,
    }
    await tx.execute(_QUERIES["close_journal"], values)
    for turn_id in sorted({one.turn_id for one in decided}):
        await show_calls(tx, turn_id)


async def read_call(tx: Tx, session_id: str, call_id: str) -> StoredCall | None:
    """One call of a session, None if it has none of that id."""
    values = {"session_id": session_id, "id": call_id}
    row = await (await tx.execute(_QUERIES["read_call"], values)).fetchone()
    if row is None:
        return None
    return StoredCall(
        id=row[0],
        turn_id=row[1],
        round=row[2],
        name=row[3],
        arguments=row[4],
        status=row[5],
        result=row[6],
        output=row[7],
        started_at=row[8],
        ended_at=row[9],
    )


def _reasoning(value: dict[str, Any] | None) -> Reasoning | None:
    if value is None:
        return None
    return Reasoning(
        provider=value["provider"], model=value["model"], blocks=tuple(value["blocks"])
    )
