"""From a claimed turn to what the model is asked, and to what the history keeps. Pure."""

from datetime import UTC, datetime
from typing import Any

import orjson

from chalicelib.providers import ModelMessage, ModelRequest
from chalicelib.sessions.rows import ClaimedTurn


def rfc3339(moment: datetime) -> str:
    """`2026-07-23T10:00:00.000000Z`: UTC, always with microseconds, so that texts sort."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def build_request(turn: ClaimedTurn) -> ModelRequest:
    """The full history, then the turn's messages; the last message's hints apply.

    A pure function of what is stored, so a turn that is run again asks the same.
    """
    pending = orjson.loads(turn.pending)
    hints: dict[str, Any] = (pending[-1].get("hints") or {}) if pending else {}
    system = [f"You are {turn.agent_name}, a helpful assistant."]
    if hint := hints.get("systemHint"):
        system.append(hint)
    messages = [_message(one) for one in (*orjson.loads(turn.history), *pending)]
    if hint := hints.get("turnHint"):
        messages.append(ModelMessage(role="system", content=hint))
    return ModelRequest(system="\n\n".join(system), messages=tuple(messages))


def history_entries(
    turn: ClaimedTurn, *, message_id: str | None, reply: str | None, at: datetime
) -> str:
    """What the turn adds to `sessions.messages`, as a JSON array: its messages and the reply."""
    entries = []
    for one in orjson.loads(turn.pending):
        del one["hints"]
        if one["attachments"] is None:
            del one["attachments"]
        entries.append(one)
    if message_id is not None:
        entries.append(
            {
                "id": message_id,
                "role": "assistant",
                "content": reply,
                "timestamp": rfc3339(at),
                "turnId": turn.turn_id,
            }
        )
    return orjson.dumps(entries).decode()


def _message(one: dict[str, Any]) -> ModelMessage:
    return ModelMessage(
        role=one["role"], content=one["content"], attachments=tuple(one.get("attachments") or ())
    )
