"""Messages as a model is given them, and older turns as blocks that stay or go as a whole. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chalicelib.providers import ModelMessage, Reasoning, ToolCall

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


def make_blocks(entries: Sequence[dict[str, Any]], count: Count) -> tuple[Block, ...]:
    """The blocks of a history, oldest first. No result of a tool is parted from its call."""
    groups: list[list[dict[str, Any]]] = []
    for entry in entries:
        if groups and groups[-1][0].get("turnId") == entry.get("turnId"):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return tuple(_block(one, count) for one in _joined(groups))


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


def _block(entries: list[dict[str, Any]], count: Count) -> Block:
    messages = tuple(model_message(entry) for entry in entries)
    return Block(
        turn_id=entries[0].get("turnId") or "",
        messages=messages,
        sources=tuple(entry["id"] for entry in entries if entry.get("id")),
        tokens=sum(count(one) for one in messages),
    )


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
