"""What is taken over from a provider's words: clean text, safe names, plausible counts.

A provider may send what JSON can say and Postgres cannot hold, or what no log should. Every wire
reads through this.
"""

import json
import re
from typing import Any, Final

import orjson

from chalicelib.errors import ProviderUnavailable

# a name of a thing, never a text
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_COUNT_AT_MOST: Final = 2**31 - 1
_FENCED: Final = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def safe_name(value: object) -> str:
    """This value where it is a short name or number that may be shown and logged, else empty."""
    text = str(value) if isinstance(value, str | int) else ""
    return text if _NAME.fullmatch(text) else ""


def count(value: object) -> int | None:
    """This value where it is a count that a column can hold, else None."""
    return value if type(value) is int and 0 <= value <= _COUNT_AT_MOST else None


class TextCleaner:
    """Makes the pieces of a text storable; one per text.

    Two halves of a surrogate pair are joined, also over two pieces; a half alone and NUL become
    U+FFFD. No piece that is given out holds half a pair.
    """

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """The clean text of this piece; a high half at its end waits for the next one."""
        text, self._half = self._half + piece, ""
        if _UNSTORABLE.search(text) is None:
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return paired.replace("\0", "\ufffd")

    def end(self) -> str:
        """What is left when no more pieces come: empty, or U+FFFD for a half that waited."""
        left, self._half = "\ufffd" if self._half else "", ""
        return left


def clean_text(text: str) -> str:
    """A text that came whole, made storable."""
    cleaner = TextCleaner()
    return cleaner.feed(text) + cleaner.end()


def unfenced(text: str) -> str:
    """The JSON of an answer, out of the code fence that a model likes to put around it."""
    fenced = _FENCED.fullmatch(text)
    return fenced[1] if fenced else text


def parse_json(payload: bytes, told: str) -> Any:
    """The value of this JSON; half surrogates stay in it and broken UTF-8 becomes U+FFFD.

    Raises ProviderUnavailable, with `told` (`provider:model`) as its subject, where it is no JSON.
    """
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as exc:
        # orjson is strict; half a surrogate pair and broken UTF-8 are no end of an answer
        try:
            return json.loads(payload.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise ProviderUnavailable(f"{told} sent what is no JSON.") from exc
