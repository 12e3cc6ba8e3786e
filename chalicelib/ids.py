"""Identifiers: `<prefix>_<26 lower-case Crockford base32 characters>`, sortable by time.

The 26 characters are 48 bits of milliseconds since 1970 and 80 random bits, the layout of a
ULID. Ids made in one process within one millisecond still ascend: the random part is counted
up instead of drawn again, because the order of a turn's messages is the order of their ids.
"""

import re
import secrets
import threading
import time
from typing import Final, Literal

Prefix = Literal[
    "sess",
    "tur",
    "msg",
    "call",
    "agt",
    "apr",
    "key",
    "ten",
    "per",
    "evt",
    "mem",
    "epi",
    "nar",
    "cand",
    "vm",
]

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS: Final = 80
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
_SHAPE: Final = re.compile(rf"[a-z]{{2,5}}_[0-7][{_ALPHABET}]{{25}}")

_lock = threading.Lock()
_last = 0


def new_id(prefix: Prefix) -> str:
    """A fresh id, greater than every id this process made before."""
    global _last
    fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    with _lock:
        same_or_earlier_ms = fresh >> _RANDOM_BITS <= _last >> _RANDOM_BITS
        _last = _last + 1 if same_or_earlier_ms else fresh
        value = _last
    return f"{prefix}_{_encode(value)}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` has the form of an id with this prefix; says nothing of its existence."""
    return text.startswith(prefix + "_") and _SHAPE.fullmatch(text) is not None


def _encode(value: int) -> str:
    # 26 characters carry 130 bits; two at a time halves the work of the most called function here
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])
