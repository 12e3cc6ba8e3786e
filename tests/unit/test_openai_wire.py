"""Chat Completions as bytes: what each shape of an answer means."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
)
from chalicelib.providers.base import Finished, Reasoning
from chalicelib.providers.openai_reader import AnswerReader, kind_of

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
    reader = AnswerReader(provider="openai", model="m")
    pieces: list[str] = []
    try:
        for chunk in data:
            for delta in reader.feed(chunk):
                pieces.append(delta.text)
        left, end = reader.finish()
    except ProviderError as exc:
        assert "" not in pieces
        return pieces, None, exc
    assert "" not in pieces
    return pieces + [left] * (left != ""), end, None


def read_whole(answer: object, *, reasons: bool = False) -> tuple[str, Finished]:
    """The text and the end of an answer that came as this object."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return AnswerReader(provider="openai", model="m", reasons=reasons).whole(body)


def message(**fields: object) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice], "usage": COUNTS}


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
        ("function_call", "tool_calls"),
        ("max_tokens", "length"),
        ("of_tomorrow", "of_tomorrow"),
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
        ({"type": "of_tomorrow"}, ProviderUnavailable, " (of_tomorrow)"),
        ({"code": 502, "message": "x"}, ProviderUnavailable, " (502)"),
        ({"code": 429, "type": None}, ProviderUnavailable, " (429)"),
        ({"type": "authentication_error"}, ProviderDenied, " (authentication_error)"),
        ({"type": "permission_error"}, ProviderDenied, " (permission_error)"),
        (
            {"type": "invalid_request_error", "code": "invalid_api_key"},
            ProviderDenied,
            " (invalid_api_key)",
        ),
        ({"code": 401}, ProviderDenied, " (401)"),
        ({"code": "insufficient_quota", "type": "tokens"}, ProviderDenied, " (insufficient_quota)"),
        ({"type": "invalid_request_error"}, ProviderRejected, " (invalid_request_error)"),
        (
            {"type": "invalid_request_error", "code": "of_tomorrow"},
            ProviderRejected,
            " (invalid_request_error)",
        ),
        ({"type": "BadRequestError", "code": 400}, ProviderRejected, " (BadRequestError)"),
        ({"code": 400, "message": "x"}, ProviderRejected, " (400)"),
        ({"type": "no name, a text with secrets\0"}, ProviderUnavailable, ""),
        ({"type": ["invalid_request_error"], "code": {}}, ProviderUnavailable, ""),
        ("it broke, and sk-secret was its key", ProviderUnavailable, ""),
        (["it broke"], ProviderUnavailable, ""),
        (True, ProviderUnavailable, ""),
    ],
    ids=str,
)
def test_error_object_in_a_200_is_judged_by_its_kind(
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
    with pytest.raises(ProviderError) as caught:
        read_whole(failure)
    assert (type(caught.value), caught.value.message) == (kind, raised.message)


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"object": "error", "type": "overloaded_error", "code": 503}\n\n',
        b'event: error\ndata: {"type": "overloaded_error"}\n\n',
        b'data: {"choices": [{"index": 0, "error": {"type": "overloaded_error"}}]}\n\n',
    ],
    ids=["by-its-object", "by-its-event", "in-the-choice"],
)
def test_error_is_one_wherever_a_server_puts_it(event: bytes) -> None:
    """PRV-3. Lost if red: a failure is read as an answer that says nothing."""
    _, end, error = follow(wire(HI, end=event + DONE))
    assert end is None
    assert type(error) is ProviderUnavailable
    assert "reported an error (" in error.message


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_end_that_a_server_calls_a_failure_is_one(reason: str) -> None:
    """Lost if red: half an answer of a server that fell is stored as if it were the whole."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    pieces, end, error = follow(wire(HI, chunk, USAGE))
    assert (pieces, end) == (["Hi"], None)
    assert type(error) is ProviderUnavailable


def test_unknown_events_and_comments_are_passed_over() -> None:
    """Lost if red: answers of servers that say more, such as that they are still there."""
    noise = b": still here\n\nevent: progress\ndata: {}\n\nid: 7\nretry: 5\n\nfoo: bar\n\n"
    data = noise + wire(HI, end=noise) + wire(STOP, USAGE, end=noise + DONE)
    for cut in ([data], bytewise(data), bytewise(data.replace(b"\n", b"\r\n"))):
        pieces, end = read(*cut)
        assert (pieces, end.reason, end.tokens_in) == (["Hi"], "stop", 10)


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
        b'{"choices": [{"delta": {"refusal": {"a": 1}}}]}',
        b'{"choices": [{"delta": {"tool_calls": 7}}]}',
        b'{"choices": [{"delta": {"tool_calls": ["a"]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": "a"}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": 7}}]}}]}',
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
    pieces, end = read(wire(*chunks, STOP))
    assert (pieces, end.reason) == (["I ", "no"], "refusal")
    text, end = read_whole(message(content=None, refusal="I can not."))
    assert (text, end.reason) == ("I can not.", "refusal")


def test_content_in_parts_is_its_texts() -> None:
    """Lost if red: answers of models that send what they thought as a part of its own."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thought, {"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]
    assert read(wire(said(parts), STOP))[0] == ["Hi!"]


def test_whole_answer_is_its_text_and_its_end() -> None:
    """Lost if red: every turn that uses tools, and every distillate."""
    text, end = read_whole(message(content="Hi \ud83d\ude00\0"))
    assert text == "Hi 😀\ufffd"
    assert end == Finished(reason="stop", provider="openai", model="m", tokens_in=10, tokens_out=1)
    assert read_whole(b" \n\n " + json.dumps(message(content="Hi")).encode())[0] == "Hi"
    cut = message(content="a\ud83d")
    cut["choices"][0]["finish_reason"] = "length"
    text, end = read_whole(cut)
    assert (text, end.reason) == ("a\ufffd", "length")
    cut["choices"][0]["finish_reason"] = None
    assert read_whole(cut)[1].reason == "stop"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
        [],
        None,
        b"",
        b"<html>",
        b'{"choices": [{"message": {"content": "Hi"}',
        {"choices": [{"message": {"content": 7}}]},
    ],
    ids=str,
)
def test_whole_answer_without_an_answer_is_a_failure(answer: object) -> None:
    """Lost if red: an empty message is stored as what the model said."""
    with pytest.raises(ProviderUnavailable, match=r"^openai:m (ended in|sent what is no) "):
        read_whole(answer)


def test_cached_input_is_told_apart() -> None:
    """Lost if red: what a turn cost; read from a cache, tokens cost a tenth."""
    counts = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0}}
    _, end = read(wire(HI, STOP, {"choices": [], "usage": counts}))
    assert (end.tokens_in, end.tokens_cached, end.tokens_out) == (10, 8, 1)
    for details in (None, [], {"cached_tokens": -1}, {"cached_tokens": "8"}, {}):
        usage = {"choices": [], "usage": {**COUNTS, "prompt_tokens_details": details}}
        assert read(wire(HI, STOP, usage))[1].tokens_cached is None


def test_thoughts_are_kept_only_for_who_wants_them_back() -> None:
    """Lost if red: tool loops with models that refuse a history without what they thought."""
    kept = Reasoning(provider="openai", model="m", blocks=({"reasoning_content": "hm, so"},))
    answer = message(content="Hi", reasoning_content="hm, so")
    assert read_whole(answer, reasons=True) == (
        "Hi",
        Finished(
            reason="stop",
            provider="openai",
            model="m",
            tokens_in=10,
            tokens_out=1,
            reasoning=kept,
        ),
    )
    assert read_whole(answer)[1].reasoning is None
    reader = AnswerReader(provider="openai", model="m", reasons=True)
    thoughts = [{"choices": [{"delta": {"reasoning_content": one}}]} for one in ("hm,", " so")]
    assert [delta.text for delta in reader.feed(wire(*thoughts, HI, STOP))] == ["Hi"]
    assert reader.finish()[1].reasoning == kept


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": {"code": "model_not_found", "type": "invalid"}}', "model_not_found"),
        (b'{"error": {"code": null, "type": "tokens"}}', "tokens"),
        (b'{"error": {"code": 400, "type": "BadRequestError"}}', "BadRequestError"),
        (b'{"error": {"code": 429}}', "429"),
        (b'[{"error": {"code": 400, "status": "INVALID_ARGUMENT"}}]', "400"),
        (b'{"object": "error", "type": "invalid_function_call", "code": "3280"}',
         "invalid_function_call"),
        (b'{"error": "not found"}', ""),
        (b'{"detail": "not found"}', ""),
        (b'{"error": {"code": "a text with a secret"}}', ""),
        (b"[]", ""),
        (b"[1]", ""),
        (b"7", ""),
        (b"", ""),
        (b"<html>", ""),
        (b"[" * 100_000, ""),
    ],
    ids=lambda value: repr(value[:60]),
)  # fmt: skip
def test_refusal_is_named_by_the_most_telling_of_its_names(body: bytes, kind: str) -> None:
    """Lost if red: why a provider refuses, in the turn's error and in the log."""
    assert kind_of(body) == kind


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
