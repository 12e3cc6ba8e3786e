"""What every wire shares without a socket: how refusals are judged, what is taken over of words."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
)
from chalicelib.providers.http import failure, idempotency_key, is_known_kind
from chalicelib.providers.reading import (
    TextCleaner,
    clean_text,
    count,
    parse_json,
    safe_name,
    unfenced,
)


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (ProviderRejected, (400, 413, 422)),
        (ProviderDenied, (301, 302, 307, 401, 402, 403, 404, 405, 410, 415)),
        (ProviderUnavailable, (201, 204, 408, 409, 424, 425, 429, 498, 500, 502, 503, 504, 529)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_status_says_who_may_do_better(kind: type[ProviderError], statuses: tuple[int]) -> None:
    """Lost if red: turns that the next provider would answer, or calls that no one will."""
    for status in statuses:
        error = failure("openai:m", status=status, kind="some_code")
        assert type(error) is kind, status
        assert error.message == f"openai:m answered {status} (some_code)."


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "model_not_found", ProviderDenied),
        (400, "invalid_api_key", ProviderDenied),
        (429, "insufficient_quota", ProviderDenied),
        (429, "rate_limit_exceeded", ProviderUnavailable),
        (500, "authentication_error", ProviderUnavailable),
        (503, "invalid_request_error", ProviderUnavailable),
        (429, "invalid_request_error", ProviderUnavailable),
        (404, "invalid_request_error", ProviderDenied),
        (None, "overloaded_error", ProviderUnavailable),
        (None, "rate_limit_error", ProviderUnavailable),
        (None, "throttlingException", ProviderUnavailable),
        (None, "", ProviderUnavailable),
        (None, "invalid_request_error", ProviderRejected),
        (None, "ValidationException", ProviderRejected),
        (None, "request-too-large", ProviderRejected),
        (None, "authentication_error", ProviderDenied),
        (None, "permission_error", ProviderDenied),
        (None, "AccessDeniedException", ProviderDenied),
        (None, "422", ProviderRejected),
        (None, "401", ProviderDenied),
        (None, "503", ProviderUnavailable),
        (None, "1401", ProviderUnavailable),
    ],
)
def test_kind_says_more_than_its_status(
    status: int | None, name: str, kind: type[ProviderError]
) -> None:
    """PRV-3. Lost if red: an empty account or a model of yesterday ends the walk, or is retried."""
    assert type(failure("a:m", status=status, kind=name)) is kind


def test_known_kinds_are_those_that_decide() -> None:
    """Lost if red: which of an error's two names is believed."""
    assert all(map(is_known_kind, ("invalid_request_error", "AccessDeniedException", "503")))
    assert not any(map(is_known_kind, ("", "of_tomorrow", "3280", "200", "overloaded_error")))


def test_failure_is_told_in_one_sentence() -> None:
    """Lost if red: what a person reads when nothing answers."""
    assert failure("a:m", status=503).message == "a:m answered 503."
    assert failure("a:m", status=429, kind="429").message == "a:m answered 429."
    assert failure("a:m", kind="x_error").message == "a:m reported an error (x_error)."
    assert failure("a:m").message == "a:m reported an error."


@pytest.mark.parametrize(
    ("sent", "wait"),
    [
        (None, None),
        ("", None),
        ("2", 2.0),
        (" 0.5 ", 0.5),
        ("0", 0.0),
        ("-1", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("9" * 400, None),
        ("99999999", 86_400.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 9015 07:28:00 GMT", 86_400.0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(sent: str | None, wait: float | None) -> None:
    """Lost if red: a provider that asks for a pause is hammered, or waited for until Christmas."""
    error = failure("a:m", status=429, retry_after=sent)
    assert isinstance(error, ProviderUnavailable)
    assert error.wait == wait
    assert error.again


def test_retry_after_of_a_date_is_from_now_on() -> None:
    """Lost if red: the pause of servers that name a time of day."""
    at = datetime.now(UTC) + timedelta(hours=1)
    error = failure("a:m", status=503, retry_after=format_datetime(at, usegmt=True))
    assert isinstance(error, ProviderUnavailable)
    assert error.wait is not None
    assert 3500 < error.wait <= 3600


def test_what_cannot_go_better_is_not_tried_again() -> None:
    """Lost if red: seconds of every turn, spent on a key that is refused."""
    error = failure("a:m", status=401, retry_after="1")
    assert isinstance(error, ProviderUnavailable)
    assert not error.again


def test_idempotency_key_is_of_the_provider_the_model_and_the_bytes(root: Path) -> None:
    """Lost if red: a turn that is taken up by another process is paid for twice."""
    key = idempotency_key("openai", "m", b"{}")
    assert len(key) == 64
    program = (
        "from chalicelib.providers.http import idempotency_key as k;print(k('openai', 'm', b'{}'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == key
    others = [("openai@x", "m", b"{}"), ("openai", "n", b"{}"), ("openai", "m", b"{ }")]
    assert len({key, *(idempotency_key(*one) for one in others)}) == 4


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("rate_limit_error", "rate_limit_error"),
        ("a.b:c-D9", "a.b:c-D9"),
        (429, "429"),
        ("", ""),
        ("two words", ""),
        ("a\n", ""),
        ("x" * 64, "x" * 64),
        ("x" * 65, ""),
        ("é", ""),
        (None, ""),
        (1.5, ""),
        ({"a": 1}, ""),
        (["a"], ""),
    ],
)
def test_name_is_shown_only_if_it_is_one(value: object, name: str) -> None:
    """Lost if red: a vendor's text, which may hold the key or the prompt, in someone's chat."""
    assert safe_name(value) == name


@pytest.mark.parametrize(
    ("value", "number"),
    [(0, 0), (7, 7), (2**31 - 1, 2**31 - 1), (2**31, None), (-1, None), (1.0, None), (True, None),
     ("7", None), (None, None)],
)  # fmt: skip
def test_count_is_one_that_a_column_takes(value: object, number: int | None) -> None:
    """Lost if red: a whole answer, at its commit."""
    assert count(value) == number


def test_pieces_of_a_text_are_clean_and_nothing_is_lost() -> None:
    """Lost if red: an emoji that a server cuts in two, or a turn at its commit."""
    cleaner = TextCleaner()
    pieces = [cleaner.feed(piece) for piece in ("a\ud83d", "", "\ude00\0", "b\ud83d")]
    assert pieces == ["a", "", "😀\ufffd", "b"]
    assert cleaner.end() == "\ufffd"
    assert cleaner.end() == ""
    assert cleaner.feed("c") == "c"
    assert clean_text("a\ud83d") == "a\ufffd"
    assert clean_text("") == ""


def test_json_of_a_provider_is_read_with_patience() -> None:
    """Lost if red: a whole answer, to one broken character; or an exception that nobody expects."""
    assert parse_json(b'{"a": "\\ud83d"}', "a:m") == {"a": "\ud83d"}
    assert parse_json(b'{"a": "caf\xe9"}', "a:m") == {"a": "caf\ufffd"}
    for junk in (b"", b"{", b"<html>", b"[" * 100_000, b"\xff"):
        with pytest.raises(ProviderUnavailable, match=r"^a:m sent what is no JSON\.$"):
            parse_json(junk, "a:m")


@pytest.mark.parametrize(
    ("text", "json"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        (' ```\n{"a": "```"}\n``` \n', '{"a": "```"}'),
        ("```\nunended", "```\nunended"),
        ("x ```\n{}\n```", "x ```\n{}\n```"),
    ],
)
def test_json_is_taken_out_of_its_fence(text: str, json: str) -> None:
    """Lost if red: distillates of models that put a fence around everything."""
    assert unfenced(text) == json
