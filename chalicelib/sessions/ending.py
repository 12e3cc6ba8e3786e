"""How a turn ends: from what its run came to, to what is stored and told of it. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from chalicelib.errors import PalError
from chalicelib.ids import new_id
from chalicelib.providers import Finished
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.prompt import history_entries
from chalicelib.sessions.rows import TurnEnd

CANCELLED: Final = "The turn was cancelled."


@dataclass(kw_only=True)
class Reply:
    """What one run of a turn came to."""

    finished: Finished | None = None
    error: PalError | None = None
    first_token: float | None = None


def end_of(turn: RunningTurn, reply: Reply) -> TurnEnd:
    """The commit of a turn whose run came to this; what the log lacks of its text is the tail."""
    claimed, finished = turn.claimed, reply.finished
    now = datetime.now(UTC)
    if reply.error is not None or finished is None:
        error = reply.error or PalError("The model gave no answer.", code="provider_error")
        return TurnEnd(
            status="failed",
            kind="message_error",
            event=to_json(
                sessionId=claimed.session_id,
                turnId=claimed.turn_id,
                error=error.message,
                code=error.code,
            ),
            # what the user said stays said, though it was not answered
            appended=history_entries(claimed, message_id=None, reply=None, at=now),
            error_code=error.code,
            error=error.message,
        )
    message_id, text = new_id("msg"), turn.live.text()
    return TurnEnd(
        status="completed",
        kind="message_completed",
        event=completed_data(
            session_id=claimed.session_id,
            turn_id=claimed.turn_id,
            text=text,
            tokens_in=finished.tokens_in,
            tokens_out=finished.tokens_out,
            cost_usd=finished.cost_usd,
            message_id=message_id,
            finish_reason=finished.reason,
        ),
        appended=history_entries(claimed, message_id=message_id, reply=text, at=now),
        start=turn.logged,
        tail=text[turn.logged :],
        message_id=message_id,
        text=text,
        provider=finished.provider,
        model=finished.model,
        tokens_in=finished.tokens_in,
        tokens_out=finished.tokens_out,
        cost_usd=finished.cost_usd,
        finish_reason=finished.reason,
    )


def completed_data(
    *,
    session_id: str,
    turn_id: str,
    text: str,
    tokens_in: int | None,
    tokens_out: int | None,
    cost_usd: float | None,
    message_id: str | None,
    finish_reason: str | None,
) -> str:
    """The data of `message_completed`, as the contract has it."""
    return to_json(
        sessionId=session_id,
        turnId=turn_id,
        text=text,
        usage={"tokensIn": tokens_in, "tokensOut": tokens_out, "costUsd": cost_usd},
        messageId=message_id,
        finishReason=finish_reason,
    )


def to_json(**fields: Any) -> str:
    """An event's data."""
    return orjson.dumps(fields).decode()
