"""The decoder of a provider's stream: however the bytes are cut, the events are the same."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.providers.sse import SseDecoder

TEXT = "café 你好 🌍".encode()
STREAM = (
    b'\xef\xbb\xbfdata: {"text":"' + TEXT + b'"}\n: a comment\n\n'
    b"event: named\r\ndata: one\r\ndata:two\r\ndata:  three\r\n\r\n"
    b"retry: 10\rid: 7\rdata: by CR\r\r"
    b"unknown: x\ndatum: y\ndata\n\n"
    b"event: has no data\n\n"
    b"\r\n\n\r"
    b":\r\ndata: a:b: c\revent: mixed\r\n\n"
    b"data: \xef\xbb\xbfnot at the start\n\n"
    b"data: never ended\n"
)
EVENTS = [
    ("message", b'{"text":"' + TEXT + b'"}'),
    ("named", b"one\ntwo\n three"),
    ("message", b"by CR"),
    ("message", b""),
    ("mixed", b"a:b: c"),
    ("message", b"\xef\xbb\xbfnot at the start"),
]


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_every_cut_gives_the_same_events() -> None:
    """STR-1. Lost if red: a letter outside ASCII, or a whole answer, to where a packet ended."""
    assert decode(STREAM) == EVENTS
    for cut in range(len(STREAM) + 1):
        assert decode(STREAM[:cut], STREAM[cut:]) == EVENTS, f"cut at {cut}"
        assert decode(STREAM[:cut], b"", STREAM[cut:]) == EVENTS, f"cut at {cut}, empty chunk"


def test_byte_by_byte_gives_the_same_events() -> None:
    """STR-1. Lost if red: answers over a slow line."""
    assert decode(*(STREAM[n : n + 1] for n in range(len(STREAM)))) == EVENTS


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12).map(sorted))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    """STR-1. Lost if red: what three or more cuts do that one does not."""
    edges = [0, *cuts, len(STREAM)]
    assert decode(*(STREAM[a:b] for a, b in pairwise(edges))) == EVENTS


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"\r", b"\n", b"data", b":", b" ", b"x", b"\xef\xbb\xbf"])))
def test_any_stream_is_read_alike_whole_and_in_pieces(parts: list[bytes]) -> None:
    """Lost if red: an order of line ends that nobody thought of."""
    stream = b"".join(parts)
    whole = decode(stream)
    assert decode(*parts) == whole
    assert decode(*(stream[n : n + 1] for n in range(len(stream)))) == whole
    normal = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decode(b"\n" + normal) == whole  # a first empty line means nothing, and guards a BOM


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"], id="each-crlf"),
        pytest.param([b"data: a\r", b"", b"\ndata: b\r\n", b"\r\n"], id="empty-chunk-between"),
        pytest.param([b"data: a\r", b"data: b\r", b"\r"], id="cr-alone"),
        pytest.param([b"data: a\r", b"\n", b"data: b\n\r"], id="lf-alone-in-a-chunk"),
    ],
)
def test_crlf_cut_in_its_middle_is_one_line_end(chunks: list[bytes]) -> None:
    """Lost if red: an event of two lines falls into two."""
    assert decode(*chunks) == [("message", b"a\nb")]


def test_event_is_given_as_soon_as_its_last_line_end_is_there() -> None:
    """Lost if red: a token waits for the next one, which may be a long time coming."""
    decoder = SseDecoder()
    assert list(decoder.feed(b"data: a\r\n\r")) == [("message", b"a")]
    assert list(decoder.feed(b"\n")) == []


def test_name_of_an_event_does_not_outlive_it() -> None:
    """Lost if red: what follows an event without data is taken for its kind."""
    assert decode(b"event: error\n\ndata: x\n\n") == [("message", b"x")]


def test_stream_of_bytes_that_are_no_text_is_not_refused() -> None:
    """Lost if red: an answer to one broken byte."""
    assert decode(b"event: \xff\ndata: \xff\n\n") == [("\ufffd", b"\xff")]
