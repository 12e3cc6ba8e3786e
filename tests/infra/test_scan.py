"""The packaged template under a linter and a scan for security."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.scanlib.exceptions import Excepted, Finding, complaints
from tests.support.package import Package
from tests.support.skipping import skip_except_in_ci

_NOT_INSTALLED = 3


# installing the scanner may come before it
@pytest.mark.timeout(400)
def test_template_passes_the_linter_and_the_scan(dev_package: Package, root: Path) -> None:
    """A deployment would fail half way, or leave something open that nobody has decided on."""
    done = subprocess.run(
        [root / "scripts/scan", dev_package.folder / "sam.json"],
        cwd=root,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=390,
    )
    if done.returncode == _NOT_INSTALLED:
        skip_except_in_ci(f"the package index does not give the scanner: {done.stderr[-300:]}")
    assert (done.returncode, done.stdout) == (0, "nothing found\n"), done.stderr


@pytest.mark.parametrize(
    ("found", "excepted", "told"),
    [
        pytest.param([("Api", "C1")], [("Api", "C1", "meant so")], [], id="excepted"),
        pytest.param([("Api", "C1")], [("Api", "C2", "meant so")], ["C1", "C2"], id="another"),
        pytest.param([("Queue", "C1")], [("Api", "C1", "meant so")], ["C1", "C1"], id="elsewhere"),
        pytest.param([("ApiStage", "C1")], [("Api", "C1", "meant so")], [], id="made by SAM"),
        pytest.param([("ApiKey", "C1")], [("Api", "C1", "meant so")], ["C1", "C1"], id="a name"),
        pytest.param([("Api", "C1")], [("Api", "C1", "")], ["no reason"], id="unreasoned"),
        pytest.param([], [("Api", "C1", "meant so")], ["not needed"], id="outlived"),
    ],
)
def test_findings_are_held_against_exceptions(
    found: list[tuple[str, str]], excepted: list[tuple[str, str, str]], told: list[str]
) -> None:
    """One exception would hide findings elsewhere, or stay when what it was for has gone."""
    made = complaints(
        [Finding(resource=resource, check=check) for resource, check in found],
        [Excepted(resource=name, check=check, reason=why) for name, check, why in excepted],
        ["Api", "ApiKey", "Queue"],
    )
    assert len(made) == len(told)
    assert all(part in one for part, one in zip(told, made, strict=True))
