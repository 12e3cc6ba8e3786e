"""The days and months that a question names. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from chalicelib.memory.search.months import AMBIGUOUS, MONTHS

_DAY: Final = 86_400
_ISO: Final = re.compile(r"\b(\d{4})-(\d{1,2})(?:-(\d{1,2}))?\b")
_HAN: Final = re.compile(r"(?:(\d{4})\s*年)?\s*(\d{1,2})\s*月(?:\s*(\d{1,2})\s*日)?")
_TOKEN: Final = re.compile(r"[^\W\d_]+|\d+")
_AGO: Final = re.compile(
    r"\b(\d{1,3}|an?|one|two|three|four|five|six)\s+(day|week|month)s?\s+ago\b"
)
_COUNTS: Final = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_LAST: Final = re.compile(r"\b(yesterday|today|(?:last|this)\s+(?:week|month))\b")
_BETWEEN: Final = frozenset({"of", "de", "st", "nd", "rd", "th"})


@dataclass(frozen=True, kw_only=True)
class Period:
    """A time that was asked for. Without a year, any year's; `day` None: the whole month."""

    year: int | None
    month: int
    day: int | None = None

    def nearness(self, at: int) -> float:
        """1 in the named month, 1.5 in the week behind a named day (or the day before); else 0.

        People tell of a day in the days after it. `at` is in seconds since 1970.
        """
        told = datetime.fromtimestamp(at, UTC)
        if self.day is not None:
            try:
                named = datetime(self.year or told.year, self.month, self.day, tzinfo=UTC)
            except ValueError:
                return 0.0  # 30 February
            if -_DAY <= at - named.timestamp() < 8 * _DAY:
                return 1.5
        return float(told.month == self.month and self.year in (None, told.year))


def find_periods(text: str, *, now: datetime) -> list[Period]:
    """What a text names of days and months, relative ones from `now`; at most eight."""
    folded = text.lower()
    found = [*_written(folded), *_numbered(folded), *_relative(folded, now)]
    return list(dict.fromkeys(found))[:8]


def _numbered(text: str) -> Iterator[Period]:
    for pattern in (_ISO, _HAN):
        for year, month, day in pattern.findall(text):
            if 1 <= int(month) <= 12:
                yield Period(
                    year=int(year) if year else None,
                    month=int(month),
                    day=int(day) if day and 1 <= int(day) <= 31 else None,
                )


def _written(text: str) -> Iterator[Period]:
    words = [one for one in _TOKEN.findall(text) if one not in _BETWEEN]
    for place, word in enumerate(words):
        if word not in MONTHS:
            continue
        before = words[place - 1] if place else ""
        after = words[place + 1 : place + 3]
        day = _day(before)
        if day is None and after and (day := _day(after[0])) is not None:
            after = after[1:]
        year = next((int(one) for one in after[:1] if re.fullmatch(r"(19|20)\d\d", one)), None)
        if word in AMBIGUOUS and day is None and year is None and before not in ("in", "during"):
            continue
        yield Period(year=year, month=MONTHS[word], day=day)


def _day(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and 1 <= int(word) <= 31 else None


def _relative(text: str, now: datetime) -> Iterator[Period]:
    for count, unit in _AGO.findall(text):
        number = _COUNTS.get(count) or int(count)
        if unit == "month":
            yield _month(now, -number)
        else:
            yield _of_day(now - timedelta(days=number * (7 if unit == "week" else 1)))
    for word in _LAST.findall(text):
        if word == "yesterday":
            yield _of_day(now - timedelta(days=1))
        elif word == "today":
            yield _of_day(now)
        elif word.endswith("week"):
            yield _of_day(now - timedelta(days=7 if word.startswith("last") else now.weekday()))
        else:
            yield _month(now, -1 if word.startswith("last") else 0)


def _of_day(day: datetime) -> Period:
    return Period(year=day.year, month=day.month, day=day.day)


def _month(now: datetime, by: int) -> Period:
    months = now.year * 12 + now.month - 1 + by
    return Period(year=months // 12, month=months % 12 + 1)
