"""A model's answer, read: the one object it holds, and of its items those that may be kept. Pure.

The answer as a whole is read strictly: what is not clearly one answer raises. The items are read
one by one: what is wrong with one drops that one, and is counted.

The rule for `confidence` (no word stands for a number): a number of 0 to 1 counts, and so does the
text of one, such as '0.8'. Everything else is refused: words, '80%', 85, 1.5, -1, true, null,
lists, NaN, Infinity and an item without one. From 0.60 on an item is kept.
"""

import math
import re
import unicodedata
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.memory.distill.shapes import Answer, Item
from chalicelib.memory.topics import fold_topic
from chalicelib.providers.asking import Repeated, UnreadableAnswer, read_object
from chalicelib.texts import is_storable

CONFIDENCE_AT_LEAST: Final = 0.60
TOPIC_AT_MOST: Final = 80
CONTENT_AT_MOST: Final = 500
HINT_AT_MOST: Final = 200
ITEMS_AT_MOST: Final = 40

_YEARS: Final = range(1900, 2201)

_NUMERIC: Final = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_WHOLE: Final = re.compile(r"\d{1,9}", re.ASCII)
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    re.IGNORECASE | re.ASCII,
)


class _Refused(Exception):
    """An item that is not kept; its only argument is the reason."""


def read_answer(text: str) -> Answer:
    """The items of the one object with `distillates` in it.

    Prose, code fences and thoughts around it are passed over. Raises UnreadableAnswer where there
    is no such object, more than one, or one that is cut off. An empty list is an answer.
    """
    given = read_object(text, "distillates")["distillates"]
    if not isinstance(given, list):
        raise UnreadableAnswer("The answer's distillates are no list.")
    return _read_items(given)


def _read_items(given: list[Any]) -> Answer:
    items: list[Item] = []
    dropped: Counter[str] = Counter()
    for one in given:
        try:
            item = _read_item(one)
        except _Refused as exc:
            dropped[exc.args[0]] += 1
            continue
        if len(items) < ITEMS_AT_MOST:
            items.append(item)
        else:
            dropped["too_many"] += 1
    return Answer(items=tuple(items), dropped=dropped)


def _read_item(given: Any) -> Item:
    if not isinstance(given, dict):
        raise _Refused("not_an_object")
    if isinstance(given, Repeated):
        raise _Refused("repeated_name")
    texts = [given.get(name) for name in ("topic", "content", "personHint")]
    if not all(is_storable(text) for text in texts if isinstance(text, str)):
        raise _Refused("unstorable_text")
    return Item(
        topic=_topic(given.get("topic")),
        content=_content(given.get("content")),
        confidence=_confidence(given.get("confidence")),
        person_hint=_hint(given.get("personHint")),
        occurred_at=_time(given.get("occurredAt")),
        line=_line(given.get("line")),
        # of a doubtful one the lower rank is the safer
        inferred=given.get("inferred") not in (None, False),
    )


def _topic(given: Any) -> str:
    topic = _shown(given, "no_topic")
    if len(topic) > TOPIC_AT_MOST:
        raise _Refused("topic_too_long")
    if any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in topic):
        raise _Refused("topic_with_controls")
    if not fold_topic(topic):
        raise _Refused("no_topic")
    return topic


def _content(given: Any) -> str:
    content = _shown(given, "no_content")
    if len(content) > CONTENT_AT_MOST:
        raise _Refused("content_too_long")
    return content


def _shown(given: Any, otherwise: str) -> str:
    """A text without what surrounds it; one of which nothing can be seen is none."""
    text = given.strip() if isinstance(given, str) else ""
    if all(unicodedata.category(each)[0] in "CZ" for each in text[: CONTENT_AT_MOST + 1]):
        raise _Refused(otherwise)
    return text


def _confidence(given: Any) -> float:
    if isinstance(given, str) and _NUMERIC.fullmatch(given.strip()):
        given = float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise _Refused("invalid_confidence")
    if not (math.isfinite(given) and 0 <= given <= 1):
        raise _Refused("invalid_confidence")
    if given < CONFIDENCE_AT_LEAST:
        raise _Refused("low_confidence")
    return float(given)


def _hint(given: Any) -> str | None:
    """Whom the fact is about; refused where that cannot be told, or it would be the speaker's."""
    if given is None:
        return None
    if not isinstance(given, str) or len(given.strip()) > HINT_AT_MOST:
        raise _Refused("invalid_hint")
    return given.strip() or None


def _line(given: Any) -> int | None:
    if isinstance(given, str) and _WHOLE.fullmatch(given.strip()):
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return int(given) if math.isfinite(given) and given == int(given) else None


def _time(given: Any) -> datetime | None:
    """A time or a plain date, UTC where it names no zone; None where it cannot be read."""
    text = given.strip() if isinstance(given, str) else ""
    if not _TIME.fullmatch(text):
        return None
    try:
        time = datetime.fromisoformat(text.upper())
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time.year in _YEARS else None
