"""Requests on the OpenAI wire: what a conversation becomes, and that real servers would take it."""

import copy
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from chalicelib.providers.base import (
    ModelMessage,
    ModelRequest,
    Reasoning,
    Role,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.history import PENDING_RESULT
from chalicelib.providers.openai import takes_newer_limit, to_wire
from tests.fakes.openai_rules import refusal

CLOCK = ToolSpec(name="current_time", description="What time it is.", parameters={"type": "object"})
CALL = ToolCall(
    id="call_01jq8zzzzzzzzzzzzzzzzzzzzz", name="current_time", arguments='{"zone":"UTC"}'
)
BARE = ToolCall(id="call_01jq9zzzzzzzzzzzzzzzzzzzzz", name="now", arguments="")


def body_of(*messages: ModelMessage, system: str = "Be kind.", **fields: Any) -> dict[str, Any]:
    """The body as a server reads it, which it would take."""
    newer = fields.pop("newer_limit", False)
    request = ModelRequest(system=system, messages=messages, **fields)
    body: dict[str, Any] = orjson.loads(
        orjson.dumps(to_wire(request, provider="openai", model="m", newer_limit=newer))
    )
    assert refusal(body) is None
    return body


def say(role: Role, content: str, **fields: Any) -> ModelMessage:
    return ModelMessage(role=role, content=content, **fields)


def asked(*calls: ToolCall, text: str = "") -> ModelMessage:
    return say("assistant", text, tool_calls=calls)


def result(call: ToolCall, text: str, *, is_error: bool = False) -> ModelMessage:
    return say("tool", text, tool_call_id=call.id, is_error=is_error)


def test_request_streams_and_asks_for_usage() -> None:
    """Lost if red: what every turn cost."""
    assert body_of(say("user", "hi"), system="") == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_request_for_a_whole_answer_asks_for_no_stream() -> None:
    """Lost if red: answers of servers that refuse the options of a stream without one."""
    body = body_of(say("user", "hi"), stream=False)
    assert body["stream"] is False
    assert "stream_options" not in body


def test_messages_in_a_row_are_one_and_instructions_stand_in_their_place() -> None:
    """PRV-10. Lost if red: every turn of several messages, at servers that want strict turns."""
    body = body_of(
        say("user", "one"),
        say("assistant", "first"),
        say("user", "two"),
        say("user", "three"),
        say("system", "be brief"),
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two\n\nthree\n\nbe brief"},
    ]


def test_tools_are_offered_as_functions() -> None:
    """Lost if red: every tool."""
    assert body_of(say("user", "hi"), tools=(CLOCK,))["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "current_time",
                "description": "What time it is.",
                "parameters": {"type": "object"},
            },
        }
    ]


def test_tool_without_parameters_takes_an_object() -> None:
    """Lost if red: every turn of an agent with one such tool, at servers that want a type."""
    (tool,) = body_of(
        say("user", "hi"), tools=(ToolSpec(name="now", description="", parameters={}),)
    )["tools"]
    assert tool["function"]["parameters"] == {"type": "object"}


def test_system_prompt_of_nothing_is_none() -> None:
    """Lost if red: agents with a blank prompt, at servers that refuse an empty text."""
    assert body_of(say("user", "hi"), system=" ")["messages"][0]["role"] == "user"


def test_calls_and_their_results_stand_side_by_side() -> None:
    """TOL-2. Lost if red: the second round of the tool loop, and each turn after one."""
    _, question, assistant, first, second, user = body_of(
        say("user", "what time is it?"),
        asked(CALL, BARE, text="I will look."),
        result(BARE, "broken", is_error=True),
        result(CALL, "noon"),
        say("user", "and now?"),
        tools=(CLOCK,),
    )["messages"]
    assert question == {"role": "user", "content": "what time is it?"}
    one, two = assistant["tool_calls"]
    assert assistant["content"] == "I will look."
    assert one["function"] == {"name": "current_time", "arguments": '{"zone":"UTC"}'}
    assert two["function"] == {"name": "now", "arguments": "{}"}
    assert first == {"role": "tool", "tool_call_id": one["id"], "content": "noon"}
    assert second == {
        "role": "tool",
        "tool_call_id": two["id"],
        "content": "The call failed: broken",
    }
    assert user == {"role": "user", "content": "and now?"}


def test_calls_without_a_word_have_no_text() -> None:
    """Lost if red: the tool loop at servers that refuse an empty text."""
    _, _, assistant, _ = body_of(say("user", "hi"), asked(CALL), result(CALL, "noon"))["messages"]
    assert assistant["content"] is None


def test_call_that_waits_for_a_person_has_an_answer() -> None:
    """TOL-5. Lost if red: the chat of everyone who writes on before they decide."""
    *_, waiting, user = body_of(say("user", "delete it"), asked(CALL), say("user", "and?"))[
        "messages"
    ]
    assert (waiting["role"], waiting["content"]) == ("tool", PENDING_RESULT)
    assert user["content"] == "and?"


@pytest.mark.parametrize("arguments", ["", " ", "null", "{", "[1]", '"a"', "{}"])
def test_arguments_of_a_past_call_are_an_objects_json(arguments: str) -> None:
    """TOL-2. Lost if red: a session, to one call that its model got wrong."""
    call = ToolCall(id="c", name="now", arguments=arguments)
    _, _, assistant, _ = body_of(say("user", "hi"), asked(call), result(call, "no"))["messages"]
    sent = orjson.loads(assistant["tool_calls"][0]["function"]["arguments"])
    assert sent == ({"invalid_arguments": arguments} if arguments in ("{", "[1]", '"a"') else {})


def test_ids_of_calls_are_plain_and_stay_the_same() -> None:
    """Lost if red: tools with Mistral's models, whose servers take no other id."""
    history = (say("user", "hi"), asked(CALL, BARE), result(CALL, "a"), result(BARE, "b"))
    first, second = (body_of(*history, say("user", text))["messages"][2] for text in ("c", "d"))
    assert first == second, "the same history is the same bytes, which a cache can know"
    plain = ToolCall(id="a1B2c3D4e", name="now", arguments="{}")
    _, _, assistant, _ = body_of(say("user", "hi"), asked(plain), result(plain, "a"))["messages"]
    assert assistant["tool_calls"][0]["id"] == "a1B2c3D4e"


def test_thoughts_go_back_to_who_thought_them() -> None:
    """PRV-7. Lost if red: tool loops with models that want to be told what they thought."""
    blocks = ({"reasoning_content": "hm"},)
    for owner, sent in (("openai", "hm"), ("openai@other", None)):
        mine = Reasoning(provider=owner, model="m", blocks=blocks)
        made = say("assistant", "", tool_calls=(CALL,), reasoning=mine)
        _, _, assistant, _ = body_of(say("user", "hi"), made, result(CALL, "noon"))["messages"]
        assert assistant.get("reasoning_content") == sent


def test_images_are_parts_behind_the_text() -> None:
    """Lost if red: what people show."""
    inline = {"type": "image", "mediaType": "image/webp", "data": "AAA=", "url": None}
    linked = {"type": "image", "mediaType": "image/png", "url": "https://example.com/a.png?b=c"}
    body = body_of(
        say("user", "what is it?", attachments=(inline, linked)),
        say("assistant", "a cat"),
        say("user", "", attachments=(linked,)),
    )
    images = [
        {"type": "image_url", "image_url": {"url": url}}
        for url in ("data:image/webp;base64,AAA=", "https://example.com/a.png?b=c")
    ]
    text = {"type": "text", "text": "what is it?"}
    sent = [one["content"] for one in body["messages"] if one["role"] == "user"]
    assert sent == [[text, *images], [images[1]]]


def test_type_of_an_image_is_that_of_its_bytes() -> None:
    """Lost if red: pictures that a phone names wrong, to a server that looks."""
    png = {"type": "image", "mediaType": "image/jpeg", "data": "iVBORw0KGgoAAAA="}
    body = body_of(say("user", "", attachments=(png,)))
    (part,) = body["messages"][-1]["content"]
    assert part["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgoAAAA="


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "description": "A text."}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        pytest.param(closed(a=TEXT), True, id="closed"),
        pytest.param(closed(a={"type": "array", "items": closed(b=TEXT)}), True, id="within"),
        pytest.param(closed(a={"anyOf": [TEXT, {"type": "null"}]}), True, id="any-of"),
        pytest.param(closed(properties=TEXT, required=TEXT), True, id="names-like-keywords"),
        pytest.param({**closed(a=TEXT), "required": []}, False, id="optional"),
        pytest.param({"type": "object", "properties": {"a": TEXT}}, False, id="nothing-required"),
        pytest.param({**closed(a=TEXT), "additionalProperties": True}, False, id="open"),
        pytest.param(closed(a={"type": "object"}), False, id="any-object-within"),
        pytest.param(closed(a={"type": "array", "items": {"type": "object"}}), False, id="items"),
        pytest.param(closed(a={"anyOf": [{"type": "object"}]}), False, id="open-any-of"),
        pytest.param(closed(a={"type": "number", "maximum": 1}), False, id="another-keyword"),
        pytest.param(closed(a=True), False, id="no-object"),
        pytest.param({"type": "array", "items": TEXT}, False, id="root-is-a-list"),
    ],
)
def test_schema_is_strict_where_it_can_be(schema: dict[str, Any], strict: bool) -> None:
    """Lost if red: distillates, to OpenAI's refusal of schemas that strict mode does not know."""
    body = body_of(say("user", "hi"), stream=False, schema=schema)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": strict},
    }


def test_bound_of_the_reply_goes_by_the_name_that_the_server_knows() -> None:
    """Lost if red: short answers; a server refuses the name that it does not know."""
    assert body_of(say("user", "hi"), max_tokens=7)["max_tokens"] == 7
    newer = body_of(say("user", "hi"), max_tokens=7, newer_limit=True)
    assert newer["max_completion_tokens"] == 7


@pytest.mark.parametrize(
    ("base_url", "newer"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://mine.openai.azure.com/openai/v1/", True),
        ("https://api.groq.com/openai/v1", False),
        ("http://127.0.0.1:11434/v1", False),
        ("https://api.openai.com.example.com/v1", False),
        ("https://notopenai.azure.com/v1", False),
        ("nonsense", False),
    ],
)
def test_newer_name_of_the_bound_is_for_those_who_made_it(base_url: str, newer: bool) -> None:
    """Lost if red: short answers; a server refuses the name that it does not know."""
    assert takes_newer_limit(base_url) is newer


GOOD = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "a1B2c3D4e",
                    "type": "function",
                    "function": {"name": "f", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": "r"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}
Body = dict[str, Any]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda b: b.update(messages=[]), id="no-messages"),
        pytest.param(lambda b: b["messages"].pop(1), id="begins-with-the-assistant"),
        pytest.param(lambda b: b["messages"].pop(3), id="call-without-a-result"),
        pytest.param(lambda b: b["messages"].pop(2), id="result-without-a-call"),
        pytest.param(lambda b: b["messages"].insert(2, {"role": "user", "content": "x"}), id="row"),
        pytest.param(
            lambda b: b["messages"].insert(5, {"role": "assistant", "content": "x"}),
            id="two-answers",
        ),
        pytest.param(lambda b: b["messages"].pop(), id="nothing-to-answer"),
        pytest.param(
            lambda b: b["messages"].append({"role": "system", "content": "x"}), id="late-system"
        ),
        pytest.param(lambda b: b["messages"][1].update(content=" "), id="empty-user"),
        pytest.param(lambda b: b["messages"][4].update(content=""), id="empty-assistant"),
        pytest.param(lambda b: b["messages"][5].update(content=[]), id="no-parts"),
        pytest.param(lambda b: b["messages"][5]["content"][0].update(text=""), id="empty-part"),
        pytest.param(lambda b: b["messages"][3].update(tool_call_id="another1"), id="another-id"),
        pytest.param(lambda b: b["messages"].insert(4, b["messages"][3]), id="result-twice"),
        pytest.param(lambda b: call_of(b).update(id="call_1"), id="long-id"),
        pytest.param(lambda b: call_of(b)["function"].update(arguments=""), id="no-arguments"),
        pytest.param(lambda b: call_of(b)["function"].update(arguments="[1]"), id="list"),
        pytest.param(lambda b: call_of(b)["function"].update(arguments={}), id="object"),
        pytest.param(lambda b: call_of(b)["function"].update(name="a b"), id="name"),
        pytest.param(lambda b: b.update(tools=[]), id="no-tools"),
        pytest.param(lambda b: b.update(tools=b["tools"] * 2), id="one-name-twice"),
        pytest.param(lambda b: b.update(stream_options={}), id="options-without-a-stream"),
        pytest.param(lambda b: b.update(max_tokens=1, max_completion_tokens=1), id="two-bounds"),
        pytest.param(lambda b: b["messages"][0].pop("role"), id="no-role"),
        pytest.param(lambda b: b["messages"][5]["content"][0].pop("text"), id="no-text"),
    ],
)
def test_fake_refuses_what_some_server_refuses(spoil: Callable[[Body], object]) -> None:
    """Lost if red: all of the above, which a fake that takes anything would pass."""
    body: Body = copy.deepcopy(GOOD)
    assert refusal(body) is None
    spoil(body)
    assert refusal(body) is not None


def call_of(body: Body) -> dict[str, Any]:
    """The one call of the conversation."""
    call: dict[str, Any] = body["messages"][2]["tool_calls"][0]
    return call
