"""The stand-in without a model: always the same, never mistaken for one."""

import asyncio
import json
from typing import Any

import pytest

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    ToolSpec,
)
from chalicelib.providers.offline import OfflineProvider

IMAGE = {"type": "image", "mediaType": "image/png", "data": "AAA="}
TOOL = ToolSpec(name="now", description="", parameters={"type": "object"})


def answer(*messages: ModelMessage, **fields: Any) -> list[ModelEvent]:
    async def call() -> list[ModelEvent]:
        made = OfflineProvider(ProviderOptions(name="offline", model="stand-in"))
        request = ModelRequest(system="Be kind.", messages=messages, **fields)
        return [event async for event in made.stream(request)]

    return asyncio.run(call())


def said(events: list[ModelEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def user(content: str, **fields: Any) -> ModelMessage:
    return ModelMessage(role="user", content=content, **fields)


def test_answer_repeats_what_was_said_and_counts() -> None:
    """Lost if red: a first try without a key that shows anything."""
    events = answer(user("hello"), ModelMessage(role="assistant", content="x"), user("du da"))
    assert said(events).endswith(" You said: du da Before that you said 1 more.")
    assert len(events) > 5, "a word at a time"
    assert events[-1] == Finished(reason="stop", provider="offline", model="stand-in")
    assert events == answer(
        user("hello"), ModelMessage(role="assistant", content="x"), user("du da")
    )


def test_answer_comes_whole_where_it_is_asked_for_whole() -> None:
    """Lost if red: agents with tools, tried without a key."""
    streamed = answer(user("hello"), tools=(TOOL,))
    whole = answer(user("hello"), tools=(TOOL,), stream=False)
    assert [type(one) for one in whole] == [TextDelta, Finished]
    assert said(whole) == said(streamed)
    assert isinstance(whole[-1], Finished)
    assert whole[-1].tool_calls == ()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}, {"a": []}),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"enum": ["x", "y"]}, "c": {}},
                "required": ["a", "b"],
            },
            {"a": "", "b": "x"},
        ),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({"type": ["null", "string"]}, None),
        ({"type": "number"}, 0),
        ({"const": 7}, 7),
        ({}, {}),
    ],
)
def test_schema_is_answered_with_the_emptiest_json(schema: dict[str, Any], value: object) -> None:
    """Lost if red: distillation without a model fails, where it has only nothing to say."""
    for stream in (True, False):
        assert json.loads(said(answer(user("hello"), schema=schema, stream=stream))) == value


def test_new_image_is_refused_and_an_old_one_is_not() -> None:
    """Lost if red: silence about a picture, or a chat that one picture ends."""
    with pytest.raises(ProviderUnsupported, match=r"^offline:stand-in cannot see images\.$"):
        answer(user("what is it?", attachments=(IMAGE,)))
    old = (user("look", attachments=(IMAGE,)), ModelMessage(role="assistant", content="ok"))
    assert "You said: and?" in said(answer(*old, user("and?")))
