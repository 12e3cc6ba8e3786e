"""From a claimed turn to what the model is asked, and to what the history keeps. Pure.

Everything here is a function of what is stored, so a turn that is run again asks the same.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from chalicelib.agents.definition import AgentDefinition
from chalicelib.providers import ModelMessage, ModelRequest, Reasoning, ToolCall, ToolSpec
from chalicelib.sessions.calls import NOT_RUN, UNKNOWN, Call, Round
from chalicelib.sessions.rows import ClaimedTurn


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the turn's messages ask for beside their text. Of texts, the last message's hold."""

    system: str | None = None
    turn: str | None = None
    no_tools: bool = False
    read_only_tools: bool = False


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The parts of every request of one turn: what stands before its rounds.

    `notes` are what the memory knows for this turn. They stand behind the history, which is the
    same in the next turn, so that what a provider keeps of it holds; the history never has them.
    """

    system: str
    history: tuple[ModelMessage, ...]
    pending: tuple[ModelMessage, ...]
    notes: str = ""

    @property
    def asked(self) -> str:
        """What the user says: in this turn or, where it only goes on, the last time."""
        said = [one.content for one in self.pending if one.role == "user"]
        if not said:
            said = [one.content for one in self.history if one.role == "user"][-1:]
        return "\n".join(said)

    def request(
        self,
        *,
        decided: list[Call] | None = None,
        rounds: list[Round] | None = None,
        tools: tuple[ToolSpec, ...] = (),
        stream: bool = True,
    ) -> ModelRequest:
        """The request behind these calls that were decided on and these rounds."""
        messages = [*self.history, *(_result(call) for call in decided or ())]
        if self.notes:
            messages.append(ModelMessage(role="system", content=self.notes))
        messages += self.pending
        for one in rounds or ():
            messages.append(
                ModelMessage(
                    role="assistant",
                    content=one.content,
                    tool_calls=tuple(call.asked() for call in one.calls),
                    reasoning=one.reasoning,
                )
            )
            messages += [_result(call) for call in one.calls if call.settled]
        return ModelRequest(
            system=self.system, messages=tuple(messages), tools=tools, stream=stream
        )


def rfc3339(moment: datetime) -> str:
    """`2026-07-23T10:00:00.000000Z`: UTC, always with microseconds, so that texts sort."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_hints(turn: ClaimedTurn, resumed: list[dict[str, Any]]) -> Hints:
    """The hints of the turn's messages; without any, those of the turn it goes on with."""
    given = [one.get("hints") or {} for one in orjson.loads(turn.pending)]
    if not given:
        given = resumed[::-1]
    last = given[-1] if given else {}
    return Hints(
        system=last.get("systemHint"),
        turn=last.get("turnHint"),
        no_tools=any(one.get("noTools") for one in given),
        read_only_tools=any(one.get("readOnlyTools") for one in given),
    )


def build_prompt(turn: ClaimedTurn, agent: AgentDefinition, hints: Hints) -> Prompt:
    """The agent's prompt, the full history, then the turn's messages and its hint."""
    persona = agent.system_prompt or f"You are {turn.agent_name}, a helpful assistant."
    system = [persona, *([hints.system] if hints.system else [])]
    pending = [_message(one) for one in orjson.loads(turn.pending)]
    if hints.turn:
        pending.append(ModelMessage(role="system", content=hints.turn))
    return Prompt(
        system="\n\n".join(system),
        history=tuple(_message(one) for one in orjson.loads(turn.history)),
        pending=tuple(pending),
    )


def history_entries(
    turn: ClaimedTurn,
    *,
    at: datetime,
    decided: list[Call],
    rounds: list[Round],
    message_id: str | None,
    reply: str | None,
) -> str:
    """What the turn adds to `sessions.messages`, as a JSON array.

    Calls that were decided on, the turn's messages, its rounds with their results, then the reply;
    `message_id` None: the turn failed, and what its tools have done is told without a reply. The
    last round is the reply itself when its calls wait for approvals, and stands without results.
    """
    told = {"id": message_id, "timestamp": rfc3339(at)}
    entries = [_result_entry(turn, call) for call in decided]
    entries += [_user_entry(one) for one in orjson.loads(turn.pending)]
    waits = False
    for made in rounds:
        waits = message_id is not None and any(call.status == "asked" for call in made.calls)
        entry = _round_entry(turn, made)
        if waits:
            entry.update(told)
            if made.reasoning is not None:
                entry["reasoning"] = vars(made.reasoning)
        entries.append(entry)
        entries += [
            _result_entry(turn, call) for call in made.calls if call.status != "asked" or not waits
        ]
    if message_id is not None and not waits:
        entries.append({**told, "role": "assistant", "content": reply, "turnId": turn.turn_id})
    return orjson.dumps(entries).decode()


def _user_entry(one: dict[str, Any]) -> dict[str, Any]:
    left_out = {"hints"} if one["attachments"] is not None else {"hints", "attachments"}
    return {name: value for name, value in one.items() if name not in left_out}


def _round_entry(turn: ClaimedTurn, made: Round) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": made.content,
        "toolCalls": [
            {"id": call.id, "name": call.name, "arguments": orjson.Fragment(call.arguments)}
            for call in made.calls
        ],
        "turnId": turn.turn_id,
    }


def _result_entry(turn: ClaimedTurn, call: Call) -> dict[str, Any]:
    text, is_error = _told_of(call)
    entry = {"role": "tool", "toolCallId": call.id, "content": text, "turnId": turn.turn_id}
    return {**entry, "isError": True} if is_error else entry


def _told_of(call: Call) -> tuple[str, bool]:
    if call.settled:
        return call.result or "", call.is_error
    # the turn ends without its result: what `journal.close_journal` writes
    return (UNKNOWN, True) if call.status == "running" else (NOT_RUN, False)


def _result(call: Call) -> ModelMessage:
    text, is_error = _told_of(call)
    return ModelMessage(role="tool", content=text, tool_call_id=call.id, is_error=is_error)


def _message(one: dict[str, Any]) -> ModelMessage:
    reasoning = one.get("reasoning")
    return ModelMessage(
        role=one["role"],
        content=one["content"],
        attachments=tuple(one.get("attachments") or ()),
        tool_calls=tuple(
            ToolCall(
                id=call["id"],
                name=call["name"],
                arguments=json.dumps(call["arguments"], ensure_ascii=False),
            )
            for call in one.get("toolCalls") or ()
        ),
        reasoning=None
        if reasoning is None
        else Reasoning(
            provider=reasoning["provider"],
            model=reasoning["model"],
            blocks=tuple(reasoning["blocks"]),
        ),
        tool_call_id=one.get("toolCallId"),
        is_error=one.get("isError", False),
    )
