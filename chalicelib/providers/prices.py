"""What an answer cost, from the table `prices.toml` beside this file; None is never a guess."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final

_TABLE: Final = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, kw_only=True)
class Price:
    """USD per million tokens from a day on, for prompts of at most `up_to` tokens if that is set.

    `cached` and `cache_write` are None where the vendor has no such price or it is not known.
    """

    since: date
    up_to: int | None
    input: Decimal
    output: Decimal
    cached: Decimal | None
    cache_write: Decimal | None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Price":
        """A row of the table; raises LookupError or ArithmeticError for one that lacks a price."""
        return cls(
            since=row["from"],
            up_to=row.get("up_to"),
            input=Decimal(row["input"]),
            output=Decimal(row["output"]),
            cached=_optional(row.get("cached")),
            cache_write=_optional(row.get("cache_write")),
        )


def cost_usd(
    *,
    provider: str,
    model: str,
    tokens_in: int | None,
    tokens_out: int | None,
    tokens_cached: int | None,
    tokens_cache_written: int | None,
    at: date,
) -> float | None:
    """What this use cost by the list price of that day, in USD; None where that is not known.

    `tokens_in` counts all input. A count of the cache that is None is none: a vendor that says
    nothing of a cache used none. Raises nothing, also for counts that contradict each other.
    """
    if tokens_in is None or tokens_out is None:
        return None
    cached, written = tokens_cached or 0, tokens_cache_written or 0
    price = _price(provider, model, at=at, tokens_in=tokens_in)
    if price is None or min(tokens_out, cached, written, tokens_in - cached - written) < 0:
        return None
    if (cached and price.cached is None) or (written and price.cache_write is None):
        return None
    millionths = (
        (tokens_in - cached - written) * price.input
        + cached * (price.cached or 0)
        + written * (price.cache_write or 0)
        + tokens_out * price.output
    )
    return float(millionths / 1_000_000)


def writes_cache(provider: str, model: str) -> bool:
    """Whether the vendor is known to take a price for what it writes to this model's cache."""
    listed = table().get((provider, listed_model(model)), ())
    return any(price.cache_write is not None for price in listed)


def _price(provider: str, model: str, *, at: date, tokens_in: int) -> Price | None:
    listed = table().get((provider, listed_model(model)), ())
    begun = [price for price in listed if price.since <= at]
    newest = max((price.since for price in begun), default=None)
    fitting = [
        price
        for price in begun
        if price.since == newest and (price.up_to is None or tokens_in <= price.up_to)
    ]
    return min(fitting, key=lambda price: price.up_to or math.inf, default=None)


def listed_model(model: str) -> str:
    """A model's name as the tables have it."""
    # an ARN of Bedrock that names one of its own profiles; those of a user hide their model
    return model.rpartition("/")[2] if ":inference-profile/" in model else model


@cache
def table() -> Mapping[tuple[str, str], tuple[Price, ...]]:
    """Every price of a provider's model, as the file has them; read at the first call."""
    rows = tomllib.loads(_TABLE.read_text(), parse_float=Decimal)["price"]
    found: dict[tuple[str, str], tuple[Price, ...]] = {}
    for row in rows:
        for model in row["models"]:
            key = (row["provider"], model)
            found[key] = (*found.get(key, ()), Price.read(row))
    return found


def _optional(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)
