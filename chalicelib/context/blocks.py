"""Messages as a model is given them, and older turns as blocks that stay or go as a whole. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from chalicelib.providers import ModelMessage, Reasoning, ToolCall
from chalicelib.tools.excerpt import excerpt

_RESULT_AT_LEAST: Final = (1_000, 200)
"""Characters that a result keeps where there is little room, and where there is next to none."""

Count = Callable[[ModelMessage], int]
"""Tokens of a message, as the model in use is thought to count them."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Turns that stand or fall together: one, or those that a call and its late result span.

    `turn_id` is the first one's; `sources` are the ids of the messages.
    """

    turn_id: str
    messages: tuple[ModelMessage, ...]
    sources: tuple[str, ...]
    tokens: int


def group_entries(entries: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """A history in the parts that make a block each, oldest first.

    No result of a tool is parted from its call.
    """
    groups: list[list[dict[str, Any]]] = []
    for entry in entries:
        if groups and groups[-1][0].get("turnId") == entry.get("turnId"):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return _joined(groups)


def _joined(groups: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """The groups, with those made one that lie between a call and a result that came later."""
    joined: list[list[dict[str, Any]]] = []
    home: dict[str, int] = {}
    for group in groups:
        called = {call["id"] for entry in group for call in entry.get("toolCalls") or ()}
        answered = {entry["toolCallId"] for entry in group if entry["role"] == "tool"} - called
        first = min((home[one] for one in answered if one in home), default=len(joined))
        merged = [entry for some in joined[first:] for entry in some] + group
        del joined[first:]
        joined.append(merged)
        home = {call: min(place, first) for call, place in home.items()}
        home.update(dict.fromkeys(called, first))
    return joined


def make_block(entries: list[dict[str, Any]], count: Count) -> Block:
    """The block of such a part."""
    messages = tuple(model_message(entry) for entry in entries)
    return Block(
        turn_id=entries[0].get("turnId") or "",
        messages=messages,
        sources=tuple(entry["id"] for entry in entries if entry.get("id")),
        tokens=sum(count(one) for one in messages),
    )


def shorten_block(block: Block, room: int, count: Count, *, texts: bool) -> Block:
    """The block in `room` tokens if its results can be cut to that (and `texts`), else nearer."""
    messages = shorten_results(block.messages, block.tokens - room, count)
    tokens = sum(map(count, messages))
    if texts and tokens > room:
        messages = shorten_results(messages, tokens - room, count, roles=("user", "assistant"))
        tokens = sum(map(count, messages))
    return replace(block, messages=tuple(messages), tokens=tokens)


def shorten_results(
    messages: Sequence[ModelMessage],
    over: int,
    count: Count,
    *,
    roles: Sequence[str] = ("tool",),
) -> list[ModelMessage]:
    """The messages with their longest results cut until so much is saved, or none is long.

    Of other `roles` it is what they say.
    """
    made, counted = list(messages), [0] * len(messages)

    def length(place: int) -> int:
        return len(made[place].content) if made[place].role in roles else 0

    for least in _RESULT_AT_LEAST:
        while over > 0:
            place = max(range(len(made)), key=length, default=-1)
            if place < 0 or length(place) <= least:
                break
            longest = made[place]
            limit = max(least, len(longest.content) // 2)
            made[place] = replace(longest, content=excerpt(longest.content, limit=limit))
            before = counted[place] or count(longest)
            counted[place] = count(made[place])
            over -= before - counted[place]
    return made


def model_message(entry: dict[str, Any]) -> ModelMessage:
    """An entry of `sessions.messages`, or a message of a turn's own, as a model is given it."""
    reasoning = entry.get("reasoning")
    return ModelMessage(
        role=entry["role"],
        content=entry["content"],
        attachments=tuple(entry.get("attachments") or ()),
        tool_calls=tuple(
            ToolCall(
                id=call["id"],
                name=call["name"],
                arguments=json.dumps(call["arguments"], ensure_ascii=False),
            )
            for call in entry.get("toolCalls") or ()
        ),
        reasoning=None
        if reasoning is None
        else Reasoning(
            provider=reasoning["provider"],
            model=reasoning["model"],
            blocks=tuple(reasoning["blocks"]),
        ),
        tool_call_id=entry.get("toolCallId"),
        is_error=entry.get("isError", False),
    )
