"""The fake of the Messages API refuses what the vendor refuses; other tests rest on that."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.providers.anthropic import to_wire
from chalicelib.providers.base import ModelMessage, ModelRequest
from tests.fakes.anthropic_rules import Refused, check
from tests.unit.test_history import TOOL, histories

LOOK = {"name": "look", "input_schema": {"type": "object"}}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def text(said: str = "a") -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}} | fields


def result(call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "b"}


def thinking(signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def image(**source: str) -> dict[str, Any]:
    return {"type": "image", "source": source}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": [*messages], "tools": [LOOK]} | fields


LOOP = (user(text()), model(thinking("known"), text(), call(), call("c2")))


def test_good_request_is_taken() -> None:
    """Lost if red: every test of the adapter."""
    inline = image(type="base64", media_type="image/png", data=PNG)
    last = user(result("c2"), result(), text(), inline)
    check(body(*LOOP, last, system="x", stream=True), issued={"known|hm"})
    check(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
        issued=set(),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(body(user(text()), max_tokens=None), id="no-max-tokens"),
        pytest.param(body(user(text()), temperature=1), id="unknown-field"),
        pytest.param(body(user(text()), model=None), id="no-model"),
        pytest.param(body(user(text()), system=" "), id="blank-system"),
        pytest.param(body(), id="no-messages"),
        pytest.param(body(model(text()), user(text())), id="assistant-first"),
        pytest.param(body(user(text()), user(text())), id="user-twice"),
        pytest.param(body(user(text()), model(text())), id="assistant-last"),
        pytest.param(body({"role": "system", "content": "a"}), id="system-amid"),
        pytest.param(body(user()), id="no-blocks"),
        pytest.param(body(user(text(""))), id="empty-text"),
        pytest.param(body(user(text(" \n"))), id="blank-text"),
        pytest.param(body(*LOOP, user(text())), id="no-result"),
        pytest.param(body(*LOOP, user(result())), id="one-result-of-two"),
        pytest.param(body(*LOOP, user(result(), result(), result("c2"))), id="result-twice"),
        pytest.param(body(*LOOP, user(text(), result(), result("c2"))), id="text-before-result"),
        pytest.param(body(user(result())), id="result-first-of-all"),
        pytest.param(body(user(text()), model(text()), user(result())), id="result-of-no-call"),
        pytest.param(
            body(*LOOP, user(result(), result("c2")), model(call()), user(result())),
            id="same-id-later",
        ),
        pytest.param(body(user(text()), model(call("a.b")), user(result("a.b"))), id="odd-id"),
        pytest.param(body(user(text()), model(call(name="a b")), user(result())), id="odd-name"),
        pytest.param(body(user(text()), model(call(input="{}")), user(result())), id="input-text"),
        pytest.param(body(user(call())), id="users-call"),
        pytest.param(
            body(user(text()), model(thinking("other"), text()), user(text())), id="signature"
        ),
        pytest.param(
            body(user(text()), model(text(), thinking("known")), user(text())), id="ends-thinking"
        ),
        pytest.param(
            body(user(image(type="base64", media_type="image/jpeg", data=PNG))), id="other-image"
        ),
        pytest.param(
            body(user(image(type="base64", media_type="image/bmp", data="Qk0="))), id="bitmap"
        ),
        pytest.param(body(user(image(type="url", url="http://a/b.png"))), id="plain-url"),
        pytest.param(body(user(text()), tools=[LOOK, LOOK]), id="tool-twice"),
        pytest.param(body(user(text()), tools=[LOOK | {"input_schema": {}}]), id="no-object"),
        pytest.param(body(user(text()), tools=[LOOK | {"name": "a b"}]), id="odd-tool"),
    ],
)
def test_wrong_request_is_refused(wrong: dict[str, Any]) -> None:
    """Lost if red: what a test shows that asks this server."""
    with pytest.raises(Refused):
        check(wrong, issued={"known|hm"})


def test_tool_blocks_without_tools_are_refused() -> None:
    """Lost if red: what a test of the closing round shows (PRV-8)."""
    request = body(*LOOP, user(result(), result("c2")))
    check(request, issued={"known|hm"})
    del request["tools"]
    with pytest.raises(Refused, match="must define tools"):
        check(request, issued={"known|hm"})


@given(messages=histories(), tools=st.booleans())
def test_any_history_at_all_is_taken(messages: list[ModelMessage], tools: bool) -> None:
    """Lost if red: the session in which that came about; the vendor would not answer it again."""
    request = ModelRequest(system="", messages=tuple(messages), tools=(TOOL,) if tools else ())
    wire = to_wire(request, provider="anthropic@b", model="m")
    check(wire, issued=set())
