"""The packaged functions that no caller waits for, at work under AWS's emulator."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.emulator import RIE, ROOT
from tests.support.skipping import skip_except_in_ci

FUNCTIONS = ("TurnWorker", "Sweep", "MemoryTick", "MemoryWorker", "MemoryIndex", "Migrate")


@pytest.mark.timeout(200)
def test_packaged_workers_do_their_work_from_a_cold_start(tmp_path: Path) -> None:
    """Lost if red: turns and passes on AWS, for a file that the package lacks; and the figures.

    Times are told and not judged here: what else the machine does would fail them.
    """
    if not RIE.exists():
        skip_except_in_ci("the emulator is missing: run scripts/fetch-rie")
    told = tmp_path / "figures.json"
    command = ["scripts/bench-coldstart", *FUNCTIONS, "--starts", "1", "--calls", "1"]
    ran = subprocess.run(
        [*command, "--json", str(told)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode == 2:
        skip_except_in_ci(ran.stderr.strip())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    made = json.loads(told.read_text())
    assert all(name in json.dumps(made) for name in FUNCTIONS)
