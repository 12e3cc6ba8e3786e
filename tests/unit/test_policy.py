"""A tenant's policy as it is read: whole, whatever of it a row holds."""

import json
from typing import Any

import pytest

from chalicelib.memory.policy import parse_policy

DEFAULT = parse_policy("UTC", "{}")


def test_without_a_policy_all_is_formed_and_kept() -> None:
    """Lost if red: memory, for every tenant who has never heard of policies."""
    assert dict(DEFAULT.promote) == dict.fromkeys(
        ("decision", "outcome", "commitment", "answer"), "auto"
    )
    assert dict(DEFAULT.form) == dict.fromkeys(("stated", "observed", "inferred"), "auto")
    assert dict(DEFAULT.keep_days) == {}
    assert DEFAULT.timezone == "UTC"


def test_what_is_set_is_read_and_the_rest_is_as_by_default() -> None:
    """Lost if red: the tenant's word on what is remembered of its people."""
    stored = {"form": {"inferred": "approve"}, "keep_days": {"episodic": 30}}
    policy = parse_policy("Asia/Jakarta", json.dumps(stored))
    assert policy.timezone == "Asia/Jakarta"
    assert (policy.forms("inferred"), policy.forms("stated")) == ("approve", "auto")
    assert dict(policy.keep_days) == {"episodic": 30}
    assert policy.promote == DEFAULT.promote


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({"later": {"x": 1}, "form": {"dreamt": "auto"}}, id="of-a-newer-version"),
        pytest.param({"form": {"stated": "perhaps", "observed": 1}}, id="words-unknown"),
        pytest.param({"form": [], "promote": None, "keep_days": "x"}, id="no-objects"),
        pytest.param({"keep_days": {"audit": 0, "sealed": -1, "semantic": True}}, id="no-days"),
        pytest.param({"keep_days": {"audit": 1.5, "sealed": 36_501}}, id="days-out-of-range"),
        pytest.param([], id="no-object-at-all"),
    ],
)
def test_what_cannot_be_read_is_as_by_default(stored: Any) -> None:
    """Lost if red: a tenant's turns, to what another version wrote; or data that it deletes."""
    assert parse_policy("UTC", json.dumps(stored)) == DEFAULT


def test_what_someone_has_approved_is_asked_about_no_more() -> None:
    """Lost if red: an end to approving the same fact."""
    stored = {"form": dict.fromkeys(("stated", "observed", "inferred"), "never")}
    assert parse_policy("UTC", json.dumps(stored)).forms("promoted") == "auto"


def test_policy_cannot_be_changed_where_it_is_shared() -> None:
    """Lost if red: one tenant's policy, to the code of another's turn: they are kept by content."""
    assert parse_policy("UTC", "{}") is parse_policy("UTC", "{}")
    with pytest.raises(TypeError):
        DEFAULT.form["stated"] = "never"  # type: ignore[index]
