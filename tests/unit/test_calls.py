"""What a model sends as arguments, made fit to be stored, shown, approved and run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.sessions.calls import arguments_hash, canonical, tool_name


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("", "{}", id="empty"),
        pytest.param(" \n", "{}", id="blank"),
        pytest.param("null", "{}", id="null"),
        pytest.param("{}", "{}", id="none"),
        pytest.param('{"b": 1, "a": [2.5]}', '{"b":1,"a":[2.5]}', id="object-in-its-order"),
        pytest.param('{"a": 1', '"{\\"a\\": 1"', id="broken"),
        pytest.param("[1]", '"[1]"', id="a-list"),
        pytest.param('"x"', '"\\"x\\""', id="a-string"),
        pytest.param('{"a": NaN}', '"{\\"a\\": NaN}"', id="no-number"),
        pytest.param('{"a": 1e999}', '"{\\"a\\": 1e999}"', id="beyond-every-number"),
        pytest.param('{"a":18446744073709551615}', '{"a":18446744073709551615}', id="64-bits"),
        pytest.param('{"a":18446744073709551616}', '"{\\"a\\":18446744073709551616}"', id="65"),
        pytest.param('{"a":' * 64 + "{}" + "}" * 64, '{"a":' * 64 + "{}" + "}" * 64, id="deep"),
        pytest.param('{"a\\u0000": "\\ud800 b"}', '{"a\ufffd":"\ufffd b"}', id="unstorable"),
    ],
)
def test_arguments_are_an_object_or_the_text_that_was_none(sent: str, kept: str) -> None:
    """Lost if red: the turn, for one call that a model wrote badly (TOL-2)."""
    assert canonical(sent) == kept
    assert canonical(kept) == kept or isinstance(json.loads(kept), str)


@pytest.mark.parametrize("depth", [66, 260, 600, 5000])
def test_arguments_that_nest_too_deep_are_the_text_that_was_sent(depth: int) -> None:
    """Lost if red: the session, whose every later turn would break at what no event can carry."""
    for sent in ('{"a":' * depth + "{}" + "}" * depth, '{"a":' + "[" * depth + "]" * depth + "}"):
        assert json.loads(canonical(sent)) == sent


@given(st.text())
def test_whatever_a_model_sends_can_be_stored(sent: str) -> None:
    """Lost if red: the turn, at the first character that Postgres does not take."""
    kept = canonical(sent)
    kept.encode()
    assert "\0" not in kept
    assert "\\u0000" not in kept
    assert isinstance(json.loads(kept), dict | str)


def test_an_approval_is_bound_to_the_call_and_to_every_value() -> None:
    """Lost if red: that what runs is what a person saw (TOL-6)."""
    shown = arguments_hash("sess_1", "call_1", '{"path":"a.txt","mode":1}')
    assert arguments_hash("sess_1", "call_1", '{"mode":1,"path":"a.txt"}') == shown
    others = {
        arguments_hash("sess_1", "call_1", '{"path":"b.txt","mode":1}'),
        arguments_hash("sess_1", "call_1", '{"path":"a.txt","mode":"1"}'),
        arguments_hash("sess_1", "call_2", '{"path":"a.txt","mode":1}'),
        arguments_hash("sess_2", "call_1", '{"path":"a.txt","mode":1}'),
    }
    assert shown not in others
    assert len(others) == 4


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("get_time", "get_time", id="plain"),
        pytest.param("functions.get time", "functions_get_time", id="odd"),
        pytest.param("", "unnamed", id="none"),
        pytest.param("x" * 200, "x" * 64, id="long"),
    ],
)
def test_a_calls_name_is_one_that_every_vendor_takes_back(sent: str, kept: str) -> None:
    """Lost if red: every later turn, at a vendor that refuses the name in its history."""
    assert tool_name(sent) == kept
