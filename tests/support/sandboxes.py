"""Sandboxes of the local driver, for tests that await nothing, and processes that have some."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from chalicelib.config import Settings
from chalicelib.isolation.base import Machine
from chalicelib.isolation.local import LocalDriver

ROOT = Path(__file__).parents[2]


class Sandboxes:
    """A driver with a data folder of its own, called from where nothing is awaited."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.settings = Settings(data_dir=str(data))
        self.driver = LocalDriver(self.settings)

    def start(self, token: str) -> Machine:
        """See the driver."""
        return asyncio.run(self.driver.start(token=token, idle=60))

    def run(
        self, machine: Machine, code: str, language: str = "python", seconds: float = 30
    ) -> dict[str, Any]:
        """What a run has given."""
        body = {"language": language, "code": code, "timeoutSeconds": seconds}
        return asyncio.run(self.driver.ask(machine, "/v1/run", body, timeout=50))

    def value(self, machine: Machine, code: str) -> Any:
        """What the code's variable `value` holds at its end."""
        answer = self.run(machine, f"{code}\nimport json\nprint(json.dumps(value))")
        assert answer["exitCode"] == 0, answer
        return json.loads(answer["stdout"])

    def end(self, machine: Machine) -> None:
        """See the driver."""
        asyncio.run(self.driver.terminate(machine.id))

    def listed(self) -> list[str]:
        """The ids of those alive."""
        return [one.id for one in asyncio.run(self.driver.list())]

    def holder(self, machine_id: str) -> psutil.Process:
        """The process that holds it."""
        told = json.loads((self.data / "vms" / machine_id / "vm.json").read_text())
        return psutil.Process(told["pid"])


def process_with_driver(
    data: Path,
    code: str,
    *,
    python: Path = Path(sys.executable),
    checkout: str = str(ROOT),
    refused: tuple[str, ...] = (),
    user: int | None = None,
) -> subprocess.Popen[str]:
    """Another process that has a driver on the same folder."""
    program = f"""
import asyncio, os, sys
sys.path.insert(0, {checkout!r})
from chalicelib.config import Settings
from chalicelib.isolation.base import MachineUnavailable
from chalicelib.isolation.local import LocalDriver
async def main():
    driver = LocalDriver(Settings(data_dir={str(data)!r}), refused={refused!r})
{textwrap.indent(textwrap.dedent(code), "    ")}
asyncio.run(main())
"""
    return subprocess.Popen(
        [str(python), "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=data.parent,
        env={"PATH": os.environ["PATH"]},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )


def elsewhere(data: Path, code: str, **more: Any) -> str:
    """What such a process prints."""
    process = process_with_driver(data, code, **more)
    told, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    return told


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Without those that only wait for someone to take note of their end."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command_line(process: psutil.Process) -> str:
    """Empty once it has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
