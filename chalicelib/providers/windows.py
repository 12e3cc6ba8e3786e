"""How much a model takes at once, from the table `windows.toml` beside this file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from chalicelib.providers.prices import listed_model

_TABLE: Final = Path(__file__).with_name("windows.toml")

_RESERVE_AT_MOST: Final = 8192
"""Kept free for an answer; few are longer, and a window is not to be half empty for them."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Tokens: `context` for input and output together, and the most of each where that is known."""

    context: int
    output: int | None = None
    input: int | None = None

    @property
    def budget(self) -> int:
        """What a request may take, so that there is room for its answer."""
        reserve = min(self.output or _RESERVE_AT_MOST, _RESERVE_AT_MOST, self.context // 4)
        return min(self.context - reserve, self.input or self.context)


def window_of(provider: str, model: str) -> Window | None:
    """The window of a provider's model; None where the table does not name it."""
    return table().get((provider, listed_model(model)))


@cache
def table() -> Mapping[tuple[str, str], Window]:
    """Every window of a provider's model, as the file has them; read at the first call."""
    rows = tomllib.loads(_TABLE.read_text())["window"]
    return {
        (row["provider"], model): Window(
            context=row["context"], output=row.get("output"), input=row.get("input")
        )
        for row in rows
        for model in row["models"]
    }
