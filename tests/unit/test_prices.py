"""What an answer cost: the rules of the table, and the table itself."""

import subprocess
import sys
import tomllib
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from chalicelib.providers.prices import Price, cost_usd, table

DAY = date(2026, 11, 30)
FIELDS = {"provider", "models", "from", "up_to", "input", "cached", "cache_write", "output"}


def cost(provider: str, model: str, **changes: Any) -> float | None:
    """What a thousand tokens in and out cost, unless changed."""
    usual: dict[str, Any] = {
        "tokens_in": 1000,
        "tokens_out": 1000,
        "tokens_cached": None,
        "tokens_cache_written": None,
        "at": DAY,
    }
    return cost_usd(provider=provider, model=model, **(usual | changes))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    text = Path(__file__).parents[2].joinpath("chalicelib/providers/prices.toml").read_text()
    rows = tomllib.loads(text)["price"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(
    ("provider", "model", "changes", "expected"),
    [
        pytest.param("anthropic", "claude-haiku-4-5", {}, 0.006, id="input-and-output"),
        pytest.param("anthropic", "claude-haiku-4-5-20251001", {}, 0.006, id="a-dated-id"),
        pytest.param(
            "anthropic",
            "claude-haiku-4-5",
            {"tokens_in": 10_000, "tokens_cached": 6000, "tokens_cache_written": 3000},
            0.001 + 0.0006 + 0.00375 + 0.005,
            id="each-kind-of-input-at-its-own-price",
        ),
        pytest.param(
            "openai",
            "gpt-4o-mini",
            {"tokens_in": 2_000_000, "tokens_cached": 1_000_000, "tokens_out": 1_000_000},
            0.15 + 0.075 + 0.60,
            id="cached-input-is-part-of-the-input",
        ),
        pytest.param("openai", "gpt-4o-mini", {"tokens_out": 0}, 0.00015, id="no-output"),
        pytest.param("bedrock", "us.amazon.nova-micro-v1:0", {}, 0.000175, id="a-profile"),
        pytest.param(
            "bedrock", "global.anthropic.claude-haiku-4-5-20251001-v1:0", {}, 0.006, id="global"
        ),
        pytest.param(
            "bedrock", "eu.anthropic.claude-haiku-4-5-20251001-v1:0", {}, 0.0066, id="regional"
        ),
        pytest.param(
            "bedrock",
            "arn:aws:bedrock:us-east-1:111122223333:inference-profile/us.amazon.nova-micro-v1:0",
            {},
            0.000175,
            id="a-profile-by-its-arn",
        ),
    ],
)
def test_known_use_has_its_price(
    provider: str, model: str, changes: dict[str, Any], expected: float
) -> None:
    """Lost if red: what a turn is said to have cost."""
    assert cost(provider, model, **changes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("provider", "model", "changes"),
    [
        pytest.param("openai", "gpt-4o-mini-2031-01-01", {}, id="an-unknown-date"),
        pytest.param("openai", "gpt-4o-mini-mine", {}, id="a-longer-name"),
        pytest.param("openai", "GPT-4o-mini", {}, id="another-case"),
        pytest.param("openai", "", {}, id="no-model"),
        pytest.param("openai@groq", "gpt-4o-mini", {}, id="another-vendor-on-the-wire"),
        pytest.param("anthropic", "gpt-4o-mini", {}, id="another-provider"),
        pytest.param("offline", "echo", {}, id="the-stand-in"),
        pytest.param("bedrock", "amazon.nova-micro-v1:0", {}, id="priced-by-region"),
        pytest.param("bedrock", "us-gov.amazon.nova-micro-v1:0", {}, id="an-unlisted-profile"),
        pytest.param(
            "bedrock",
            "arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/us.amazon.nova-micro-v1:0",
            {},
            id="a-profile-of-somebody's",
        ),
        pytest.param("openai", "gpt-4o-mini", {"tokens_in": None}, id="unknown-input"),
        pytest.param("openai", "gpt-4o-mini", {"tokens_out": None}, id="unknown-output"),
        pytest.param("openai", "gpt-4o-mini", {"tokens_cache_written": 1}, id="unpriced-write"),
        pytest.param(
            "bedrock",
            "us.meta.llama3-3-70b-instruct-v1:0",
            {"tokens_cached": 1},
            id="unpriced-read",
        ),
        pytest.param("openai", "gpt-4o-mini", {"tokens_cached": 1001}, id="more-cached-than-sent"),
        pytest.param("openai", "gpt-4o-mini", {"tokens_out": -1}, id="less-than-nothing"),
        pytest.param(
            "openai", "gpt-4o-mini", {"at": date(2020, 1, 1)}, id="before-the-first-price"
        ),
        pytest.param("openai", "gpt-6-astra", {"tokens_in": 272_001}, id="longer-than-any-price"),
    ],
)
def test_unknown_use_has_no_price(provider: str, model: str, changes: dict[str, Any]) -> None:
    """Lost if red: an invented sum in somebody's accounts."""
    assert cost(provider, model, **changes) is None


def test_use_has_the_price_of_its_day() -> None:
    """Lost if red: yesterday's turns at today's price, or today's at yesterday's."""
    read = {"tokens_cached": 1000, "tokens_out": 0}
    cut = date(2026, 10, 7)
    before = cost("anthropic", "claude-sonnet-5-5", at=cut - timedelta(days=1), **read)
    assert before == pytest.approx(0.0002)
    for day in (cut, cut + timedelta(days=1), DAY):
        assert cost("anthropic", "claude-sonnet-5-5", at=day, **read) == pytest.approx(0.0001)


@pytest.mark.parametrize(
    ("tokens_in", "per_token"),
    [(1, 0.10e-6), (99_999, 0.10e-6), (100_000, 0.10e-6), (100_001, 0.50e-6), (900_000, 0.50e-6)],
)
def test_long_prompt_has_the_price_of_a_long_one(tokens_in: int, per_token: float) -> None:
    """Lost if red: long prompts told at a fifth of what they cost."""
    told = cost("anthropic", "claude-haiku-5-5", tokens_in=tokens_in, tokens_out=0)
    assert told == pytest.approx(tokens_in * per_token)


def test_every_row_is_whole_and_means_one_thing(rows: list[dict[str, Any]]) -> None:
    """Lost if red: a slip of the pen in the table, which nobody sees in the sums."""
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        assert set(row) <= FIELDS
        assert isinstance(row["from"], date)
        assert row["from"] <= DAY
        assert row["models"]
        assert 0 < row["input"] <= row["output"]
        assert 0 < row.get("cached", row["input"]) <= row["input"]
        assert row["input"] < row.get("cache_write", 1.25 * row["input"]) <= 2 * row["input"]
        for model in row["models"]:
            key = (row["provider"], model, row["from"], row.get("up_to"))
            assert key not in seen
            seen.add(key)


def test_regional_profiles_of_claude_cost_a_tenth_more(rows: list[dict[str, Any]]) -> None:
    """Lost if red: a regional profile told at the global price, or a slip between the two."""
    by_model: dict[tuple[str, date, int | None], Price] = {
        (model, price.since, price.up_to): price
        for (provider, model), prices in table().items()
        for price in prices
        if provider == "bedrock"
    }
    world = {key: one for key, one in by_model.items() if key[0].startswith("global.anthropic.")}
    assert world
    for (model, since, up_to), price in world.items():
        for place in ("us", "eu", "jp", "au"):
            regional = by_model[(model.replace("global", place, 1), since, up_to)]
            for name in ("input", "output", "cached", "cache_write"):
                assert getattr(regional, name) * 10 == getattr(price, name) * 11


def test_table_is_read_when_a_price_is_asked_for_and_once() -> None:
    """Lost if red: milliseconds of every cold start, or of every turn."""
    program = (
        "import sys, builtins\n"
        "from datetime import date\n"
        "from pathlib import Path\n"
        "reads = []\n"
        "sys.addaudithook(lambda name, args: name == 'open' and str(args[0]).endswith('.toml')"
        " and reads.append(args[0]))\n"
        "from chalicelib.providers.prices import cost_usd\n"
        "before = len(reads)\n"
        "for _ in range(2):\n"
        "    told = cost_usd(provider='openai', model='gpt-4o-mini', tokens_in=1, tokens_out=1,\n"
        "        tokens_cached=0, tokens_cache_written=0, at=date(2026, 11, 30))\n"
        "    assert told is not None\n"
        "print(before, len(reads))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["0", "1"]
