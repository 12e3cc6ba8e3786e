"""Requests over the Bedrock wire: what we ask as arguments of Converse, and what it accepts."""

import base64
import json
from dataclasses import replace
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore.model import OperationModel
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.base import (
    ModelMessage,
    ModelRequest,
    Reasoning,
    Role,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.bedrock import to_wire
from chalicelib.providers.history import UNSEEN_IMAGE
from tests.fakes.bedrock_rules import problem_of

CLAUDE = "us.anthropic.claude-sonnet-5-5"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(16)).decode()
BMP = base64.b64encode(b"BM" + bytes(16)).decode()
LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
SIGNED = {"reasoningText": {"text": "hm, é", "signature": "c2ln"}}
REDACTED = {"redactedContent": base64.b64encode(b"\x00\xff").decode()}


@cache
def converse() -> OperationModel:
    return (
        botocore.session.Session().get_service_model("bedrock-runtime").operation_model("Converse")
    )


def sent(request: ModelRequest, *, model: str = CLAUDE) -> dict[str, Any]:
    """The JSON of the request; fails where botocore or the strict rules refuse it."""
    arguments = to_wire(request, provider="bedrock", model=model)
    asked = converse()
    report = ParamValidator().validate(arguments, asked.input_shape)
    assert not report.has_errors(), report.generate_report()
    serialized = create_serializer("rest-json").serialize_to_request(arguments, asked)
    body = json.loads(serialized["body"])
    assert isinstance(body, dict)
    issued = {"c2ln", REDACTED["redactedContent"]}
    assert problem_of(body, signatures=issued) is None
    return body


def message(role: Role, content: str = "", **fields: Any) -> ModelMessage:
    return ModelMessage(role=role, content=content, **fields)


def asking(*messages: ModelMessage, **fields: Any) -> ModelRequest:
    return ModelRequest(**({"system": "Be kind.", "messages": messages} | fields))


def image(data: str, named: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "mediaType": named, "data": data}


BY_URL = {"type": "image", "mediaType": "image/png", "url": "https://pictures.test/a.png"}


def called(name: str = "look", *, call_id: str = "call_1", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def test_request_has_what_the_service_takes() -> None:
    """Lost if red: every conversation on Bedrock."""
    request = asking(
        message("user", "Hi."), message("assistant", "Hello."), message("user", "Bye."),
        max_tokens=99,
    )  # fmt: skip
    assert sent(request) == {
        "system": [{"text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"text": "Hi."}]},
            {"role": "assistant", "content": [{"text": "Hello."}]},
            {"role": "user", "content": [{"text": "Bye."}]},
        ],
        "inferenceConfig": {"maxTokens": 99},
    }


@pytest.mark.parametrize("system", ["", "  \n"])
def test_blank_system_prompt_is_left_out(system: str) -> None:
    """Lost if red: every turn of an agent without a prompt."""
    body = sent(asking(message("user", "Hi."), system=system))
    assert "system" not in body
    assert "inferenceConfig" not in body
    assert "toolConfig" not in body


@pytest.mark.parametrize("system", ["Be kind.", ""])
def test_schema_is_an_instruction_behind_the_system_prompt(system: str) -> None:
    """Lost if red: distillates and whatever else needs JSON."""
    schema = {"type": "object", "properties": {"größe": {"type": "number"}}}
    (part,) = sent(asking(message("user", "Hi."), schema=schema, system=system))["system"]
    before, found, told = part["text"].partition("{")
    assert before.startswith(system)
    assert "JSON" in before
    assert json.loads(found + told) == schema


def test_tools_calls_and_results_are_the_service_s() -> None:
    """Lost if red: tools on Bedrock."""
    request = asking(
        message("user", "Look twice."),
        message(
            "assistant",
            "I look.",
            tool_calls=(called(arguments='{"at": 1}'), called(call_id="call_2")),
        ),
        message("tool", "a wall", tool_call_id="call_1"),
        message("tool", "it is dark", tool_call_id="call_2", is_error=True),
        tools=(replace(LOOK, description=" "), ToolSpec(name="b", description="B.", parameters={})),
    )
    body = sent(request)
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"text": "I look."},
                {"toolUse": {"toolUseId": "call_1", "name": "look", "input": {"at": 1}}},
                {"toolUse": {"toolUseId": "call_2", "name": "look", "input": {}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "call_1", "content": [{"text": "a wall"}]}},
                {
                    "toolResult": {
                        "toolUseId": "call_2",
                        "content": [{"text": "it is dark"}],
                        "status": "error",
                    }
                },
            ],
        },
    ]
    described = {"name": "b", "description": "B.", "inputSchema": {"json": {"type": "object"}}}
    plain = {"name": "look", "inputSchema": {"json": LOOK.parameters}}
    assert body["toolConfig"] == {"tools": [{"toolSpec": plain}, {"toolSpec": described}]}


def test_failed_result_is_told_in_words_where_the_model_has_no_field_for_it() -> None:
    """Lost if red: Llama and Mistral after a tool that failed."""
    request = asking(
        message("user", "Look."),
        message("assistant", tool_calls=(called(),)),
        message("tool", "it is dark", tool_call_id="call_1", is_error=True),
        tools=(LOOK,),
    )
    (block,) = sent(request, model="us.meta.llama3-3-70b-instruct-v1:0")["messages"][-1]["content"]
    text = "The tool failed: it is dark"
    assert block == {"toolResult": {"toolUseId": "call_1", "content": [{"text": text}]}}


def test_calls_are_words_where_no_tool_is_offered() -> None:
    """PRV-8. Lost if red: the last round, summaries and failover of sessions with tools."""
    body = sent(
        asking(
            message("user", "Look."),
            message("assistant", "I look.", tool_calls=(called(),)),
            message("tool", "a wall", tool_call_id="call_1"),
        )
    )
    assert all(list(block) == ["text"] for one in body["messages"] for block in one["content"])
    assert "a wall" in json.dumps(body["messages"][-1])


def test_images_go_along_by_what_their_bytes_say() -> None:
    """Lost if red: pictures, or a refusal of each whose type was guessed wrong."""
    request = asking(message("user", "See.", attachments=(image(PNG), image(JPEG))))
    (only,) = sent(request)["messages"]
    assert only["content"] == [
        {"text": "See."},
        {"image": {"format": "png", "source": {"bytes": PNG}}},
        {"image": {"format": "jpeg", "source": {"bytes": JPEG}}},
    ]


@pytest.mark.parametrize(
    ("attachment", "why"),
    [
        pytest.param(BY_URL, "URL", id="by-url"),
        pytest.param(image(BMP, "image/bmp"), "image/bmp", id="a-type-unknown-to-the-service"),
        pytest.param(image(PNG[:-3]), "incomplete", id="broken-base64"),
    ],
)
def test_image_that_cannot_go_along_is_said_so(attachment: dict[str, Any], why: str) -> None:
    """Lost if red: a picture that was dropped in silence, and an answer about nothing."""
    new = message("user", "See.", attachments=(image(PNG), attachment))
    with pytest.raises(ProviderUnsupported, match=f"bedrock:{CLAUDE} cannot see .*{why}"):
        to_wire(asking(new), provider="bedrock", model=CLAUDE)
    old = asking(new, message("assistant", "Nice."), message("user", "And?"))
    (first, _, _) = sent(old)["messages"]
    told = {"text": f"See.\n{UNSEEN_IMAGE}"}
    assert first["content"] == [told, {"image": {"format": "png", "source": {"bytes": PNG}}}]
    alone = replace(new, content=" ", attachments=(attachment,))
    (first, _, _) = sent(asking(alone, *old.messages[1:]))["messages"]
    assert first["content"] == [{"text": UNSEEN_IMAGE}]


@pytest.mark.parametrize("block", [SIGNED, REDACTED])
def test_reasoning_goes_back_to_its_issuer_only(block: dict[str, Any]) -> None:
    """PRV-7. Lost if red: every turn after a failover between models that think."""

    def history(provider: str, model: str) -> ModelRequest:
        reasoning = Reasoning(provider=provider, model=model, blocks=(block,))
        return asking(
            message("user", "Look."),
            message("assistant", "I look.", tool_calls=(called(),), reasoning=reasoning),
            message("tool", "a wall", tool_call_id="call_1"),
            tools=(LOOK,),
        )

    own = sent(history("bedrock", CLAUDE))["messages"][1]["content"]
    assert own[0] == {"reasoningContent": block}
    for other in (history("bedrock", "other"), history("anthropic", CLAUDE)):
        assert sent(other)["messages"][1]["content"] == own[1:]


@pytest.mark.parametrize("with_tools", [True, False])
def test_history_is_accepted_wherever_it_is_cut(with_tools: bool) -> None:
    """PRV-11. Lost if red: sessions that break once they are as long as the window."""
    turn = [
        message("user", "Look."),
        message("assistant", "", tool_calls=(called(),)),
        message("tool", "a wall", tool_call_id="call_1"),
        message("assistant", "A wall."),
    ]
    whole = [message("assistant", "Welcome."), *(turn * 33 if with_tools else turn[::3] * 65)]
    for length in range(1, len(whole) + 1):
        newest = message("user", "And now?")
        window = [*whole[:length], newest][-50:]
        for tools in ((LOOK,), ()):
            last = sent(asking(*window, tools=tools))["messages"][-1]
            assert last["content"][-1] == {"text": "And now?"}


TEXTS = st.sampled_from(["", " ", "Hi.", "\N{GRINNING FACE}\n"])
CALLS = st.lists(
    st.builds(
        called,
        st.sampled_from(["look", "no.such tool", ""]),
        call_id=st.sampled_from(["call_1", "call_2", "call_3"]),
        arguments=st.sampled_from(["", "{}", '{"a": [1.5, null]}', "[1]", "{broken"]),
    ),
    max_size=2,
    unique_by=lambda one: one.id,
).map(tuple)
MESSAGES = st.one_of(
    st.builds(
        ModelMessage,
        role=st.sampled_from(["user", "system"]),
        content=TEXTS,
        attachments=st.sampled_from([(), (image(PNG),)]),
    ),
    st.builds(
        ModelMessage,
        role=st.just("assistant"),
        content=TEXTS,
        tool_calls=CALLS,
        reasoning=st.sampled_from(
            [None, Reasoning(provider="bedrock", model=CLAUDE, blocks=(SIGNED,))]
        ),
    ),
    st.builds(
        ModelMessage,
        role=st.just("tool"),
        content=TEXTS,
        tool_call_id=st.sampled_from(["call_1", "call_2", "call_4"]),
        is_error=st.booleans(),
    ),
)


@given(messages=st.lists(MESSAGES, max_size=8), tools=st.sampled_from([(), (LOOK,)]))
@settings(max_examples=300, deadline=None)
def test_whatever_happened_the_request_is_accepted(
    messages: list[ModelMessage], tools: tuple[ToolSpec, ...]
) -> None:
    """PRV-10. Lost if red: sessions that are refused for ever after one turn went wrong."""
    sent(asking(*messages, tools=tools))


# ── the fake's strictness ──────────────────────────────────────────────────────────────────────

HI = {"role": "user", "content": [{"text": "Hi."}]}
HELLO = {"role": "assistant", "content": [{"text": "Hello."}]}
USE = {"toolUse": {"toolUseId": "a", "name": "look", "input": {}}}
BAD_USE = {"toolUse": {"toolUseId": "?", "name": "look", "input": {}}}
RESULT = {"toolResult": {"toolUseId": "a", "content": [{"text": "b"}]}}
CONFIG = {"tools": [{"toolSpec": {"name": "look", "inputSchema": {"json": {"type": "object"}}}}]}


@pytest.mark.parametrize(
    ("messages", "more", "why"),
    [
        pytest.param([], {}, "at least one message", id="empty"),
        pytest.param([HELLO, HI], {}, "start with a user", id="assistant-first"),
        pytest.param([HI, HI], {}, "alternate", id="two-in-a-row"),
        pytest.param([HI, HELLO], {}, "prefill", id="assistant-last"),
        pytest.param([{"role": "user", "content": []}], {}, "is empty", id="no-content"),
        pytest.param([{"role": "user", "content": [{"text": " "}]}], {}, "blank", id="blank"),
        pytest.param(
            [HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}],
            {},
            "toolConfig field must be defined",
            id="no-tool-config",
        ),
        pytest.param(
            [HI, {"role": "assistant", "content": [USE]}, HI],
            {"toolConfig": CONFIG},
            "Expected toolResult",
            id="no-result",
        ),
        pytest.param(
            [HI, HELLO, {"role": "user", "content": [RESULT]}],
            {"toolConfig": CONFIG},
            "exceeds the number of toolUse",
            id="no-call",
        ),
        pytest.param(
            [HI, {"role": "assistant", "content": [BAD_USE]}, HI],
            {"toolConfig": CONFIG},
            "pattern",
            id="bad-id",
        ),
        pytest.param([HI], {"toolConfig": {"tools": []}}, "at least one tool", id="no-tool"),
        pytest.param([HI], {"system": [{"text": ""}]}, "blank", id="blank-system"),
        pytest.param(
            [HI, {"role": "assistant", "content": [{"reasoningContent": SIGNED}]}, HI],
            {},
            "Invalid `signature`",
            id="another-s-reasoning",
        ),
    ],
)  # fmt: skip
def test_fake_refuses_what_the_service_refuses(
    messages: list[Any], more: dict[str, Any], why: str
) -> None:
    """Lost if red: what the tests of the requests prove."""
    told = problem_of({"messages": messages, **more}, signatures=set())
    assert told is not None
    assert why in told
