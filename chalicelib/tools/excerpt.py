"""A text that is too long, as its beginning, a note of what is missing, and its end.

Nothing that a reader sees as one character is cut in two: not a letter and its accents, not an
emoji of several parts, not a flag, not a line break of two characters.
"""

import unicodedata
from typing import Final

_JOINER: Final = "\u200d"
# the class of marks that bind an Indic consonant to the next one
_VIRAMA: Final = 9
# a family of emoji has a dozen parts; past this, it is no one's character
_PARTS_AT_MOST: Final = 32
_HEAD_SHARE: Final = 0.75


def clean(text: str) -> str:
    """The text with its halves of surrogate pairs joined, and U+FFFD for lone ones and for NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\x00", "\ufffd")


def excerpt(text: str, *, limit: int) -> str:
    """The text, if it has no more than `limit` characters, else head, note and tail of that size.

    `limit` must leave room for the note, some hundred characters.
    """
    if len(text) <= limit:
        return text
    note = "\n\n[… {} of {} characters left out here …]\n\n"
    room = limit - len(note.format(len(text), len(text)))
    head = cut_before(text, int(room * _HEAD_SHARE))
    tail = _cut_after(text, len(text) - (room - head))
    return text[:head] + note.format(tail - head, len(text)) + text[tail:]


def beginning(text: str, *, limit: int) -> str:
    """The first `limit` characters at most, with … where there are more."""
    return text if len(text) <= limit else text[: cut_before(text, limit - 1)] + "…"


def cut_before(text: str, place: int) -> int:
    """The last place up to this one that is between two characters as a reader sees them."""
    for earlier in range(place, max(place - _PARTS_AT_MOST, 0), -1):
        if not _is_one(text, earlier):
            return earlier
    return place if place > _PARTS_AT_MOST else 0


def _cut_after(text: str, place: int) -> int:
    for later in range(place, min(place + _PARTS_AT_MOST, len(text))):
        if not _is_one(text, later):
            return later
    return place


def _is_one(text: str, place: int) -> bool:
    """Whether what stands before and after this place is seen as one character."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if before == "\r" and after == "\n":
        return True
    if after == _JOINER or before == _JOINER or _is_mark(after):
        return True
    if unicodedata.combining(before) == _VIRAMA:
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):
        start = place
        while start > 0 and _is_flag_letter(text[start - 1]):
            start -= 1
        return (place - start) % 2 == 1
    return False


def _is_mark(char: str) -> bool:
    # skin tones, and the letters of a subdivision's flag
    return (
        unicodedata.category(char) in {"Mn", "Mc", "Me"}
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
    )


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
