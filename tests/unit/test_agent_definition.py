"""An agent's definition as a turn reads it: what is stored, less what this version cannot read."""

import json
import logging
from typing import Any

import pytest

from chalicelib.agents.definition import AgentDefinition, definition_json, parse_definition

CLOCK = {"kind": "builtin", "name": "current_time"}
LOOKUP = {
    "kind": "http",
    "name": "lookup",
    "method": "GET",
    "url": "https://tools.example/{what}",
    "approval": "always",
    "parameters": {
        "type": "object",
        "properties": {"what": {"type": ["string", "null"], "default": None}},
    },
}
WHOLE: dict[str, Any] = {
    "description": "Knows the way.",
    "systemPrompt": "You are a guide.",
    "models": {"primary": ["a:b:c", "d:e"], "fast": ["f:g"]},
    "tools": [CLOCK, LOOKUP],
    "isolation": "none",
    "context": "compact",
    "memory": {"inject": False, "tokenBudget": 500},
    "maxToolRounds": 2,
    "labels": {"team": "field"},
}


def read(stored: Any) -> AgentDefinition:
    return parse_definition(json.dumps(stored))


def test_what_is_stored_is_what_was_sent() -> None:
    """Lost if red: a tool's schema, of which nulls and orders are a part."""
    assert definition_json(read(WHOLE)) == WHOLE
    assert definition_json(read({"models": {"fast": ["f:g"]}})) == {"models": {"fast": ["f:g"]}}
    assert definition_json(AgentDefinition()) == {}


def test_what_is_left_out_has_its_default() -> None:
    """Lost if red: agents that say nothing of memory, tools or models, and most do not."""
    found = read({})
    assert found == AgentDefinition()
    assert (found.description, found.system_prompt, found.max_tool_rounds) == (None, None, None)
    assert (found.models.primary, found.models.fast, found.tools, found.labels) == ([], [], [], {})
    assert (found.isolation, found.context) == ("none", "full")
    assert (found.memory.inject, found.memory.token_budget) == (True, None)


def test_defaults_are_not_shared() -> None:
    """Lost if red: one agent's tools, to whoever appends to them."""
    assert AgentDefinition().tools is not AgentDefinition().tools
    assert AgentDefinition().models is not AgentDefinition().models
    assert AgentDefinition().models.primary is not AgentDefinition().models.primary


@pytest.mark.parametrize(
    ("change", "left"),
    [
        pytest.param({"voice": "low"}, {}, id="field-of-tomorrow"),
        pytest.param({"systemPrompt": 7}, {"systemPrompt": None}, id="other-type"),
        pytest.param({"context": "sliding"}, {"context": None}, id="word-of-tomorrow"),
        pytest.param({"isolation": "docker"}, {"isolation": None}, id="isolation-of-tomorrow"),
        pytest.param(
            {"tools": [{"kind": "microvm", "name": "run_code"}, CLOCK]},
            {"tools": [CLOCK]},
            id="microvm-without-isolation",
        ),
        pytest.param({"maxToolRounds": 50}, {"maxToolRounds": None}, id="bound-of-tomorrow"),
        pytest.param({"memory": {"depth": 3}}, {"memory": None}, id="part-of-tomorrow"),
        pytest.param({"labels": {"a": 1}}, {"labels": None}, id="wrong-label"),
        pytest.param(
            {"models": {"primary": [], "fast": ["f:g"], "slow": ["h:i"]}},
            {"models": {"fast": ["f:g"]}},
            id="chain-by-itself",
        ),
        pytest.param({"models": ["a:b"]}, {"models": None}, id="models-of-another-form"),
        pytest.param({"tools": {"a": CLOCK}}, {"tools": None}, id="tools-of-another-form"),
        pytest.param(
            {"tools": [{"kind": "carrier-pigeon", "name": "x"}, CLOCK]},
            {"tools": [CLOCK]},
            id="kind-of-tomorrow",
        ),
        pytest.param(
            {"tools": [CLOCK, {"kind": "builtin", "name": "yesterdays_tool"}]},
            {"tools": [CLOCK]},
            id="builtin-of-yesterday",
        ),
        pytest.param(
            {"tools": [{**LOOKUP, "approval": "by-two"}, CLOCK]},
            {"tools": [CLOCK]},
            id="approval-of-tomorrow",
        ),
        pytest.param(
            {"tools": [LOOKUP, 7, CLOCK, {**LOOKUP, "approval": "never"}]},
            {"tools": [LOOKUP, CLOCK]},
            id="two-of-one-name",
        ),
    ],
)
def test_a_turn_gets_on_with_what_it_can_read(
    change: dict[str, Any], left: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: every turn of an agent, once an older or newer version has stored it."""
    parse_definition.cache_clear()
    expected = {name: value for name, value in {**WHOLE, **left}.items() if value is not None}
    with caplog.at_level(logging.WARNING):
        found = read({**WHOLE, **change})
        again = read({**WHOLE, **change})
    assert definition_json(found) == expected
    assert again is found, "parsing costs a millisecond, and each turn asks for it"
    assert [record.__dict__["action"] for record in caplog.records] == ["definition_unreadable"]
    told = json.dumps(caplog.records[0].__dict__, default=str)
    assert "pigeon" not in told
    assert "sliding" not in told


@pytest.mark.parametrize("stored", [[], "guide", 7, None], ids=["list", "text", "number", "null"])
def test_what_is_no_definition_is_an_empty_one(stored: Any) -> None:
    """Lost if red: a session, for one bad row."""
    assert read(stored) == AgentDefinition()


def test_what_is_read_whole_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: the warnings that mean something."""
    parse_definition.cache_clear()
    with caplog.at_level(logging.DEBUG):
        read(WHOLE)
    assert caplog.records == []
