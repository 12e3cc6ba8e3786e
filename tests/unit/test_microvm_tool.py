"""What a model is told of a run, a file and a machine that is gone."""

from typing import Any

import pytest

from chalicelib.agents.definition import AgentDefinition
from chalicelib.tools.base import ToolFailed
from chalicelib.tools.microvm import CALLS
from chalicelib.tools.offer import offered_names, told_tools
from tests.support.machines import TOOLS

QUIET: dict[str, Any] = {
    "stdout": "",
    "stderr": "",
    "exitCode": 0,
    "timedOut": False,
    "truncated": False,
}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({"stdout": "4\n"}, "exit code: 0\nstdout:\n4\n", id="output"),
        pytest.param({}, "exit code: 0\n(no output)", id="nothing"),
        pytest.param(
            {"stdout": "a", "stderr": "b", "exitCode": 1},
            "exit code: 1\nstdout:\na\nstderr:\nb",
            id="failing-code-is-a-result",
        ),
        pytest.param(
            {"stdout": "a", "truncated": True},
            "exit code: 0\nstdout:\na\n(output beyond 64 KB was cut off)",
            id="too-much",
        ),
    ],
)
def test_a_run_reads_as_what_it_printed(body: dict[str, Any], text: str) -> None:
    """Lost if red: output that a model cannot tell from errors."""
    assert CALLS["run_code"].answer({**QUIET, **body}) == text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param({"timedOut": True, "restarted": True}, "too long", id="hung"),
        pytest.param({"restarted": True}, "memory", id="too-large"),
    ],
)
def test_a_run_that_was_killed_says_so_and_what_is_lost(body: dict[str, Any], said: str) -> None:
    """Lost if red: a model that waits for a result, or goes on with variables that are gone."""
    with pytest.raises(ToolFailed) as raised:
        CALLS["run_code"].answer({**QUIET, "exitCode": None, "stdout": "so far", **body})
    text = str(raised.value)
    assert said in text
    assert "variables are gone, files are kept" in text
    assert "so far" in text
    assert "exit code" not in text


def test_a_file_is_told_apart_from_a_part_of_it() -> None:
    """Lost if red: a long file that is taken for a short one, or bytes for text."""
    read = CALLS["read_file"].answer
    assert read({"content": "x", "encoding": "utf-8", "size": 1, "truncated": False}) == "x"
    assert "empty" in read({"content": "", "encoding": "utf-8", "size": 0, "truncated": False})
    part = read({"content": "x", "encoding": "utf-8", "size": 9, "truncated": True})
    assert "9 bytes" in part
    assert "offset" in part
    assert "base64" in read({"content": "AA==", "encoding": "base64", "size": 1})


def test_what_reads_is_offered_to_turns_that_only_read() -> None:
    """Lost if red: code that runs in a turn that was to change nothing."""
    tools = AgentDefinition.model_validate({"isolation": "microvm", "tools": TOOLS}).tools
    assert offered_names(tools, read_only=True) == ("read_file",)
    assert offered_names(tools, read_only=False) == tuple(one["name"] for one in TOOLS)
    assert "run_code" in told_tools(tools, read_only=False)
