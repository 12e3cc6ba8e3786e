"""What Bedrock refuses of a Converse request, as its documentation and its users tell it."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FORMATS = {"png", "jpeg", "gif", "webp"}
_BLOCKS = {
    "user": {"text", "image", "toolResult", "cachePoint"},
    "assistant": {"text", "toolUse", "reasoningContent", "cachePoint"},
}


def problem_of(body: Mapping[str, Any], *, signatures: set[str]) -> str | None:
    """The message of the ValidationException that answers this body; None if it is accepted.

    `signatures` are those of the reasoning that the model asked for has issued.
    """
    return next(_problems(body, signatures), None)


def _problems(body: Mapping[str, Any], signatures: set[str]) -> Iterator[str]:
    messages = body.get("messages") or []
    if not messages:
        yield "A conversation must have at least one message. Try again with a message."
        return
    yield from _roles([one.get("role") for one in messages])
    tools = body.get("toolConfig")
    for m, message in enumerate(messages):
        content = message.get("content") or []
        if not content:
            yield f"The content field in the Message object at messages.{m} is empty."
        for c, block in enumerate(content):
            yield from _block(block, message["role"], f"messages.{m}.content.{c}")
            if tools is None and ("toolUse" in block or "toolResult" in block):
                yield (
                    "The toolConfig field must be defined when using toolUse and toolResult "
                    "content blocks."
                )
        yield from _reasoning(content, signatures)
    yield from _pairs([one.get("content") or [] for one in messages])
    yield from _settings(body)


def _roles(roles: Sequence[str]) -> Iterator[str]:
    if roles[0] != "user":
        yield "A conversation must start with a user message. Try again with a user message."
    if any(one == following for one, following in pairwise(roles)):
        yield "A conversation must alternate between user and assistant roles."
    if roles[-1] != "user":
        yield "The model does not support assistant message prefill."


def _block(block: Mapping[str, Any], role: str, where: str) -> Iterator[str]:
    if len(block) != 1 or set(block) - _BLOCKS.get(role, set()):
        yield f"The content block at {where} may not stand in a message of the {role}."
        return
    ((kind, value),) = block.items()
    if kind == "text" and not value.strip():
        yield f"The text field in the ContentBlock object at {where} is blank."
    if kind == "image":
        if value["format"] not in _FORMATS:
            yield f"The format of the image at {where} is unknown."
        if not base64.b64decode(value["source"]["bytes"], validate=True):
            yield f"The image at {where} is empty."
    if kind in {"toolUse", "toolResult"} and not _ID.fullmatch(value["toolUseId"]):
        yield f"Value at '{where}.toolUseId' failed to satisfy constraint: pattern."
    if kind == "toolUse":
        if not _NAME.fullmatch(value["name"]):
            yield f"Value at '{where}.name' failed to satisfy constraint: pattern."
        if not isinstance(value["input"], dict):
            yield f"The format of the value at {where}.input is invalid. Provide a json object."
    if kind == "toolResult":
        if not value["content"]:
            yield f"The content field at {where} is empty."
        for part in value["content"]:
            if not part.get("text", "").strip():
                yield f"The text field in the ContentBlock object at {where} is blank."


def _reasoning(content: Sequence[Mapping[str, Any]], signatures: set[str]) -> Iterator[str]:
    kinds = [next(iter(block)) for block in content if len(block) == 1]
    if kinds != sorted(kinds, key=lambda kind: kind != "reasoningContent"):
        yield "Reasoning must come first in a message."
    for block in content:
        reasoning = block.get("reasoningContent")
        if reasoning is None:
            continue
        signature = reasoning.get("redactedContent") or reasoning.get("reasoningText", {}).get(
            "signature"
        )
        if signature not in signatures:
            yield "Invalid `signature` in `thinking` block"


def _pairs(contents: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    asked: list[str] = []
    for m, content in enumerate([*contents, []]):
        answered = [one["toolResult"]["toolUseId"] for one in content if "toolResult" in one]
        if missing := [one for one in asked if one not in answered]:
            yield (
                f"Expected toolResult blocks at messages.{m}.content for the following Ids: "
                + ", ".join(missing)
            )
        if len(answered) > len(asked) or len(set(answered)) < len(answered):
            yield (
                f"The number of toolResult blocks at messages.{m}.content exceeds the number of "
                "toolUse blocks of previous turn."
            )
        asked = [one["toolUse"]["toolUseId"] for one in content if "toolUse" in one]
        if len(set(asked)) < len(asked):
            yield f"The toolUse blocks at messages.{m}.content contain duplicate Ids."


def _settings(body: Mapping[str, Any]) -> Iterator[str]:
    for part in body.get("system") or ():
        if not part.get("text", "").strip():
            yield "The text field in the SystemContentBlock object is blank."
    if body.get("inferenceConfig", {}).get("maxTokens", 1) < 1:
        yield "maxTokens must be at least 1."
    if "toolConfig" not in body:
        return
    if not body["toolConfig"].get("tools"):
        yield "The toolConfig field must hold at least one tool."
    for tool in body["toolConfig"].get("tools") or ():
        spec = tool["toolSpec"]
        if not _NAME.fullmatch(spec["name"]):
            yield "Value at 'toolConfig.tools.toolSpec.name' failed to satisfy constraint: pattern."
        if not spec.get("description", "x").strip():
            yield "The description of a tool must not be blank."
        if spec["inputSchema"]["json"].get("type") != "object":
            yield "The value at toolConfig.tools.0.toolSpec.inputSchema.json.type must be object."
