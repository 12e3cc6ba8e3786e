"""infra/container/Dockerfile, as far as it shows without a container engine.

What it copies is there, and the command that it runs starts, answers its health check and drains
with no package at hand but those that it installs.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.postgres import TestDatabase, free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra/container"


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each on one line."""
    text = (FOLDER / "Dockerfile").read_text()
    told = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, rest) for word, _, rest in (one.partition(" ") for one in told.split("\n")) if word
    ]


def _last(lines: list[tuple[str, str]], instruction: str) -> str:
    return [rest for word, rest in lines if word == instruction][-1].strip()


def _pins(lines: list[tuple[str, str]]) -> list[str]:
    """What its pip lines install: of requirements.txt, and of the groups that they name."""
    told = " ".join(rest for word, rest in lines if word == "RUN")
    assert "-r requirements.txt" in told
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    named = set(re.findall(r"--group (\w+)", told))
    assert named == {"gateway", "embeddings"}
    required = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [*required, *(pin for name in named for pin in groups[name])]
    return [pin.partition("==")[0] for pin in pins if pin and not pin.startswith("#")]


def test_build_finds_what_it_copies(lines: list[tuple[str, str]]) -> None:
    """The build would stop, or take along what lies about: keys, a database, the git history."""
    sources = {
        source
        for word, rest in lines
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert {source for source in sources if not (ROOT / source).exists()} == set()
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == sources
    assert not any(word == "ADD" for word, _ in lines)


def test_process_is_no_root_and_gets_its_signals(lines: list[tuple[str, str]]) -> None:
    """A hole would be root's; a shell in between would keep SIGTERM, and turns would be cut."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", _last(lines, "USER"))
    assert lines.index(("USER", "10001:10001")) > max(
        place for place, (word, _) in enumerate(lines) if word in ("COPY", "RUN")
    )
    assert _last(lines, "STOPSIGNAL") == "SIGTERM"
    assert "PAL_HOST=0.0.0.0" in _last(lines, "ENV")


def test_what_it_keeps_lies_where_its_user_may_write(lines: list[tuple[str, str]]) -> None:
    """`PAL_ISOLATION=local` could start no sandbox: its folder would be one of root's."""
    (folder,) = re.findall(r"PAL_DATA_DIR=(\S+)", _last(lines, "ENV"))
    owner, group = _last(lines, "USER").split(":")
    made = f"install -d -m 700 -o {owner} -g {group} {folder}"
    assert any(word == "RUN" and made in " ".join(rest.split()) for word, rest in lines)


def test_command_runs_on_what_is_installed_and_drains(
    lines: list[tuple[str, str]], database: TestDatabase, tmp_path: Path
) -> None:
    """The container would end at its first import, be killed as unhealthy, or cut its turns."""
    site = tmp_path / "site"
    site.mkdir()
    for pin in _pins(lines):
        installed = metadata.distribution(pin)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    command = json.loads(_last(lines, "CMD"))
    check = json.loads(_last(lines, "HEALTHCHECK").partition("CMD ")[2])
    # without `site`: it sees nothing of this virtual environment
    python = [getattr(sys, "_base_executable", sys.executable), "-S"]
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": f"{ROOT}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PAL_HOST": "127.0.0.1",
        "PAL_PORT": str(free_port()),
        "PAL_DATABASE_URL": database.app,
    }
    assert (command[0], check[0]) == ("python", "python")
    assert subprocess.run(
        [*python, *check[1:]], env=environment, stderr=subprocess.DEVNULL
    ).returncode
    with subprocess.Popen(
        [*python, *command[1:]], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as gateway:
        try:
            assert gateway.stdout is not None
            assert gateway.stdout.readline().startswith("ready ")
            assert subprocess.run([*python, *check[1:]], env=environment).returncode == 0
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(30) == 0
        finally:
            gateway.kill()
