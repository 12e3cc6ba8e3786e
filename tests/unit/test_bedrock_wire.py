"""Answers over the Bedrock wire without HTTP: the service's events and errors as ours."""

import base64
import json
from typing import Any

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer

from chalicelib.errors import ProviderUnavailable
from chalicelib.providers.base import Finished, ModelEvent, Reasoning, TextDelta, ToolCall
from chalicelib.providers.bedrock_reader import ConverseReader
from tests.fakes.bedrock_frames import event, exception

SIGNED = {"reasoningText": {"text": "hm, é", "signature": "c2ln"}}
REDACTED = {"redactedContent": base64.b64encode(b"\x00\xff").decode()}


def text(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [filled(index, {"text": piece}) for piece in pieces]


def filled(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}


def call(index: int, *pieces: str, call_id: str = "tooluse_1", **fields: str) -> list[Any]:
    start = {"toolUseId": call_id, "name": "look", **fields}
    return [
        {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolUse": start}}},
        *(filled(index, {"toolUse": {"input": piece}}) for piece in pieces),
    ]


def thought(index: int, **delta: Any) -> dict[str, Any]:
    return filled(index, {"reasoningContent": delta})


def ended(reason: str = "end_turn", **usage: int) -> list[dict[str, Any]]:
    return [{"messageStop": {"stopReason": reason}}, {"metadata": {"usage": usage}}]


def read(*events: dict[str, Any]) -> list[ModelEvent]:
    reader = ConverseReader(provider="bedrock", model="m")
    told: list[ModelEvent] = []
    for one in events:
        told += reader.feed(one)
    return told + reader.finish()


def whole(*content: dict[str, Any], reason: str = "end_turn", **usage: int) -> list[ModelEvent]:
    reader = ConverseReader(provider="bedrock", model="m")
    answer = {"output": {"message": {"content": list(content)}}, "stopReason": reason}
    told = reader.take_whole(answer | {"usage": usage})
    return ([TextDelta(text=told)] if told else []) + reader.finish()


def said(events: list[ModelEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def end_of(events: list[ModelEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def finished(reason: str = "stop", **fields: Any) -> Finished:
    return Finished(reason=reason, provider="bedrock", model="m", **fields)


def wished(arguments: str = "{}", call_id: str = "tooluse_1") -> ToolCall:
    return ToolCall(id=call_id, name="look", arguments=arguments)


def test_text_comes_as_it_is_streamed() -> None:
    """Lost if red: streaming."""
    events = read(
        {"messageStart": {"role": "assistant"}},
        *text("café ", "", "🌍"),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        *ended(inputTokens=10, outputTokens=2, totalTokens=12),
    )
    assert events == [
        TextDelta(text="café "),
        TextDelta(text="🌍"),
        finished(tokens_in=10, tokens_out=2),
    ]


def test_answer_that_comes_whole_is_the_same() -> None:
    """Lost if red: agents with tools, whose rounds are not streamed."""
    content = (
        {"reasoningContent": SIGNED},
        {"reasoningContent": {"redactedContent": b"\x00\xff"}},
        {"text": "I "},
        {"text": "look."},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"at": "Zürich"}}},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "look", "input": {}}},
    )
    usage = {"inputTokens": 10, "outputTokens": 2}
    assert whole(*content, reason="tool_use", **usage) == [
        TextDelta(text="I look."),
        finished(
            "tool_calls",
            tokens_in=10,
            tokens_out=2,
            tool_calls=(wished('{"at":"Zürich"}'), wished(call_id="tooluse_2")),
            reasoning=Reasoning(provider="bedrock", model="m", blocks=(SIGNED, REDACTED)),
        ),
    ]
    assert whole() == [finished()]


def test_arguments_come_in_pieces_and_calls_beside_each_other() -> None:
    """Lost if red: parallel calls, glued into one or cut in two."""
    first = call(1, '{"city": "Zü', 'rich"}')
    second = call(2, "", '{"a"', ": 1}", call_id="tooluse_2")
    turns = [first[0], second[0], first[1], second[1], second[2], first[2], second[3]]
    events = read(*text("I look."), *turns, *ended("tool_use"))
    assert said(events) == "I look."
    assert end_of(events).reason == "tool_calls"
    assert end_of(events).tool_calls == (
        wished('{"city": "Zürich"}'),
        wished('{"a": 1}', "tooluse_2"),
    )


@pytest.mark.parametrize("pieces", [(), ("",), ("", " ")])
def test_call_without_arguments_has_none(pieces: tuple[str, ...]) -> None:
    """Lost if red: tools that take no argument."""
    assert end_of(read(*call(0, *pieces), *ended("tool_use"))).tool_calls == (wished("{}"),)


def test_call_that_was_cut_off_is_not_one_without_arguments() -> None:
    """Lost if red: a tool that runs although the model had not said with what."""
    cut = read(*call(0, '{"a": 1}'), *call(1, call_id="tooluse_2"), *ended("max_tokens"))
    assert end_of(cut).reason == "length"
    assert end_of(cut).tool_calls == (wished('{"a": 1}'),)
    half = read(*call(0, '{"a"'), *ended("max_tokens"))
    assert end_of(half).tool_calls == (wished('{"a"'),)


def test_tool_that_the_service_runs_is_not_ours_to_run() -> None:
    """Lost if red: an unknown tool in every answer that was searched for."""
    events = read(*call(0, "{}", type="server_tool_use"), *text("So.", index=1), *ended())
    assert events == [TextDelta(text="So."), finished()]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("something_new", "something_new"),
        ("<b>what?</b>", "unknown"),
        (None, "unknown"),
    ],
)
def test_reason_is_one_of_ours(told: str, reason: str) -> None:
    """Lost if red: knowing why an answer ended, a cut one above all."""
    assert end_of(read(*ended(told))).reason == reason
    assert end_of(whole(reason=told)).reason == reason


@pytest.mark.parametrize("told", ["malformed_model_output", "malformed_tool_use"])
def test_answer_that_the_service_calls_broken_is_none(told: str) -> None:
    """Lost if red: garbage stored as an answer, where another provider had a good one."""
    for answer in (lambda: read(*text("x{"), *ended(told)), lambda: whole(reason=told)):
        with pytest.raises(ProviderUnavailable, match=rf"^bedrock:m gave up .*\({told}\)\.$"):
            answer()


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        pytest.param({}, (None, None, None, None), id="none"),
        pytest.param({"inputTokens": 7, "outputTokens": 2}, (7, 2, None, None), id="no-cache"),
        pytest.param(
            {
                "inputTokens": 7,
                "outputTokens": 2,
                "cacheReadInputTokens": 100,
                "cacheWriteInputTokens": 50,
            },
            (157, 2, 100, 50),
            id="what-went-by-the-cache-is-counted-apart",
        ),
        pytest.param({"cacheReadInputTokens": 100}, (None, None, 100, None), id="half-of-it"),
        pytest.param({"inputTokens": 2**31, "outputTokens": -1}, (None,) * 4, id="no-counts"),
    ],
)
def test_tokens_in_counts_all_input(usage: dict[str, int], counts: tuple[int | None, ...]) -> None:
    """Lost if red: what a turn cost."""
    for end in (end_of(read(*ended(**usage))), end_of(whole(**usage))):
        assert counts == (
            end.tokens_in, end.tokens_out, end.tokens_cached, end.tokens_cache_written,
        )  # fmt: skip


def test_answer_without_its_counts_is_an_answer() -> None:
    """Lost if red: answers through gateways that drop the last event."""
    assert read(*text("Hi."), ended()[0]) == [TextDelta(text="Hi."), finished()]


def test_answer_without_its_end_is_none() -> None:
    """Lost if red: half an answer stored as a whole one."""
    with pytest.raises(ProviderUnavailable, match=r"^bedrock:m ended in the middle"):
        read(*text("Half an"))
    with pytest.raises(ProviderUnavailable, match=r"^bedrock:m ended in the middle"):
        read(*text("Hi."), ended()[1])


def test_reasoning_is_kept_for_its_issuer() -> None:
    """Lost if red: tool rounds of models that think, which want their reasoning back."""
    events = read(
        thought(0, text="hm, "), thought(0, text="é"), thought(0, signature="c2"),
        thought(0, signature="ln"), thought(1, redactedContent=b"\x00"),
        thought(1, redactedContent=b"\xff"), *text("So.", index=2), *ended(),
    )  # fmt: skip
    kept = Reasoning(provider="bedrock", model="m", blocks=(SIGNED, REDACTED))
    assert events == [TextDelta(text="So."), finished(reasoning=kept)]
    json.dumps(kept.blocks)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([thought(0, text="hm"), *text("So.", index=1)], id="unsigned"),
        pytest.param(
            [*text("So."), thought(1, text="hm"), thought(1, signature="c2ln")],
            id="behind-the-text",
        ),
        pytest.param(
            [thought(0, text="a\0"), thought(0, signature="c2ln"), *text("So.", index=1)],
            id="unstorable",
        ),
        pytest.param(
            [thought(0, signature="c2ln"), thought(1, text="unsigned"), *text("So.", index=2)],
            id="signed-in-part",
        ),
    ],
)
def test_reasoning_that_would_be_refused_is_not_kept(events: list[dict[str, Any]]) -> None:
    """Lost if red: DeepSeek and others, which refuse their own reasoning; sessions that stick."""
    assert read(*events, *ended()) == [TextDelta(text="So."), finished()]


def test_text_is_storable_whatever_was_sent() -> None:
    """Lost if red: a turn that cannot be committed."""
    events = read(*text("a\0", "\ud83d", "\ude00", "\ud83d"), *ended())
    assert said(events) == "a\ufffd\N{GRINNING FACE}\ufffd"
    assert said(whole({"text": "a\0"}, {"text": "\ud83d"})) == "a\ufffd\ufffd"
    cut = read(*call(0, '"\0', "\ud83d", '"', call_id="a\0"), *ended("tool_use"))
    assert end_of(cut).tool_calls == (wished('"\ufffd\ufffd"', "a\ufffd"),)
    made = {"toolUseId": "t", "name": "look", "input": {"a": "\ud83d", "b": 2**70}}
    (one,) = end_of(whole({"toolUse": made})).tool_calls
    assert json.loads(one.arguments)["b"] == 2**70


@pytest.mark.parametrize(
    "one",
    [
        {"somethingNew": {"a": 1}},
        {"SDK_UNKNOWN_MEMBER": {"name": "somethingNew"}},
        filled(0, {"citation": {"title": "A"}}),
        filled(0, {"SDK_UNKNOWN_MEMBER": {"name": "somethingNew"}}),
        {"contentBlockStart": {"contentBlockIndex": 9, "start": {"image": {"format": "png"}}}},
        {"contentBlockStop": {"contentBlockIndex": 9}},
    ],
)
def test_event_that_is_not_known_is_passed_over(one: dict[str, Any]) -> None:
    """Lost if red: all answers, on the day that the service adds an event."""
    assert read(*text("a"), one, *text("b"), *ended()) == [
        TextDelta(text="a"),
        TextDelta(text="b"),
        finished(),
    ]
    assert said(whole({"text": "a"}, {"citationsContent": {}}, {"text": "b"})) == "ab"


@pytest.mark.parametrize(
    "one",
    [
        {"contentBlockDelta": {}},
        {"contentBlockDelta": {"contentBlockIndex": 0}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": 7}}},
        filled(0, {"toolUse": {}}),
        {"contentBlockStart": {"contentBlockIndex": 0}},
        {"messageStop": {}},
    ],
)
def test_event_without_its_parts_is_an_error_and_no_crash(one: dict[str, Any]) -> None:
    """Lost if red: a turn that ends in a bug of ours instead of the next provider."""
    with pytest.raises(ProviderUnavailable, match=r"^bedrock:m sent what is no message\.$"):
        read(*text("a"), one)


@pytest.mark.parametrize(
    "answer",
    [{}, {"output": {}}, {"output": {"message": {}}}, {"output": {"message": {"content": []}}}],
)
def test_answer_without_its_parts_is_an_error_and_no_crash(answer: dict[str, Any]) -> None:
    """Lost if red: the same where an answer comes whole."""
    with pytest.raises(ProviderUnavailable, match=r"^bedrock:m sent what is no message\.$"):
        ConverseReader(provider="bedrock", model="m").take_whole(answer)


# ── the fake ─────────────────────────────────────────────────────────────────────────────────


def test_frames_of_the_fake_are_the_real_ones() -> None:
    """Lost if red: what the tests of the stream prove."""
    frames = event("contentBlockDelta", {"a": "é"}) + exception("throttlingException", {})
    buffer = EventStreamBuffer()
    buffer.add_data(frames)
    first, second = buffer
    assert first.headers[":event-type"] == "contentBlockDelta"
    assert json.loads(first.payload) == {"a": "é"}
    assert first.to_response_dict()["status_code"] == 200
    assert second.headers[":exception-type"] == "throttlingException"
    assert second.to_response_dict()["status_code"] == 400
    for spoilt in (9, len(frames) - 1):
        buffer = EventStreamBuffer()
        data = bytearray(frames)
        data[spoilt] ^= 1
        buffer.add_data(bytes(data))
        with pytest.raises(ChecksumMismatch):
            list(buffer)
