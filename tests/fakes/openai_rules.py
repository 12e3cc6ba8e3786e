"""What real servers on the OpenAI wire refuse, each of them something else; the fake refuses all.

OpenAI wants every tool call answered and every result asked for. The chat templates of local
servers want the system prompt first, the user next and then strict turns. Some take no empty text.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
# what strict mode allows a schema to say of what is not an object
STRICT = {"additionalProperties", "anyOf", "description", "enum", "items", "properties", "required"}
STRICT |= {"title", "type"}


class Refused(Exception):
    """The text is the message of the 400."""


def refusal(body: dict[str, Any]) -> str | None:
    """Why a server would not take this request; None if every one would."""
    try:
        _check_request(body)
        _check_turns(body["messages"])
    except Refused as exc:
        return str(exc)
    except (LookupError, TypeError, AttributeError) as exc:
        return f"not a chat completion request: {exc!r}"
    return None


def _demand(right: object, message: str) -> None:
    if not right:
        raise Refused(message)


def _check_request(body: dict[str, Any]) -> None:
    _demand(isinstance(body.get("model"), str) and body["model"], "'model' must be a name.")
    messages = body["messages"]
    _demand(isinstance(messages, list) and messages, "'messages' must not be empty.")
    if "stream_options" in body:
        _demand(body.get("stream"), "'stream_options' is for streams only.")
    _demand(
        not ("max_tokens" in body and "max_completion_tokens" in body),
        "'max_tokens' and 'max_completion_tokens' exclude each other.",
    )
    if "tools" in body:
        _check_tools(body["tools"])
    if "response_format" in body:
        _check_format(body["response_format"])


def _check_tools(tools: Any) -> None:
    _demand(isinstance(tools, list) and tools, "'tools' must not be empty.")
    names = []
    for tool in tools:
        function = tool.get("function") or {}
        _demand(tool.get("type") == "function", "a tool must be of the type 'function'.")
        _demand(NAME.fullmatch(str(function.get("name"))), "a tool's name is not allowed.")
        parameters = function.get("parameters")
        _demand(
            isinstance(parameters, dict) and parameters.get("type") == "object",
            "a tool's parameters must be the schema of an object.",
        )
        names.append(function["name"])
    _demand(len(set(names)) == len(names), "tools must not share a name.")


def _check_format(wanted: Any) -> None:
    if wanted.get("type") != "json_schema":
        _demand(wanted.get("type") in ("text", "json_object"), "unknown response_format.")
        return
    shape = wanted.get("json_schema") or {}
    _demand(NAME.fullmatch(str(shape.get("name"))), "'json_schema.name' is not allowed.")
    _demand(isinstance(shape.get("schema"), dict), "'json_schema.schema' must be a schema.")
    if shape.get("strict"):
        _demand(shape["schema"].get("type") == "object", "a strict schema must be an object's.")
        for part in _parts(shape["schema"]):
            _demand(part.keys() <= STRICT, "a strict schema must not say that.")
            if part.get("type") == "object":
                names = set(part.get("properties", {}))
                closed = part.get("additionalProperties") is False
                _demand(closed, "a strict schema must set additionalProperties to false.")
                _demand(set(part.get("required", [])) == names, "a strict schema requires all.")


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    for one in inner + ([schema["items"]] if "items" in schema else []):
        yield from _parts(one)


def _check_turns(messages: list[Any]) -> None:
    """Roles in their order, calls with their results, nothing empty."""
    before, open_calls = "", list[str]()
    for place, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            _demand(call_id in open_calls, f"no call {call_id!r} stands before its result.")
            open_calls.remove(call_id)
            _demand(isinstance(message.get("content"), str), "a result must be a text.")
            before = "tool"
            continue
        _demand(not open_calls, f"the calls {open_calls} have no result.")
        if role == "system":
            _demand(place == 0, "the system prompt must be the first message.")
            _demand(_said(message), "the system prompt must not be empty.")
            continue
        _demand(role in ("user", "assistant"), f"unknown role {role!r}.")
        _demand(before or role == "user", "a conversation must begin with the user.")
        _demand(role != before, f"two messages of the role {role!r} in a row.")
        if role == "assistant":
            open_calls = _calls(message)
        _demand(_said(message) or open_calls, f"a message of the role {role!r} is empty.")
        before = role
    _demand(not open_calls, f"the calls {open_calls} have no result.")
    _demand(before in ("user", "tool"), "nothing is left to answer.")


def _said(message: dict[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return isinstance(content, str) and bool(content.strip())
    for part in content:
        _demand(part.get("type") in ("text", "image_url"), "unknown kind of part.")
        _demand(part.get("type") != "text" or part["text"].strip(), "a part is empty.")
        _demand(message["role"] == "user" or part["type"] == "text", "images are the user's.")
    return bool(content)


def _calls(message: dict[str, Any]) -> list[str]:
    if "tool_calls" not in message:
        return []
    calls = message["tool_calls"]
    _demand(isinstance(calls, list) and calls, "'tool_calls' must not be empty.")
    for call in calls:
        function = call.get("function") or {}
        _demand(call.get("type") == "function", "a call must be of the type 'function'.")
        _demand(NAME.fullmatch(str(function.get("name"))), "a call's name is not allowed.")
        _demand(CALL_ID.fullmatch(str(call.get("id"))), "a call's id must be 9 letters or digits.")
        try:
            arguments = json.loads(function.get("arguments"))
        except (ValueError, TypeError):
            arguments = None
        _demand(isinstance(arguments, dict), "a call's arguments must be the JSON of an object.")
    ids = [call["id"] for call in calls]
    _demand(len(set(ids)) == len(ids), "calls must not share an id.")
    return ids
