"""Chat Completions as bytes: what a request becomes, and what each shape of an answer means."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.errors import ProviderError, ProviderRejected, ProviderUnavailable
from chalicelib.providers import Finished, ModelEvent, ModelMessage, ModelRequest, TextDelta
from chalicelib.providers.openai import ChunkReader, to_wire
from chalicelib.sessions.prompt import build_request
from chalicelib.sessions.rows import ClaimedTurn

HI = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
COUNTS = {"prompt_tokens": 10, "completion_tokens": 1}
USAGE = {"choices": [], "usage": COUNTS}
EMPTY: dict[str, Any] = {"choices": []}
DONE = b"data: [DONE]\n\n"


def wire(*chunks: object, end: bytes = DONE) -> bytes:
    # json and not orjson: it writes half a surrogate pair, and writes it as servers do
    parts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in chunks]
    return b"".join(b"data: " + one + b"\n\n" for one in parts) + end


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def read(*data: bytes) -> tuple[list[str], Finished]:
    """The pieces and the end of an answer that came as these bytes."""
    pieces, end, error = follow(*data)
    if error is not None:
        raise error
    assert end is not None
    return pieces, end


def follow(*data: bytes) -> tuple[list[str], Finished | None, ProviderError | None]:
    """The same of one that may fail: what had been said before it did, and how."""
    reader = ChunkReader(provider="openai", model="m")
    events: list[ModelEvent] = []
    error = None
    try:
        for chunk in data:
            events += reader.feed(chunk)
        events += reader.finish()
    except ProviderError as exc:
        error = exc
    pieces = [one.text for one in events if isinstance(one, TextDelta)]
    ends = [one for one in events if isinstance(one, Finished)]
    assert "" not in pieces
    assert events[len(pieces) :] == ends
    return pieces, ends[0] if ends else None, error


def bytewise(data: bytes) -> list[bytes]:
    return [data[n : n + 1] for n in range(len(data))]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([HI, STOP, USAGE], id="usage-with-empty-choices"),
        pytest.param([EMPTY, HI, STOP, USAGE], id="empty-choices-first"),
        pytest.param([HI, STOP, {"usage": COUNTS}], id="usage-without-choices"),
        pytest.param([HI, STOP, {"choices": None, "usage": COUNTS}], id="choices-null"),
        pytest.param([HI, STOP, USAGE, EMPTY], id="empty-choices-last"),
        pytest.param([HI, {**STOP, "usage": COUNTS}], id="usage-beside-the-last-choice"),
        pytest.param([USAGE, HI, STOP], id="usage-first"),
        pytest.param(
            [{"choices": [{"index": 0, "delta": None}]}, HI, STOP, USAGE], id="delta-null"
        ),
        pytest.param(
            [HI, {"choices": [{"delta": None, "finish_reason": "stop"}]}, USAGE],
            id="delta-null-at-the-end-and-no-index",
        ),
        pytest.param([HI, {"choices": [{"finish_reason": "stop"}]}, USAGE], id="no-delta"),
        pytest.param(
            [
                {**HI, "usage": None},
                {**STOP, "usage": None},
                {**USAGE, "error": None},
                {"choices": [], "usage": None},
            ],
            id="usage-null-on-every-other",
        ),
        pytest.param([HI, b"", b" ", b"null", b"[]", b'"ping"', STOP, USAGE], id="nothing-said"),
        pytest.param(
            [HI, {"choices": [{"index": 0, "delta": {"content": None}}]}, STOP, USAGE],
            id="content-null",
        ),
    ],
)
def test_good_answer_with_an_odd_chunk_stays_good(chunks: list[object]) -> None:
    """PRV-1. Lost if red: a whole answer, at its very end, and what it cost."""
    data = wire(*chunks)
    for cut in ([data], bytewise(data)):
        pieces, end = read(*cut)
        assert pieces == ["Hi"]
        assert end == Finished(
            reason="stop", provider="openai", model="m", tokens_in=10, tokens_out=1
        )


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param({}, id="empty"),
        pytest.param("12", id="text"),
        pytest.param([10, 1], id="list"),
        pytest.param({"prompt_tokens": None, "completion_tokens": "1"}, id="values-no-number"),
        pytest.param({"prompt_tokens": -1, "completion_tokens": 2**40}, id="beyond-a-column"),
        pytest.param({"prompt_tokens": 1.5, "completion_tokens": True}, id="not-whole"),
    ],
)
def test_usage_that_is_no_count_is_unknown(usage: object) -> None:
    """Lost if red: a whole answer, to a number that no column takes."""
    pieces, end = read(wire(HI, STOP, {"choices": [], "usage": usage}))
    assert pieces == ["Hi"]
    assert (end.tokens_in, end.tokens_out) == (None, None)


def test_missing_done_is_no_failure_when_there_is_a_finish_reason() -> None:
    """Lost if red: every answer of a server that just closes."""
    assert read(wire(HI, STOP, end=b""))[1].reason == "stop"


def test_missing_finish_reason_is_no_failure_when_there_is_done() -> None:
    """Lost if red: every answer of a server that only says [DONE]."""
    assert read(wire(HI))[1].reason == "stop"
    assert read(wire(HI, end=b"data:[DONE] \n\n"))[1].reason == "stop"


def test_nothing_after_done_counts() -> None:
    """Lost if red: a whole answer, to what a proxy adds to it."""
    pieces, end = read(wire(HI, STOP) + wire(said("more"), b"<html>"))
    assert (pieces, end.reason) == (["Hi"], "stop")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(wire(HI, end=b""), id="between-chunks"),
        pytest.param(wire(HI, STOP)[:-30], id="in-the-middle-of-the-last"),
        pytest.param(wire(HI, end=b"data: [DO"), id="in-the-middle-of-done"),
        pytest.param(b'{"choices": []}', id="no-event-stream"),
    ],
)
def test_truncated_answer_is_an_error_and_no_short_success(data: bytes) -> None:
    """Lost if red: half an answer is stored as if it were the whole."""
    _, end, error = follow(data)
    assert end is None
    assert isinstance(error, ProviderUnavailable)
    assert error.message == "openai:m ended in the middle of its answer."


@pytest.mark.parametrize(
    ("given_reason", "kept"),
    [
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("eos\0", "unknown"),
        ("\ud83d", "unknown"),
        ("x" * 5000, "unknown"),
        ({"type": "stop"}, "unknown"),
    ],
)
def test_finish_reason_is_kept_if_it_is_a_name(given_reason: object, kept: str) -> None:
    """Lost if red: that an answer was cut at the limit; or the answer, to a NUL."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": given_reason}]}
    assert read(wire(HI, chunk, USAGE))[1].reason == kept


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        ({"type": "overloaded_error", "message": "x"}, ProviderUnavailable, " (overloaded_error)"),
        ({"type": "rate_limit_error"}, ProviderUnavailable, " (rate_limit_error)"),
        ({"type": "server_error", "code": None}, ProviderUnavailable, " (server_error)"),
        ({"type": "api_error"}, ProviderUnavailable, " (api_error)"),
        ({"type": "authentication_error"}, ProviderUnavailable, " (authentication_error)"),
        ({"type": "of_tomorrow"}, ProviderUnavailable, " (of_tomorrow)"),
        ({"code": 502, "message": "x"}, ProviderUnavailable, " (502)"),
        ({"type": "invalid_request_error"}, ProviderRejected, " (invalid_request_error)"),
        (
            {"type": "invalid_request_error", "code": "context_length_exceeded"},
            ProviderRejected,
            " (invalid_request_error)",
        ),
        ({"code": 400, "message": "x"}, ProviderRejected, " (400)"),
        ({"type": "no name, a text with secrets\0"}, ProviderUnavailable, ""),
        ({"type": ["invalid_request_error"], "code": {}}, ProviderUnavailable, ""),
        ("it broke, and sk-secret was its key", ProviderUnavailable, ""),
        (["it broke"], ProviderUnavailable, ""),
        (True, ProviderUnavailable, ""),
    ],
    ids=str,
)
def test_error_object_in_a_200_stream_is_judged_by_its_type(
    error: object, kind: type[ProviderError], told: str
) -> None:
    """PRV-3. Lost if red: the next provider is not tried, or is asked what no one will answer."""
    failure = json.dumps({"error": error}).encode()
    data = wire(HI, end=b"event: error\ndata: " + failure + b"\n\n")
    for cut in ([data], bytewise(data)):
        pieces, end, raised = follow(*cut)
        assert pieces == ["Hi"], "what came before the error was said, however the bytes came"
        assert end is None
        assert type(raised) is kind
        assert raised.message == f"openai:m reported an error{told}."


@pytest.mark.parametrize(
    "junk",
    [
        b"{",
        b"<html>502</html>",
        b"\xff\xfe",
        b'{"choices": [{"delta": {"content": "a\nb"}}',
        b"[" * 100_000,
        b'{"choices": "text"}',
        b'{"choices": 7}',
        b'{"choices": ["a"]}',
        b'{"choices": [{"delta": "a"}]}',
        b'{"choices": [{"delta": {"content": {"a": 1}}}]}',
        b'{"choices": [{"delta": {"content": 7}}]}',
    ],
    ids=lambda junk: repr(junk[:50]),
)
def test_junk_is_the_providers_failure_and_not_ours(junk: bytes) -> None:
    """Lost if red: a proxy's page fails the turn where the next provider would have answered."""
    pieces, end, error = follow(wire(HI, junk, STOP))
    assert (pieces, end) == (["Hi"], None)
    assert isinstance(error, ProviderUnavailable)
    assert error.message.startswith("openai:m sent what is no ")
    assert "html" not in error.message


def test_only_the_first_of_several_choices_is_the_answer() -> None:
    """Lost if red: two answers woven into one."""
    chunk = {
        "choices": [
            {"index": 1, "delta": {"content": "B"}, "finish_reason": "length"},
            {"index": 0, "delta": {"content": "A"}},
        ]
    }
    other_ends = {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}
    pieces, end = read(wire(chunk, other_ends, STOP))
    assert (pieces, end.reason) == (["A"], "stop")


def test_refusal_is_what_the_model_says() -> None:
    """Lost if red: an empty answer where the model told why it gives none."""
    chunks = [{"choices": [{"delta": {"content": None, "refusal": one}}]} for one in ("I ", "no")]
    assert read(wire(*chunks, STOP))[0] == ["I ", "no"]


@pytest.mark.parametrize(
    ("sent", "clean"),
    [
        pytest.param(["a\0b"], "a\ufffdb", id="nul"),
        pytest.param(["\0"], "\ufffd", id="nul-alone"),
        pytest.param(["\ud83d\ude00"], "😀", id="pair-in-one-piece"),
        pytest.param(["a\ud83d", "\ude00b"], "a😀b", id="pair-over-two-pieces"),
        pytest.param(["\ud83d", "", "\ude00"], "😀", id="pair-around-an-empty-piece"),
        pytest.param(["\ud83d", "\ude00\ud83c", "\udf0d"], "😀🌍", id="two-pairs-over-three"),
        pytest.param(["a\ud83d", "b"], "a\ufffdb", id="high-then-text"),
        pytest.param(["\ud83d", "\ud83d", "\ude00"], "\ufffd😀", id="high-then-a-pair"),
        pytest.param(["\ud83d", "\0"], "\ufffd\ufffd", id="high-then-nul"),
        pytest.param(["a\ude00", "b"], "a\ufffdb", id="low-alone"),
        pytest.param(["\ude00\ud83d"], "\ufffd\ufffd", id="the-wrong-way-round"),
        pytest.param(["a", "b\ud83d"], "ab\ufffd", id="high-at-the-very-end"),
        pytest.param(["é你", "\ufffd\ufeff"], "é你\ufffd\ufeff", id="nothing-to-mend"),
    ],
)
def test_text_that_postgres_cannot_hold_is_made_clean(sent: list[str], clean: str) -> None:
    """Lost if red: a whole turn, at its commit, to one character; or an emoji cut by a server."""
    data = wire(*(said(one) for one in sent), STOP, USAGE)
    for cut in ([data], bytewise(data)):
        pieces, end = read(*cut)
        assert "".join(pieces) == clean
        assert end.tokens_in == 10


@pytest.mark.parametrize(
    ("raw", "text"), [(b"caf\xe9", "caf\ufffd"), (b"\xed\xa0\xbd", "\ufffd\ufffd\ufffd")]
)
def test_bytes_that_are_no_utf8_are_replaced(raw: bytes, text: str) -> None:
    """Lost if red: a whole answer to one byte; the rules of event streams say to replace it."""
    chunk = b'{"choices":[{"index":0,"delta":{"content":"' + raw + b'"}}]}'
    assert read(wire(chunk, STOP))[0] == [text]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab\0é🌍\ud83d\ude00"), max_size=4), max_size=6))
def test_any_pieces_give_clean_text_and_lose_no_character(sent: list[str]) -> None:
    """Lost if red: text, at a boundary that nobody thought of."""
    pieces, _ = read(wire(*(said(one) for one in sent), STOP))
    joined = "".join(sent).encode("utf-16-le", "surrogatepass")
    assert "".join(pieces) == joined.decode("utf-16-le", "replace").replace("\0", "\ufffd")
    for piece in pieces:
        piece.encode()  # none holds half a pair, not even for a moment


TURN = ClaimedTurn(
    tenant_id="ten",
    session_id="sess",
    turn_id="tur",
    resumes_turn=None,
    generation=1,
    seq=1,
    watched=False,
    accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
    event="{}",
    agent_name="guide",
    history='[{"role":"user","content":"one"},{"role":"assistant","content":"first"}]',
    pending="[]",
    cancel_requested=False,
)


def messages_of(request: ModelRequest) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in to_wire(request, "m")["messages"]]


def pending(content: str, **hints: str) -> dict[str, Any]:
    return {"role": "user", "content": content, "attachments": None, "hints": hints or None}


def test_messages_go_in_the_order_they_were_said_and_hints_in_their_places() -> None:
    """Lost if red: what the model takes for the newest message, or whose hint it follows."""
    said_now = [
        pending("two", systemHint="not this one", turnHint="nor this"),
        pending("three", systemHint="in French", turnHint="be brief"),
    ]
    turn = replace(TURN, pending=orjson.dumps(said_now).decode())
    head = "You are guide, a helpful assistant."
    asked = [("user", "one"), ("assistant", "first"), ("user", "two"), ("user", "three")]
    assert messages_of(build_request(turn)) == [
        ("system", f"{head}\n\nin French"),
        *asked,
        ("system", "be brief"),
    ]
    said_now[-1]["hints"] = None
    plain = replace(TURN, pending=orjson.dumps(said_now).decode())
    assert messages_of(build_request(plain)) == [("system", head), *asked]


def test_request_streams_and_asks_for_usage() -> None:
    """Lost if red: what every turn cost."""
    body = to_wire(
        ModelRequest(system="", messages=(ModelMessage(role="user", content="hi"),)), "gpt"
    )
    assert body == {
        "model": "gpt",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_attachments_become_image_parts_after_the_text() -> None:
    """Lost if red: what people show."""
    inline = {"type": "image", "mediaType": "image/webp", "data": "AAA=", "url": None}
    linked = {"type": "image", "mediaType": "image/png", "url": "https://example.com/a.png?b=c"}
    with_text = ModelMessage(role="user", content="what is it?", attachments=(inline, linked))
    alone = ModelMessage(role="user", content="", attachments=(linked,))
    body = to_wire(ModelRequest(system="", messages=(with_text, alone)), "m")
    images = [
        {"type": "image_url", "image_url": {"url": url}}
        for url in ("data:image/webp;base64,AAA=", "https://example.com/a.png?b=c")
    ]
    text = {"type": "text", "text": "what is it?"}
    assert [one["content"] for one in body["messages"]] == [[text, *images], [images[1]]]
