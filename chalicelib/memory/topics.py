"""Topics and contents in the form they are compared in. Pure."""

import hashlib
import unicodedata
from typing import Final

from chalicelib.memory.handles import fold_name

_FOLDED_AT_MOST: Final = 200
_APART: Final = "\x1f"  # no folded text holds one: to `split` it is a space


def fold_topic(topic: str) -> str:
    """Two spellings of a topic are one where these are: by case, width, spaces and `_`."""
    folded = unicodedata.normalize("NFKC", topic).casefold().replace("_", " ")
    # cut as a name is: an index takes only so much
    return " ".join(folded.split())[:_FOLDED_AT_MOST]


def unattached_key(topic: str, *, name: str, place: str) -> str:
    """The key of a topic of someone who is not known; never one of what is about no one at all.

    So no stranger's word takes the place of what a caller has had remembered. `name` is what they
    are called: it keeps one friend's facts from another's; of whoever speaks it is empty. `place`
    keeps two people's friends of one name apart: in private it is who speaks, in a group, whose
    members mean the same one, it is empty.
    """
    return _APART.join((fold_topic(topic), fold_name(name), place))


def moved_key(key: str, *, place: str, to: str) -> str:
    """A key with another place, if it is of that place: one whose id this was has been merged."""
    parts = key.split(_APART)
    return _APART.join((*parts[:-1], to)) if parts[1:] and parts[-1] == place else key


def fold_content(content: str) -> str:
    """Two contents say the same where these are equal: by case, width, spaces and a last stop."""
    folded = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return folded.rstrip(".!。") or folded


def content_key(content: str) -> bytes:
    """What a forgotten content is known by, without its words: SHA-256 of the folded text."""
    return hashlib.sha256(fold_content(content).encode()).digest()
