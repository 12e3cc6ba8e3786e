"""The Anthropic wire without HTTP: bytes to events, requests to bodies."""

import base64
from itertools import pairwise
from typing import Any

import orjson
import pytest

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.anthropic import to_wire
from chalicelib.providers.anthropic_reader import MessageReader, error_kind
from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Reasoning,
    TextDelta,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.history import UNSEEN_IMAGE
from tests.fakes.anthropic_rules import check

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(16)).decode()
GIF = base64.b64encode(b"GIF89a" + bytes(16)).decode()
WEBP = base64.b64encode(b"RIFF\x10\0\0\0WEBPVP8 " + bytes(16)).decode()
BMP = base64.b64encode(b"BM" + bytes(16)).decode()

SIGNED = {"type": "thinking", "thinking": "hm, é", "signature": "c2ln"}


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def start(usage: dict[str, Any] | None = None) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    return event("message_start", message=message)


def begun(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def text(*pieces: str, index: int = 0) -> bytes:
    deltas = [delta(index, "text_delta", text=piece) for piece in pieces]
    return begun(index, type="text", text="") + b"".join(deltas) + stopped(index)


def call(index: int, *pieces: str, call_id: str = "toolu_1", name: str = "look") -> bytes:
    first = begun(index, type="tool_use", id=call_id, name=name, input={})
    deltas = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return first + b"".join(deltas) + stopped(index)


def stopped(index: int) -> bytes:
    return event("content_block_stop", index=index)


def ended(reason: str | None = "end_turn", usage: dict[str, Any] | None = None) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage or {})


STOP = event("message_stop")


def read(*chunks: bytes) -> list[ModelEvent]:
    reader = MessageReader(provider="anthropic", model="m")
    events: list[ModelEvent] = []
    for chunk in chunks:
        events += reader.feed(chunk)
        if reader.done:
            break
    return events + reader.finish()


def whole(**message: Any) -> list[ModelEvent]:
    shape = {"type": "message", "content": [], "stop_reason": "end_turn", "usage": {}}
    return whole_of(orjson.dumps(shape | message))


def whole_of(payload: bytes) -> list[ModelEvent]:
    reader = MessageReader(provider="anthropic", model="m")
    told = reader.take_whole(payload)
    return ([TextDelta(text=told)] if told else []) + reader.finish()


def said(events: list[ModelEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def end_of(events: list[ModelEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def finished(reason: str = "stop", **fields: Any) -> Finished:
    return Finished(reason=reason, provider="anthropic", model="m", **fields)


def called(arguments: str, *, call_id: str = "toolu_1", name: str = "look") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


# ── bytes to events ──────────────────────────────────────────────────────────────────────────

ANSWER = (
    start({"input_tokens": 10, "output_tokens": 1})
    + event("ping")
    + begun(0, type="thinking", thinking="", signature="")
    + delta(0, "thinking_delta", thinking="hm, ")
    + delta(0, "thinking_delta", thinking="é")
    + delta(0, "signature_delta", signature="c2ln")
    + stopped(0)
    + text("café ", "你好 ", "🌍", index=1)
    + call(2, '{"city": "Zü', 'rich 🌍"}')
    + ended("tool_use", {"output_tokens": 7})
    + STOP
)
EVENTS = [
    TextDelta(text="café "),
    TextDelta(text="你好 "),
    TextDelta(text="🌍"),
    finished(
        "tool_calls",
        tokens_in=10,
        tokens_out=7,
        tool_calls=(called('{"city": "Zürich 🌍"}'),),
        reasoning=Reasoning(provider="anthropic", model="m", blocks=(SIGNED,)),
    ),
]


def test_answer_is_the_same_wherever_its_bytes_are_cut() -> None:
    """Lost if red: letters of every language but English, now and then (STR-1)."""
    assert "你".encode() in ANSWER
    for at in range(len(ANSWER) + 1):
        assert read(ANSWER[:at], ANSWER[at:]) == EVENTS, at
    assert read(*(ANSWER[n : n + 1] for n in range(len(ANSWER)))) == EVENTS
    assert read(*(ANSWER[a:b] for a, b in pairwise(range(0, len(ANSWER) + 7, 7)))) == EVENTS


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(event("ping"), id="ping"),
        pytest.param(b": a comment\n\n", id="comment"),
        pytest.param(event("content_block_paused", index=0, why={}), id="unknown-event"),
        pytest.param(begun(7, type="server_tool_use", id="s", name="web_search"), id="new-block"),
        pytest.param(delta(0, "citations_delta", citation={}), id="unknown-delta"),
        pytest.param(b"data: \n\n", id="empty"),
        pytest.param(b'data: "ping"\n\n', id="no-object"),
        pytest.param(ended(None), id="no-stop-reason-yet"),
        pytest.param(event("message_delta", delta={"container": {}}), id="no-usage"),
    ],
)
def test_what_is_not_known_is_passed_over(odd: bytes) -> None:
    """Lost if red: every turn on the day the vendor adds an event."""
    body = start() + text("Hi") + ended() + STOP
    for at in (0, body.index(b"event: content_block_start"), body.index(b"event: message_delta")):
        assert read(body[:at] + odd + body[at:]) == [TextDelta(text="Hi"), finished()]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("a text with spaces", "unknown"),
    ],
)
def test_stop_reason_is_told_in_our_words(reason: str, told: str) -> None:
    """Lost if red: that a reply was cut short, or refused."""
    assert end_of(read(start() + text("Hi") + ended(reason) + STOP)).reason == told
    assert end_of(whole(stop_reason=reason)).reason == told


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(start() + event("ping"), id="head"),
        pytest.param(start() + begun(0, type="text", text=""), id="block"),
        pytest.param(start() + text("Hi"), id="text"),
        pytest.param(start() + call(0, '{"a"'), id="call"),
        pytest.param(start() + text("Hi") + ended()[:-2], id="inside-the-last-event"),
    ],
)
def test_truncated_answer_is_an_error_and_no_short_success(data: bytes) -> None:
    """Lost if red: the difference between an answer and half of one."""
    with pytest.raises(ProviderUnavailable, match="in the middle"):
        read(data)


def test_either_end_of_a_message_is_one() -> None:
    """Lost if red: good answers of gateways that leave one of the two out."""
    assert read(start() + text("Hi") + ended()) == [TextDelta(text="Hi"), finished()]
    assert read(start() + text("Hi") + STOP) == [TextDelta(text="Hi"), finished()]
    assert end_of(read(start() + call(0) + STOP)).reason == "tool_calls"


def test_nothing_after_the_end_counts() -> None:
    """Lost if red: an answer, when a second one comes over the same stream."""
    assert read(start() + ended() + STOP + text("more") + event("error")) == [finished()]


# ── calls ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        pytest.param((), "{}", id="no-delta"),
        pytest.param(("",), "{}", id="empty-delta"),
        pytest.param((" ", "\n"), "{}", id="blank"),
        pytest.param(("", '{"a":', " 1}"), '{"a": 1}', id="pieces"),
        pytest.param(('{"a":',), '{"a":', id="broken-is-kept"),
        pytest.param(("null",), "null", id="null-is-kept"),
        pytest.param(('{"a": "\\ud83c', '\\udf0d"}'), '{"a": "\\ud83c\\udf0d"}', id="escaped"),
    ],
)
def test_arguments_are_joined_and_empty_means_none(pieces: tuple[str, ...], arguments: str) -> None:
    """Lost if red: tools without parameters (TOL-2), and what every other tool is called with."""
    events = read(start() + call(0, *pieces) + ended("tool_use") + STOP)
    assert events == [finished("tool_calls", tool_calls=(called(arguments),))]


def test_parallel_calls_keep_their_order_beside_the_text() -> None:
    """Lost if red: parallel calls."""
    two = call(1, '{"n":1}') + call(2, '{"n":2}', call_id="toolu_2", name="hear")
    assert read(start() + text("Both.") + two + ended("tool_use") + STOP) == [
        TextDelta(text="Both."),
        finished(
            "tool_calls",
            tool_calls=(called('{"n":1}'), called('{"n":2}', call_id="toolu_2", name="hear")),
        ),
    ]


def test_input_that_came_with_the_start_of_a_call_is_its_arguments() -> None:
    """Lost if red: the arguments, over gateways that send them whole."""
    block = begun(0, type="tool_use", id="toolu_1", name="look", input={"a": 1})
    assert end_of(read(start() + block + ended("tool_use"))).tool_calls == (called('{"a":1}'),)


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        pytest.param(call(1), (), id="before-its-arguments"),
        pytest.param(call(1, '{"all": fal'), (called('{"all": fal'),), id="inside-them"),
        pytest.param(call(1) + text("so", index=2), (called("{}"),), id="behind-it"),
    ],
)
def test_call_that_was_cut_off_is_not_taken_for_one_without_arguments(
    last: bytes, kept: tuple[ToolCall, ...]
) -> None:
    """Lost if red: the caution of a tool whose arguments all have defaults."""
    events = read(start() + text("Well") + last + ended("max_tokens") + STOP)
    assert end_of(events).tool_calls == kept


# ── reasoning, text, counts ──────────────────────────────────────────────────────────────────


def thought(index: int, **block: Any) -> bytes:
    return begun(index, **block) + stopped(index)


def test_reasoning_is_gathered_as_it_would_have_come_whole() -> None:
    """Lost if red: what the vendor wants back in the next round of a tool loop."""
    sealed = {"type": "redacted_thinking", "data": "c2VhbGVk"}
    streamed = (
        begun(0, type="thinking", thinking="", signature="")
        + delta(0, "thinking_delta", thinking="hm, é")
        + delta(0, "signature_delta", signature="c2")
        + delta(0, "signature_delta", signature="ln")
        + thought(1, **sealed)
        + call(2)
    )
    end = end_of(read(start() + streamed + ended("tool_use") + STOP))
    assert end.reasoning == Reasoning(provider="anthropic", model="m", blocks=(SIGNED, sealed))
    content = [SIGNED, sealed, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]
    assert whole(content=content, stop_reason="tool_use")[-1] == end


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param(text("Hm.") + thought(1, **SIGNED) + call(2), id="behind-text"),
        pytest.param(
            thought(0, **SIGNED) + call(1) + thought(2, **SIGNED) + call(3, call_id="b"),
            id="between-calls",
        ),
        pytest.param(thought(0, **(SIGNED | {"thinking": "a\0b"})) + call(1), id="unstorable"),
    ],
)
def test_reasoning_that_could_not_be_given_back_as_it_was_is_left_out(blocks: bytes) -> None:
    """Lost if red: the session; changed reasoning is refused, with all that follows it."""
    end = end_of(read(start() + blocks + ended("tool_use") + STOP))
    assert end.reasoning is None
    assert end.tool_calls


@pytest.mark.parametrize(
    ("pieces", "clean"),
    [
        pytest.param(["a\0b"], "a\ufffdb", id="nul"),
        pytest.param([r"\ud83c", r"\udf0d!"], "🌍!", id="halves-of-a-pair"),
        pytest.param([r"x\ud83c"], "x\ufffd", id="half-at-the-end"),
        pytest.param(["", "a"], "a", id="empty-piece"),
    ],
)
def test_text_that_postgres_cannot_hold_is_made_clean(pieces: list[str], clean: str) -> None:
    """Lost if red: the turn, when it is stored."""
    body = start()
    for piece in pieces:
        body += delta(0, "text_delta", text="@").replace(
            b'"@"', b'"' + piece.replace("\0", r"\u0000").encode() + b'"'
        )
    events = read(body + ended() + STOP)
    assert said(events) == clean
    assert all(one.text for one in events if isinstance(one, TextDelta))


def test_text_that_comes_whole_is_one_clean_delta() -> None:
    """Lost if red: the turn, when it is stored; and the promise of one delta at most."""
    answer = b'{"type":"message","stop_reason":"end_turn","content":[{"type":"text","text":"x%b"}]}'
    assert whole_of(answer % rb"\u0000\ud83c") == [TextDelta(text="x\ufffd\ufffd"), finished()]


@pytest.mark.parametrize(
    ("first", "last", "counts"),
    [
        pytest.param(
            {"input_tokens": 5, "output_tokens": 1}, {"output_tokens": 9}, (5, 9), id="end-adds-out"
        ),
        pytest.param(
            {"input_tokens": 5, "output_tokens": 1},
            {"input_tokens": 5, "output_tokens": 9},
            (5, 9),
            id="cumulative-and-not-added",
        ),
        pytest.param(None, {"input_tokens": 5, "output_tokens": 9}, (5, 9), id="only-at-the-end"),
        pytest.param(
            {"input_tokens": 5}, {"input_tokens": 0, "output_tokens": 9}, (5, 9), id="zero-later"
        ),
        pytest.param({}, {}, (None, None), id="none"),
        pytest.param({"input_tokens": "5"}, {"output_tokens": 1.5}, (None, None), id="no-counts"),
        pytest.param({"input_tokens": 5}, {"output_tokens": None}, (5, None), id="null"),
    ],
)
def test_tokens_are_those_the_vendor_counted(
    first: Any, last: dict[str, Any], counts: tuple[int | None, int | None]
) -> None:
    """Lost if red: what a turn cost."""
    end = end_of(read(start(first) + text("Hi") + ended("end_turn", last) + STOP))
    assert (end.tokens_in, end.tokens_out) == counts
    assert (end.tokens_cached, end.tokens_cache_written) == (None, None)


def test_tokens_of_the_cache_are_part_of_those_that_went_in() -> None:
    """Lost if red: most of what went in, once the vendor caches the prompt."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7}
    end = end_of(read(start(usage) + ended("end_turn", {"output_tokens": 2}) + STOP))
    expected = finished(tokens_in=102, tokens_out=2, tokens_cached=90, tokens_cache_written=7)
    assert end == expected
    assert whole(usage=usage | {"output_tokens": 2})[-1] == expected


# ── errors and junk ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ProviderUnavailable),
        ("rate_limit_error", ProviderUnavailable),
        ("api_error", ProviderUnavailable),
        ("timeout_error", ProviderUnavailable),
        ("a_new_error", ProviderUnavailable),
        ("words that are no name", ProviderUnavailable),
        (None, ProviderUnavailable),
        ("invalid_request_error", ProviderRejected),
        ("request_too_large", ProviderRejected),
        ("authentication_error", ProviderDenied),
        ("permission_error", ProviderDenied),
        ("not_found_error", ProviderDenied),
        ("billing_error", ProviderDenied),
    ],
)
def test_error_inside_a_200_is_judged_by_its_type(
    kind: str | None, error: type[ProviderError]
) -> None:
    """Lost if red: failover when the vendor is overloaded, which it says in a 200 (PRV-3)."""
    failure = {"type": kind, "message": "secret words"}
    body = start() + event("ping") + event("error", error=failure)
    reader = MessageReader(provider="anthropic", model="m")
    with pytest.raises(error) as streamed:
        list(reader.feed(body))
    with pytest.raises(error) as came_whole:
        whole(type="error", error=failure)
    for told in (str(streamed.value), str(came_whole.value)):
        assert type(streamed.value) is type(came_whole.value) is error
        assert "anthropic:m" in told
        assert "secret" not in told
        assert "words" not in told
        assert "200" not in told
        assert not kind or " " in kind or kind in told


def test_deltas_before_an_error_are_given_first() -> None:
    """Lost if red: that a failure is the same however the bytes were cut."""
    body = start() + text("Hi") + event("error", error={"type": "overloaded_error"})
    events = MessageReader(provider="anthropic", model="m").feed(body)
    assert next(events) == TextDelta(text="Hi")
    with pytest.raises(ProviderUnavailable):
        next(events)


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"data: {\n\n", id="no-json"),
        pytest.param(b"data: <html>\n\n", id="html"),
        pytest.param(event("message_start"), id="no-message"),
        pytest.param(event("message_start", message=[]), id="message-is-a-list"),
        pytest.param(start([1]), id="usage-is-a-list"),  # type: ignore[arg-type]
        pytest.param(begun(0, type="text"), id="block-without-text"),
        pytest.param(begun(0, type="text", text=7), id="text-is-a-number"),
        pytest.param(event("content_block_start", index=[], content_block={}), id="odd-index"),
        pytest.param(event("content_block_delta", index=0), id="no-delta"),
        pytest.param(delta(0, "text_delta"), id="delta-without-text"),
        pytest.param(delta(0, "text_delta", text=None), id="text-is-null"),
        pytest.param(delta(5, "input_json_delta", partial_json="{}"), id="arguments-of-no-call"),
        pytest.param(
            begun(0, type="tool_use") + delta(0, "input_json_delta", partial_json=1) + ended(),
            id="arguments-are-a-number",
        ),
        pytest.param(
            begun(0, type="tool_use", input={"a": "@"}).replace(b"@", rb"\ud800") + ended(),
            id="input-is-half-a-pair",
        ),
        pytest.param(
            begun(0, type="tool_use") + begun("a", type="tool_use") + ended("max_tokens"),  # type: ignore[arg-type]
            id="index-is-a-text",
        ),
        pytest.param(event("message_delta", delta=None), id="end-is-null"),
        pytest.param(event("message_delta", delta={}, usage="9"), id="usage-is-a-text"),
        pytest.param(event("error", error="bad"), id="error-is-a-text"),
        pytest.param(event("error"), id="error-says-nothing"),
        pytest.param(b"data: " + b"[" * 100_000 + b"\n\n", id="too-deep"),
    ],
)
def test_junk_is_the_providers_failure_and_not_ours(junk: bytes) -> None:
    """Lost if red: failover from a server that has gone mad."""
    with pytest.raises(ProviderUnavailable):
        read(start() + junk + STOP)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"type": "message", "content": [{"type": "te', id="truncated"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'"message"', id="text"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"type": "message", "stop_reason": "end_turn"}', id="no-content"),
        pytest.param(
            b'{"type": "message", "content": null, "stop_reason": "x"}', id="null-content"
        ),
        pytest.param(b'{"type": "message", "content": [7], "stop_reason": "x"}', id="no-block"),
        pytest.param(b'{"type": "message", "content": []}', id="no-reason"),
        pytest.param(b'{"type": "message", "content": [], "stop_reason": null}', id="null-reason"),
        pytest.param(b'{"type": "error", "error": "bad"}', id="odd-error"),
    ],
)
def test_whole_answer_that_is_none_is_the_providers_failure(payload: bytes) -> None:
    """Lost if red: failover from a proxy that answers 200 with its own page."""
    with pytest.raises(ProviderUnavailable):
        whole_of(payload)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}', "overloaded_error"),
        (b'{"error":{"type":"words that are no name"}}', ""),
        (b'{"error":"overloaded_error"}', ""),
        (b'{"error":["a"]}', ""),
        (b"[1]", ""),
        (b"7", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_kind_of_a_refusal_is_read_where_there_is_one(body: bytes, kind: str) -> None:
    """Lost if red: the reason in the error, or the turn when a proxy refuses in its own words."""
    assert error_kind(body) == kind


# ── requests to bodies ───────────────────────────────────────────────────────────────────────

LOOK = ToolSpec(name="look", description="Looks.", parameters={"properties": {"at": {}}})


def user(content: str, *attachments: dict[str, Any]) -> ModelMessage:
    return ModelMessage(role="user", content=content, attachments=attachments)


def body_of(*messages: ModelMessage, **fields: Any) -> dict[str, Any]:
    request = ModelRequest(**({"system": "Be kind."} | fields), messages=messages)
    body = to_wire(request, provider="anthropic", model="m")
    check(body, issued={"c2ln|hm, é"})
    return body


def test_request_says_what_the_wire_wants() -> None:
    """Lost if red: every call."""
    assert body_of(user("hello")) == {
        "model": "m",
        "max_tokens": 16384,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "stream": True,
    }
    short = body_of(user("hello"), system=" ", stream=False, max_tokens=5)
    assert {"system", "stream"} & set(short) == set()
    assert short["max_tokens"] == 5


def test_tools_calls_and_results_have_their_places() -> None:
    """Lost if red: the tool loop."""
    calls = (called('{"at": "é"}', call_id="c1"), called("", call_id="c2", name="hear"))
    body = body_of(
        user("well?"),
        ModelMessage(
            role="assistant",
            content="Let me look.",
            tool_calls=calls,
            reasoning=Reasoning(provider="anthropic", model="m", blocks=(SIGNED,)),
        ),
        ModelMessage(role="tool", content="21", tool_call_id="c1"),
        ModelMessage(role="tool", content="no ears", tool_call_id="c2", is_error=True),
        tools=(LOOK, ToolSpec(name="hear", description="", parameters={"type": "object"})),
    )
    assert body["tools"] == [
        {
            "name": "look",
            "input_schema": {"type": "object", "properties": {"at": {}}},
            "description": "Looks.",
        },
        {"name": "hear", "input_schema": {"type": "object"}},
    ]
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                SIGNED,
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "é"}},
                {"type": "tool_use", "id": "c2", "name": "hear", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "21"},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": "no ears",
                    "is_error": True,
                },
            ],
        },
    ]


def test_request_without_tools_holds_no_tool_blocks() -> None:
    """Lost if red: the closing round of a tool loop, and compaction (PRV-8)."""
    asked = ModelMessage(role="assistant", content="", tool_calls=(called("{}", call_id="c1"),))
    seen = ModelMessage(role="tool", content="21 degrees", tool_call_id="c1")
    body = body_of(user("how warm?"), asked, seen)
    assert "tools" not in body
    assert "21 degrees" in body["messages"][-1]["content"][-1]["text"]


def test_schema_is_asked_for_behind_the_system_prompt() -> None:
    """Lost if red: distillation."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    system = body_of(user("count"), schema=schema)["system"]
    assert system.startswith("Be kind.\n\n")
    assert system.endswith(orjson.dumps(schema).decode())
    assert body_of(user("count"), system="", schema=schema)["system"] in system


@pytest.mark.parametrize(
    ("data", "stated", "sent"),
    [
        pytest.param(PNG, "image/png", "image/png", id="png"),
        pytest.param(JPEG, "image/png", "image/jpeg", id="jpeg-stated-as-png"),
        pytest.param(GIF, "image/jpg", "image/gif", id="gif"),
        pytest.param(WEBP, "image/png", "image/webp", id="webp"),
    ],
)
def test_inline_image_is_sent_as_what_it_is(data: str, stated: str, sent: str) -> None:
    """Lost if red: photos whose sender did not say what they are; the vendor checks."""
    content = body_of(user("this", {"type": "image", "mediaType": stated, "data": data}))
    assert content["messages"][0]["content"] == [
        {"type": "text", "text": "this"},
        {"type": "image", "source": {"type": "base64", "media_type": sent, "data": data}},
    ]


def test_image_by_url_is_left_to_the_vendor_to_fetch() -> None:
    """Lost if red: images by URL."""
    linked = {"type": "image", "mediaType": "image/png", "url": "https://example.com/a.png"}
    assert body_of(user("", linked))["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    ]


@pytest.mark.parametrize(
    "image",
    [
        pytest.param({"mediaType": "image/bmp", "data": BMP}, id="type"),
        pytest.param({"mediaType": "image/bmp", "data": "abc"}, id="no-base64"),
        pytest.param({"mediaType": "image/png", "url": "http://example.com/a.png"}, id="plain"),
    ],
)
def test_image_that_the_wire_does_not_carry_is_an_error_once(image: dict[str, Any]) -> None:
    """Lost if red: the reason why a picture was not looked at, or the session ever after."""
    attached = user("this", {"type": "image", **image})
    with pytest.raises(ProviderUnsupported, match="anthropic:m"):
        body_of(attached)
    later = body_of(attached, ModelMessage(role="assistant", content="?"), user("never mind"))
    assert later["messages"][0]["content"][1] == {"type": "text", "text": UNSEEN_IMAGE}
