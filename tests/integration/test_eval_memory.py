"""scripts/eval-memory, as one calls it, against a fake provider."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distillation.answering import scripted_answer
from tests.distillation.corpus import load_corpus
from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply

ONLY = ("changes", "assistant")


def evaluate(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it with this environment and no PAL_* or key of the surroundings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PAL_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, root / "scripts" / "eval_memory.py", *arguments],
        env={**kept, "PYTHONPATH": str(root), **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


def figures(out: str, row: str) -> list[str]:
    """The cells of a row of the table."""
    [line] = [one for one in out.splitlines() if one.split()[:1] == [row]]
    return line.split()[1:]


@pytest.fixture
def run(root: Path, provider: FakeOpenAI, tmp_path: Path) -> Any:
    def call(*words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        file = tmp_path / "figures.json"
        only = [word for one in words for word in ("--only", one)]
        done = evaluate(
            root,
            *(*only, "--json", str(file), "--model", "openai:fake", "--show"),
            OPENAI_BASE_URL=provider.base_url,
            OPENAI_API_KEY="sk-fake",
        )
        return done, json.loads(file.read_text()) if file.exists() else {}

    return call


def test_good_model_has_good_figures(run: Any, provider: FakeOpenAI) -> None:
    """Lost if red: knowing of a model what its facts are worth before people live with them."""

    def answer(recorded: Recorded) -> Reply:
        told = scripted_answer(recorded.last_user)
        assert told is not None
        return Reply(pieces=[told])

    provider.default(answer)
    done, told = run(*ONLY)
    assert done.returncode == 0, done.stderr
    of = [one for one in load_corpus() if one.theme in ONLY]
    assert figures(done.stdout, "all") == [f"{len(of)}", f"{len(of)}", *["1.000"] * 3, "0"]
    assert figures(done.stdout, "assistant")[4] == "–"
    assert {"theme", "changes", "language", "it", "zh"} <= {
        line.strip().split(" ")[0] for line in done.stdout.splitlines()
    }
    assert "no misses" in done.stdout
    assert (told["precision"], told["recall"], told["supersession"]) == (1, 1, 1)
    assert told["calls"] == sum(len(one.conversations) for one in of)


def test_bad_model_is_found_out_and_its_secrets_are_not_told(
    run: Any, provider: FakeOpenAI
) -> None:
    """Lost if red: figures that are good for everyone, or a key in a terminal's history."""
    said = json.dumps({"distillates": [
        {"topic": "home", "content": "I like the colour of everything", "confidence": 1, "line": 1}
    ]})  # fmt: skip
    provider.default(Reply(pieces=[said]))
    done, told = run("en-favourite-player", "en-api-key")
    assert done.returncode == 0, done.stderr
    assert told["recall"] == 0
    assert told["supersession"] == 0
    assert "en-favourite-player: missing sam: bianchi" in done.stdout
    secrets = [line for line in done.stdout.splitlines() if line.startswith("en-api-key")]
    assert secrets
    assert not [line for line in secrets if "colour" in line]


def test_model_that_cannot_be_asked_is_no_zero(run: Any, provider: FakeOpenAI) -> None:
    """Lost if red: a wrong key that looks like a bad model."""
    provider.default(Reply(status=401))
    done, told = run("en-favourite-player")
    assert done.returncode == 1
    assert "en-favourite-player: not distilled, " in done.stdout
    assert told["transcripts"] == 0


def test_without_a_model_it_says_so(root: Path) -> None:
    """Lost if red: an afternoon's search for why every figure is zero."""
    done = evaluate(root, "--only", "en-favourite-player")
    assert done.returncode == 2
    assert "stand-in is no model" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--only", "nonsense"), "there is no such theme"),
        (("--model", "nonsense:x"), "must name one of"),
    ],
)
def test_what_cannot_be_started_says_why(root: Path, arguments: tuple[str, ...], told: str) -> None:
    """Lost if red: a traceback for a slip of the pen."""
    done = evaluate(root, *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
