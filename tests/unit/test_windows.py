"""How much a model takes: the table, and the budget of a chain that is made of it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from chalicelib.config import SettingsError, load_settings
from chalicelib.providers import Models
from chalicelib.providers import prices as prices_table
from chalicelib.providers.windows import Window, table, window_of

FIELDS = {"provider", "models", "context", "input", "output"}
BOX = {"PAL_PROVIDER_MY_BOX_BASE_URL": "http://127.0.0.1:1/v1"}


def models(**variables: str) -> Models:
    return Models(load_settings(BOX | variables))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    text = Path(__file__).parents[2].joinpath("chalicelib/providers/windows.toml").read_text()
    rows = tomllib.loads(text)["window"]
    assert isinstance(rows, list)
    return rows


# ── the table ────────────────────────────────────────────────────────────────────────────────


def test_every_row_is_whole_and_means_one_thing(rows: list[dict[str, Any]]) -> None:
    """Lost if red: a slip of the pen in the table, which shows as prompts that are refused."""
    named = [(row["provider"], model) for row in rows for model in row["models"]]
    assert len(named) == len(set(named)) == len(table())
    for row in rows:
        assert set(row) <= FIELDS
        assert 8_000 <= row["context"] <= 10_000_000
        assert 0 < row.get("output", 1) < row["context"]
        assert 0 < row.get("input", 1) < row["context"]


def test_models_with_a_price_have_a_window() -> None:
    """Lost if red: a model that is added to one table and forgotten in the other."""
    assert table().keys() == prices_table.table().keys()


@pytest.mark.parametrize(
    ("provider", "model", "window"),
    [
        pytest.param("openai", "gpt-4o", Window(context=128_000, output=16_384), id="by-name"),
        pytest.param(
            "anthropic",
            "claude-haiku-4-5-20251001",
            Window(context=200_000, output=64_000),
            id="a-dated-id",
        ),
        pytest.param(
            "bedrock",
            "arn:aws:bedrock:us-east-1:111122223333:inference-profile/us.amazon.nova-micro-v1:0",
            Window(context=128_000),
            id="a-profile-by-its-arn",
        ),
        pytest.param("openai", "gpt-4o-mine", None, id="a-longer-name"),
        pytest.param("openai@groq", "gpt-4o", None, id="another-vendor-on-the-wire"),
        pytest.param("offline", "offline", None, id="the-stand-in"),
    ],
)
def test_window_is_of_exactly_the_model(provider: str, model: str, window: Window | None) -> None:
    """Lost if red: a prompt as long as some other model takes."""
    assert window_of(provider, model) == window


@pytest.mark.parametrize(
    ("window", "budget"),
    [
        pytest.param(Window(context=200_000, output=64_000), 200_000 - 8192, id="a-large-one"),
        pytest.param(Window(context=200_000), 200_000 - 8192, id="no-output-known"),
        pytest.param(Window(context=100_000, output=4096), 100_000 - 4096, id="short-answers"),
        pytest.param(Window(context=8192, output=8192), 6144, id="a-quarter-of-a-small-one"),
        pytest.param(Window(context=400_000, input=272_000), 272_000, id="input-bounded-apart"),
        pytest.param(Window(context=100_000, input=99_000), 100_000 - 8192, id="bounded-by-less"),
    ],
)
def test_room_is_kept_for_the_answer(window: Window, budget: int) -> None:
    """Lost if red: answers that end in the middle, or half a window that is never used."""
    assert window.budget == budget


# ── the budget of a chain ────────────────────────────────────────────────────────────────────


def test_budget_is_that_of_the_chains_smallest_place() -> None:
    """Lost if red: a chain that cannot move on, since the next model does not take the prompt."""
    one = models(PAL_PROVIDERS="anthropic:claude-opus-5-5,openai:gpt-4o,openai:gpt-5")
    assert one.budget() == 128_000 - 8192
    assert one.budget(["anthropic:claude-opus-5-5", "openai:gpt-5"]) == 272_000
    assert one.budget(["anthropic:claude-opus-5-5"]) == 1_000_000 - 8192


def test_fast_role_has_its_own_budget() -> None:
    """Lost if red: a summary that is asked of a small model with a large one's prompt."""
    one = models(PAL_PROVIDERS="anthropic:claude-opus-5-5", PAL_PROVIDERS_FAST="openai:gpt-4o-mini")
    assert one.budget([], "fast") == 128_000 - 8192
    assert one.budget([]) == 1_000_000 - 8192
    assert models(PAL_PROVIDERS="openai:gpt-4o").budget([], "fast") == 128_000 - 8192


def test_model_that_is_not_listed_has_the_window_that_is_set() -> None:
    """Lost if red: a model of one's own, whose window nobody can put into the table."""
    listed, own = ["openai:gpt-4o"], ["openai@my-box:qwen"]
    assert models().budget(own) == 128_000 - 8192
    assert models(PAL_CONTEXT_WINDOW="32768").budget(own) == 32_768 - 8192
    small = models(PAL_PROVIDER_MY_BOX_CONTEXT_WINDOW="4096")
    assert small.budget(own) == 3072
    assert small.budget(own + listed) == 3072
    assert small.budget(listed) == 128_000 - 8192


def test_what_is_set_for_a_provider_wins_over_the_table() -> None:
    """Lost if red: the bound that an operator sets on what a prompt may cost."""
    one = models(PAL_PROVIDER_OPENAI_CONTEXT_WINDOW="16000")
    assert one.budget(["openai:gpt-4o"]) == 12_000
    assert one.budget(["anthropic:claude-haiku-4-5"]) == 200_000 - 8192


def test_stand_in_has_the_window_that_is_set() -> None:
    """Lost if red: first turns, before any model is there."""
    assert models().budget() == 128_000 - 8192
    assert models(PAL_CONTEXT_WINDOW="8192").budget() == 6144


def test_place_that_cannot_be_called_has_a_budget_all_the_same() -> None:
    """Lost if red: every turn of an agent, for one model that an operator took away."""
    assert models().budget(["mistral:a", "openai:", "openai:gpt-4o"]) == 128_000 - 8192


@pytest.mark.parametrize("name", ["PAL_CONTEXT_WINDOW", "PAL_PROVIDER_MY_BOX_CONTEXT_WINDOW"])
def test_window_that_holds_nothing_is_refused(name: str) -> None:
    """Lost if red: a slip of the pen that leaves every prompt without room."""
    for text in ("0", "128k", "1023"):
        with pytest.raises(SettingsError, match=f"^{name} must be a whole number from 1024 to"):
            load_settings({name: text})
