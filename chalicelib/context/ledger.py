"""What the parts of a prompt are counted in: its sections, their shares, and what is left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chalicelib.context.shapes import Dropped, Section, Tier
from chalicelib.providers import ModelMessage
from chalicelib.providers.counting import estimate_message, estimate_tokens

FULL: Final = "the budget is used up"
SHARE: Final = "its share of the budget is used up"

_SHARES: Final = {"turns": 0.7, "facts": 0.2, "episodes": 0.1, "narrative": 0.1}
"""The most of the budget that each may take, so that none crowds out the others."""

_OVERHEAD: Final = 8  # of a message, whatever it holds


@dataclass(kw_only=True)
class Ledger:
    """What a prompt comes to, part by part, and what is left out of it.

    `factor` is what estimates are multiplied with.
    """

    factor: float
    budget: int
    before: list[Section] = field(default_factory=list)
    behind: list[Section] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return math.ceil((estimate_tokens(text) + 1) * self.factor) if text else 0

    def count_message(self, message: ModelMessage) -> int:
        """Tokens of a message that a provider may have counted before."""
        return math.ceil(estimate_message(message) * self.factor)

    def count_new(self, message: ModelMessage) -> int:
        """Of what no provider has counted yet: it may be of another kind than what was said."""
        return math.ceil(estimate_message(message) * max(1.0, self.factor))

    def section(
        self, tier: Tier, kind: str, text: str, sources: Sequence[str] = (), *, alone: bool = False
    ) -> Section:
        """A part; `alone` where it is a message of its own, which takes something by itself."""
        tokens = self.count(text) + (math.ceil(_OVERHEAD * self.factor) if alone and text else 0)
        return Section(tier=tier, kind=kind, text=text, tokens=tokens, sources=tuple(sources))

    def drop(self, tier: Tier, ids: Sequence[str], reason: str) -> None:
        """Note what is left out."""
        self.dropped += [Dropped(tier=tier, id=one, reason=reason) for one in ids]

    def share(self, name: str) -> int:
        """The most tokens that this may take."""
        return int(self.budget * _SHARES[name])
