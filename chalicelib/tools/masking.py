"""Keeps a turn's secrets out of what its tools say.

Whatever secret a tool was given during a turn is known here, in the spellings in which a server
could send it back, and becomes `***` in every result and error of that turn.
"""

import html
import json
import re
from typing import Final
from urllib.parse import quote, quote_plus

from chalicelib.tools.headers import ReadSecret

MASK: Final = "***"
# what is shorter hides nothing, and stands in every text
_SHORTEST: Final = 4
_SHORTEST_WORD: Final = 8


class Masking:
    """The secrets that were read through it, and texts without them."""

    def __init__(self, read: ReadSecret) -> None:
        self._read = read
        self._spellings: set[str] = set()

    async def secret(self, tenant_id: str, name: str) -> str | None:
        """The tenant's secret, from now on masked."""
        value = await self._read(tenant_id, name)
        for part in _parts((value or "").strip()):
            self._spellings |= _spellings(part)
        return value

    def mask(self, text: str, *, cut: bool = False) -> str:
        """The text without any secret; `cut` says that it ends early, maybe within one."""
        if not self._spellings:
            return text
        longest_first = sorted(self._spellings, key=len, reverse=True)
        masked = re.sub("|".join(map(re.escape, longest_first)), MASK, text)
        if cut:
            for spelling in longest_first:
                for length in range(min(len(spelling) - 1, len(masked)), _SHORTEST - 1, -1):
                    if masked.endswith(spelling[:length]):
                        return masked[:-length] + MASK
        return masked


def _parts(secret: str) -> list[str]:
    # of `Bearer abc…` a server may send back the latter only
    words = [word for word in secret.split() if len(word) >= _SHORTEST_WORD]
    return [part for part in {secret, *words} if len(part) >= _SHORTEST]


def _spellings(secret: str) -> set[str]:
    in_json = json.dumps(secret)[1:-1]
    return {
        secret,
        in_json,
        in_json.replace("/", "\\/"),
        json.dumps(secret, ensure_ascii=False)[1:-1],
        html.escape(secret),
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
    }
