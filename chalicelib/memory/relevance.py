"""How much a short text has to do with what someone says: words they share, rare ones more. Pure.

Words are compared without case, width and marks; those of one stem count in part. Scripts that put
no spaces between words are compared by characters and pairs of them.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

# Thai, Lao, Tibetan, Burmese, Khmer, kana, Han; Hangul has spaces, but words that end in particles
_RUN: Final = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua000-\ua48f\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORDS: Final = re.compile(rf"[{_RUN}]+|[^\W_{_RUN}]+")
_IS_RUN: Final = re.compile(rf"[{_RUN}]")
_APART: Final = {code: " " for code in range(128) if not chr(code).isalnum()}

_READ_AT_MOST: Final = 2000
_ASKED_AT_MOST: Final = 200
_STEM: Final = 3
_ALIKE: Final = 0.6
_HALF: Final = 2.0
_SHORT: Final = 500
_NONE: Final[frozenset[str]] = frozenset()


def terms(text: str) -> Iterable[str]:
    """What the text is compared by, in its order, as often as it comes."""
    if text.isascii():
        # by far the most, and each turn has hundreds
        return text.lower().translate(_APART).split()
    apart = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(one for one in apart if not unicodedata.category(one).startswith("M"))
    return _spread(unicodedata.normalize("NFKC", bare))


def _spread(plain: str) -> Iterator[str]:
    for word in _WORDS.findall(plain):
        if _IS_RUN.match(word):
            yield from word
            yield from (one + other for one, other in pairwise(word))
        else:
            yield word


def relevances(asked: str, texts: Sequence[str]) -> list[float]:
    """How much each text has to do with `asked`, from 0 (nothing) to nearly 1.

    Of a long `asked` its beginning and its end count.
    """
    wanted = _wanted(asked)
    if not wanted:
        return [0.0] * len(texts)
    # the others are like none of them
    stems = {term[:_STEM] for term in wanted}
    found = [_shared(text, stems) for text in texts]
    spread = Counter(term for one in found for term in one)
    by_stem: dict[str, list[str]] = defaultdict(list)
    for term in spread:
        by_stem[term[:_STEM]].append(term)
    worth: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, term in enumerate(wanted):
        for other in by_stem.get(term[:_STEM], ()):
            if like := _likeness(term, other):
                worth[other].append((place, like * _weight(other, spread[other], len(texts))))
    return [_score(one, worth) for one in found]


def _shared(text: str, stems: set[str]) -> frozenset[str]:
    """The words of the text that have one of these stems."""
    words = _known(text) if len(text) <= _SHORT else _by_stem(text)
    found = [one for stem in words.keys() & stems for one in words[stem]]
    return frozenset(found) if found else _NONE


def _by_stem(text: str) -> dict[str, tuple[str, ...]]:
    """The text's words, each once, by their stems."""
    words: dict[str, tuple[str, ...]] = {}
    for one in dict.fromkeys(terms(text)):
        words[one[:_STEM]] = (*words.get(one[:_STEM], ()), one)
    return words


# the same hundreds are compared with each message of a session
_known = lru_cache(maxsize=2048)(_by_stem)


def _score(found: frozenset[str], worth: dict[str, list[tuple[int, float]]]) -> float:
    if not found:
        return 0.0
    best: dict[int, float] = {}
    for term in worth.keys() & found:
        for place, value in worth[term]:
            best[place] = max(value, best.get(place, 0.0))
    score = math.fsum(best.values())  # the same in any order, as that of a set is any
    return score / (score + _HALF)


def _wanted(asked: str) -> list[str]:
    if len(asked) > 2 * _READ_AT_MOST:
        asked = f"{asked[:_READ_AT_MOST]} {asked[-_READ_AT_MOST:]}"
    distinct = list(dict.fromkeys(terms(asked)))
    if len(distinct) > _ASKED_AT_MOST:
        distinct = distinct[: _ASKED_AT_MOST // 2] + distinct[-_ASKED_AT_MOST // 2 :]
    return distinct


def _likeness(term: str, other: str) -> float:
    """1 for the same word, less for one that begins as it does, 0 for another."""
    if term == other:
        return 1.0
    if min(len(term), len(other)) <= _STEM:
        return 0.0
    shared = 0
    for one, two in zip(term, other, strict=False):
        if one != two:
            break
        shared += 1
    share = shared / max(len(term), len(other))
    return share * share if share >= _ALIKE else 0.0


def _weight(term: str, spread: int, count: int) -> float:
    """What a word is worth: the rarer, the more; short ones are mostly the grammar's."""
    rarity = math.log(1 + (count - spread + 0.5) / (spread + 0.5))
    if _IS_RUN.match(term):
        return rarity * (0.6 if len(term) == 1 else 1.0)
    return rarity * min(1.0, len(term) / 4) ** 2
