"""From a compiled context to what the model is asked, and to what the history keeps. Pure.

Everything here is a function of what is stored, so a turn that is run again asks the same.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from chalicelib.context.blocks import Block, shorten_results
from chalicelib.context.compile import Compiled
from chalicelib.providers import ModelMessage, ModelRequest, ToolSpec
from chalicelib.providers.counting import estimate_message, estimate_tokens
from chalicelib.sessions.calls import NOT_RUN, UNKNOWN, Call, Round
from chalicelib.sessions.rows import ClaimedTurn
from chalicelib.texts import rfc3339
from chalicelib.tools.offer import specs_text


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the turn's messages ask for beside their text. Of texts, the last message's hold."""

    system: str | None = None
    turn: str | None = None
    no_tools: bool = False
    read_only_tools: bool = False


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What every request of one turn is made of: the compiled context, before the turn's rounds."""

    compiled: Compiled

    def request(
        self,
        *,
        decided: list[Call] | None = None,
        rounds: list[Round] | None = None,
        tools: tuple[ToolSpec, ...] = (),
        stream: bool = True,
    ) -> ModelRequest:
        """The request behind these calls that were decided on and these rounds.

        What they take is made room for: first older turns go, then long results are shortened.
        """
        made = self.compiled
        # a turn that only goes on with another has a hint of its own at most
        asks = any(one.role == "user" for one in made.pending)
        blocks = list(made.blocks)
        late, told = _called(decided or [], blocks), _round_messages(rounds or [])
        room = made.budget - made.tokens - self._untold(tools) - self._count(told)
        while (over := self._count(late) - room) > 0 and len(blocks) > (not asks):
            room += blocks.pop(0).tokens
            late = _called(decided or [], blocks)
        last = [] if asks else [one for block in blocks[-1:] for one in block.messages]
        if over > 0:
            cut = shorten_results([*last, *late, *told], over, self._count_one)
            told = cut[len(last) + len(late) :]
            last, late = cut[: len(last)], cut[len(last) : len(last) + len(late)]
        messages = []
        if made.summary:
            messages.append(ModelMessage(role="system", content=made.summary))
        earlier = blocks if asks else blocks[:-1]
        messages += [one for block in earlier for one in block.messages]
        kept = len(messages)
        messages += late if asks else []
        # before what is asked now, or was asked last
        messages.append(ModelMessage(role="system", content=made.notes))
        messages += [] if asks else [*last, *late]
        messages += [*made.pending, *told]
        return ModelRequest(
            system=made.system,
            messages=tuple(messages),
            tools=tools,
            stream=stream,
            # within a turn, all that its next round goes on from
            kept=len(messages) if told else kept,
        )

    def _untold(self, tools: tuple[ToolSpec, ...]) -> int:
        """Tokens of the tools that the context did not know of when it was compiled."""
        counted = sum(one.tokens for one in self.compiled.before if one.kind == "tools")
        actual = math.ceil(estimate_tokens(specs_text(tools)) * self.compiled.factor)
        return max(0, actual - counted)

    def _count(self, messages: list[ModelMessage]) -> int:
        return sum(map(self._count_one, messages))

    def _count_one(self, message: ModelMessage) -> int:
        return math.ceil(estimate_message(message) * max(1.0, self.compiled.factor))


def _called(decided: list[Call], blocks: list[Block]) -> list[ModelMessage]:
    """What became of these calls. One whose turn is not told any more is told with it."""
    told = {call.id for block in blocks for one in block.messages for call in one.tool_calls}
    gone = [call for call in decided if call.id not in told]
    messages = [_result(call) for call in decided if call.id in told]
    if gone:
        asked = tuple(call.asked() for call in gone)
        messages.append(ModelMessage(role="assistant", content="", tool_calls=asked))
    return messages + [_result(call) for call in gone]


def _round_messages(rounds: list[Round]) -> list[ModelMessage]:
    messages = []
    for one in rounds:
        messages.append(
            ModelMessage(
                role="assistant",
                content=one.content,
                tool_calls=tuple(call.asked() for call in one.calls),
                reasoning=one.reasoning,
            )
        )
        messages += [_result(call) for call in one.calls if call.settled]
    return messages


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
