"""What a query asks for: terms of one or more word forms, and the words a name may be. Pure."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from chalicelib.memory.search.english import FORMS

TERMS_AT_MOST: Final = 24

_WORD: Final = re.compile(r"[^\W_]+")
_ALIKE: Final = 0.75


@dataclass(frozen=True, kw_only=True)
class Query:
    """A text to search for: `terms` are lexemes that count as one, `words` the text's own."""

    text: str
    terms: tuple[tuple[str, ...], ...]
    words: frozenset[str]

    def flat(self, parts: Iterable[int] | None = None) -> tuple[list[str], list[int]]:
        """The terms' lexemes, all or those of some, and the number of the term of each."""
        chosen = range(len(self.terms)) if parts is None else sorted(parts)
        pairs = [(lexeme, part) for part in chosen for lexeme in self.terms[part]]
        return [one for one, _ in pairs], [part for _, part in pairs]


def read_query(text: str, lexemes: Sequence[str]) -> Query:
    """The query of a text whose lexemes are these; the longest ones, if they are too many."""
    if len(lexemes) > TERMS_AT_MOST:
        lexemes = sorted(lexemes, key=lambda one: (-len(one), one))[:TERMS_AT_MOST]
    terms: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for lexeme in sorted(lexemes):
        if lexeme not in seen:
            forms = FORMS.get(lexeme, (lexeme,))
            seen.update(forms)
            terms.append(forms)
    return Query(text=text, terms=tuple(terms), words=frozenset(words_of(text)))


def words_of(text: str) -> list[str]:
    """The words of a text, folded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def is_named(name: str | None, words: frozenset[str]) -> bool:
    """Whether one of the words is (nearly) one of the name, or short for it."""
    return any(_is_short_or_alike(word, part) for part in words_of(name or "") for word in words)


def _is_short_or_alike(word: str, part: str) -> bool:
    if word == part:
        return True
    if len(word) < 3 or len(part) < 4:
        return False
    if part.startswith(word):
        return len(word) * 2 >= len(part)
    # written wrong, and not another name or a longer word: "Mario" is not Maria
    if min(len(word), len(part)) < 6 or word[:2] != part[:2] or word.startswith(part):
        return False
    return SequenceMatcher(None, word, part).ratio() >= _ALIKE
