"""Made-up conversations: words as often as in a language, the same for every run."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate

_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
_COMMON = (
    "the",
    "a",
    "and",
    "to",
    "of",
    "in",
    "I",
    "you",
    "it",
    "was",
    "that",
    "for",
    "with",
    "my",
)
_NAMES = [first + last for first in ("An", "Be", "Ca", "Da", "El", "Fi") for last in ("ra", "lio")]


@dataclass(frozen=True, kw_only=True)
class Said:
    """A message: who said it in which group, when, and its own words (no common ones)."""

    group: str
    name: str
    text: str
    words: tuple[str, ...]
    at: datetime


class Language:
    """Twenty thousand words whose frequency falls with their rank, as in Zipf's law."""

    def __init__(self, seed: int, size: int = 20_000) -> None:
        self._random = random.Random(seed)
        made: dict[str, None] = {}
        while len(made) < size:
            count = self._random.choice((2, 2, 3, 3, 4))
            made[
                "".join(self._random.choices(_SYLLABLES, k=count)) + self._random.choice("lnrst")
            ] = None
        self.words = list(made)
        self._weights = list(accumulate(1 / (rank + 8) for rank in range(size)))

    def draw(self, count: int) -> list[str]:
        """So many words, the common ones more often."""
        return self._random.choices(self.words, cum_weights=self._weights, k=count)

    def conversation(self, group: str, count: int) -> Iterator[Said]:
        """So many messages of two people, in sittings of about twenty."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=self._random.randrange(500_000))
        names = self._random.sample(_NAMES, 2)
        for number in range(count):
            at += timedelta(hours=30) if number and number % 20 == 0 else timedelta(seconds=20)
            words = self.draw(self._random.randint(5, 16))
            text = " ".join(part for word in words for part in (self._random.choice(_COMMON), word))
            yield Said(
                group=group,
                name=names[number % 2],
                text=text + self._random.choice(".....?"),
                words=tuple(words),
                at=at,
            )

    def question(self, said: Said) -> str:
        """What this message may be the answer to."""
        kept = self._random.sample(said.words, min(len(said.words), self._random.randint(2, 4)))
        return f"What did {said.name} {' '.join(kept + self.draw(1))} in that?"
