"""What the Messages API refuses, as far as it is known, said before any answer is played.

Stricter than the vendor where it repairs in silence: consecutive messages of one role.
"""

import base64
import re
from typing import Any, Final

TOOL_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
FIELDS: Final = frozenset(
    {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream"}
)
MAGIC: Final = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


class Refused(Exception):
    """The request is refused; the text is the error's message."""


def check(body: dict[str, Any], *, issued: set[str]) -> None:
    """Raises Refused unless the API takes this body; `issued` are the signatures it gave out."""
    if unknown := set(body) - FIELDS:
        raise Refused(f"{min(unknown)}: Extra inputs are not permitted")
    if type(body.get("max_tokens")) is not int or body["max_tokens"] < 1:
        raise Refused("max_tokens: Field required")
    if not isinstance(body.get("model"), str):
        raise Refused("model: Field required")
    if "system" in body and not body["system"].strip():
        raise Refused("system: text content blocks must be non-empty")
    _tools(body.get("tools", []))
    messages = body["messages"]
    if not messages:
        raise Refused("messages: at least one message is required")
    before: dict[str, Any] | None = None
    for n, message in enumerate(messages):
        if message["role"] != ("assistant" if n % 2 else "user"):
            raise Refused(f"messages.{n}: roles must alternate and begin with user")
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            raise Refused(f"messages.{n}: must have non-empty content")
        for m, block in enumerate(blocks):
            where = f"messages.{n}.content.{m}"
            _block(where, block, message["role"], issued, with_tools="tools" in body)
        _order(f"messages.{n}", blocks)
        _pairs(n, blocks, before)
        before = {"content": blocks}
    if messages[-1]["role"] != "user":
        raise Refused("the conversation must end with a user message")
    used = [
        block["id"]
        for message in messages
        for block in (message["content"] if isinstance(message["content"], list) else [])
        if block["type"] == "tool_use"
    ]
    if len(set(used)) < len(used):
        raise Refused("messages: `tool_use` ids must be unique")


def _tools(tools: list[dict[str, Any]]) -> None:
    names = [tool["name"] for tool in tools]
    for n, tool in enumerate(tools):
        schema = tool["input_schema"]
        if not TOOL_NAME.fullmatch(tool["name"]):
            raise Refused(f"tools.{n}.name: String should match pattern")
        if schema.get("type") != "object" or {"oneOf", "allOf", "anyOf"} & set(schema):
            raise Refused(f"tools.{n}.input_schema: must be the schema of an object")
    if len(set(names)) < len(names):
        raise Refused("tools: Tool names must be unique.")


def _block(
    where: str, block: dict[str, Any], role: str, issued: set[str], *, with_tools: bool
) -> None:
    kind = block["type"]
    sides = {
        "text": ("user", "assistant"),
        "image": ("user",),
        "tool_result": ("user",),
        "tool_use": ("assistant",),
        "thinking": ("assistant",),
        "redacted_thinking": ("assistant",),
    }
    if role not in sides.get(kind, ()):
        raise Refused(f"{where}: a block `{kind}` is not permitted for {role}")
    if kind == "text":
        if not block["text"]:
            raise Refused(f"{where}: text content blocks must be non-empty")
        if not block["text"].strip():
            raise Refused(f"{where}: text content blocks must contain non-whitespace text")
    elif kind == "image":
        _image(where, block["source"])
    elif kind in ("tool_use", "tool_result"):
        _tool_block(where, block, with_tools=with_tools)
    else:
        sealed = block.get("data") or f"{block.get('signature')}|{block.get('thinking')}"
        if sealed not in issued:
            raise Refused(f"{where}: Invalid `signature` in `{kind}` block")


def _tool_block(where: str, block: dict[str, Any], *, with_tools: bool) -> None:
    if not with_tools:
        raise Refused("requests which include tool blocks must define tools")
    field = "id" if block["type"] == "tool_use" else "tool_use_id"
    if not TOOL_ID.fullmatch(block[field]):
        raise Refused(f"{where}.{field}: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if block["type"] == "tool_use":
        if not TOOL_NAME.fullmatch(block["name"]):
            raise Refused(f"{where}.name: String should match pattern")
        if not isinstance(block["input"], dict):
            raise Refused(f"{where}.input: Input should be a valid dictionary")


def _image(where: str, source: dict[str, Any]) -> None:
    if source["type"] == "url":
        if not source["url"].startswith("https://"):
            raise Refused(f"{where}: only HTTPS URLs are supported")
        return
    begins = MAGIC.get(source["media_type"])
    if begins is None:
        raise Refused(f"{where}: unsupported media type")
    if not base64.b64decode(source["data"]).startswith(begins):
        raise Refused(f"{where}: the image appears to be of another media type")


def _order(where: str, blocks: list[dict[str, Any]]) -> None:
    kinds = [block["type"] for block in blocks]
    results = kinds.count("tool_result")
    if kinds[:results] != ["tool_result"] * results:
        raise Refused(f"{where}: `tool_result` blocks must come first")
    if kinds[-1].endswith("thinking"):
        raise Refused(f"{where}: the final block in an assistant message cannot be `thinking`")


def _pairs(n: int, blocks: list[dict[str, Any]], before: dict[str, Any] | None) -> None:
    called = [one["id"] for one in (before or {"content": []})["content"] if "input" in one]
    answered = [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
    if set(called) - set(answered):
        raise Refused(
            f"messages.{n - 1}: `tool_use` ids were found without `tool_result` blocks "
            "immediately after"
        )
    if set(answered) - set(called) or len(set(answered)) < len(answered):
        raise Refused(f"messages.{n}: unexpected `tool_use_id` found in `tool_result` blocks")
