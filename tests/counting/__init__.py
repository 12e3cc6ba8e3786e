"""Texts of many kinds, and what real tokenizers count for them.

The texts were written for this; `figures.json` is made by `scripts/calibrate-counting`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SHORT = 50

_PIECE = re.compile(rf"(?s)\s*(?:.{{1,{SHORT}}}(?=\s|\Z)|.{{1,{SHORT}}})")


def corpus() -> dict[str, str]:
    """The texts by their names."""
    files = sorted((FOLDER / "corpus").glob("*.txt"))
    return {one.stem: one.read_bytes().decode() for one in files}


def short_messages(text: str) -> list[str]:
    """The text as messages of about fifty characters, cut between words where there are any."""
    return [piece for one in _PIECE.findall(text) if (piece := one.strip())]


def figures() -> Mapping[str, Any]:
    """By the names of the texts, what each tokenizer counts for the whole and the messages."""
    found: Mapping[str, Any] = json.loads((FOLDER / "figures.json").read_text())
    return found
