"""How a turn ends: from what its run came to, to what is stored and told of it. Pure."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from chalicelib.errors import PalError, TurnCancelled
from chalicelib.ids import new_id
from chalicelib.providers import Finished
from chalicelib.sessions.calls import NOT_RUN, Call, NewApproval, Round, json_value, spent
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.prompt import history_entries
from chalicelib.sessions.rows import ClaimedTurn, TurnEnd
from chalicelib.texts import rfc3339

CANCELLED: Final = "The turn was cancelled."


@dataclass(kw_only=True)
class Reply:
    """What one run of a turn came to.

    `text` is a reply that was not streamed; None: what was streamed. `decided` and `rounds` are
    what its tool loop told the model and did, `approvals` what the turn ends with open;
    `journaled`: something was written to the journal, or may have been. `estimated` are the tokens
    that its one request was thought to have; None where there were several.
    """

    finished: Finished | None = None
    error: PalError | None = None
    first_token: float | None = None
    text: str | None = None
    decided: list[Call] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    approvals: list[NewApproval] = field(default_factory=list)
    journaled: bool = False
    estimated: float | None = None

    @property
    def used_tools(self) -> bool:
        """Whether there is a journal to close."""
        return bool(self.decided or self.rounds or self.journaled)

    def cancel(self) -> None:
        """Have the turn end as cancelled, if it has not failed already."""
        if self.error is None:
            self.error = TurnCancelled(CANCELLED)

    def call_off(self) -> None:
        """Ask for no approval, as no one could decide on it any more."""
        for one in self.approvals:
            one.call.status, one.call.result = "failed", NOT_RUN  # as the journal is closed
        if self.approvals and self.finished is not None:
            self.finished = replace(self.finished, reason="stop")
        self.approvals = []


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
            appended=_appended(claimed, reply, at=now),
            provider=reply.rounds[-1].provider if reply.rounds else None,
            model=reply.rounds[-1].model if reply.rounds else None,
            rounds=len(reply.rounds),
            **vars(spent(reply.rounds)),
            error_code=error.code,
            error=error.message,
        )
    message_id = new_id("msg")
    streamed = turn.live.text()
    text = streamed if reply.text is None else reply.text
    return TurnEnd(
        status="completed",
        kind="message_completed",
        event=completed_data(
            session_id=claimed.session_id,
            turn_id=claimed.turn_id,
            text=text,
            tokens_in=finished.tokens_in,
            tokens_out=finished.tokens_out,
            tokens_cached=finished.tokens_cached,
            cost_usd=finished.cost_usd,
            message_id=message_id,
            finish_reason=finished.reason,
        ),
        appended=_appended(claimed, reply, at=now, message_id=message_id, text=text),
        start=turn.logged,
        tail=streamed[turn.logged :],
        message_id=message_id,
        text=text,
        provider=finished.provider,
        model=finished.model,
        tokens_in=finished.tokens_in,
        tokens_out=finished.tokens_out,
        tokens_cached=finished.tokens_cached,
        cost_usd=finished.cost_usd,
        rounds=len(reply.rounds),
        finish_reason=finished.reason,
    )


def _appended(
    claimed: ClaimedTurn,
    reply: Reply,
    *,
    at: datetime,
    message_id: str | None = None,
    text: str | None = None,
) -> str:
    return history_entries(
        claimed,
        at=at,
        decided=reply.decided,
        rounds=reply.rounds,
        message_id=message_id,
        reply=text,
    )


def completed_data(
    *,
    session_id: str,
    turn_id: str,
    text: str,
    tokens_in: int | None,
    tokens_out: int | None,
    tokens_cached: int | None,
    cost_usd: float | None,
    message_id: str | None,
    finish_reason: str | None,
) -> str:
    """The data of `message_completed`, as the contract has it."""
    return to_json(
        sessionId=session_id,
        turnId=turn_id,
        text=text,
        usage={
            "tokensIn": tokens_in,
            "tokensOut": tokens_out,
            "tokensCached": tokens_cached,
            "costUsd": cost_usd,
        },
        messageId=message_id,
        finishReason=finish_reason,
    )


def approval_event(turn: ClaimedTurn, new: NewApproval) -> tuple[str, str]:
    """(kind, data) of the event that asks a person to decide."""
    data = to_json(
        sessionId=turn.session_id,
        turnId=turn.turn_id,
        approvalId=new.id,
        callId=new.call.id,
        name=new.call.name,
        arguments=json_value(new.call.arguments),
        expiresAt=rfc3339(new.expires_at),
    )
    return "approval_required", data


def to_json(**fields: Any) -> str:
    """An event's data."""
    return orjson.dumps(fields).decode()
