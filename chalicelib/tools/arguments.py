"""What a model sends as a call's arguments: from text to an object that fits, or words why not.

The words go back to the model, which can then call again: they name the place and the reason.
"""

import json
import math
from typing import Any, Final, NoReturn

from chalicelib.texts import is_storable
from chalicelib.tools.schema import Checker

_CHARACTERS_AT_MOST: Final = 100_000
# past the range of a float sums and divisions of other programs fail
_DIGITS_AT_MOST: Final = 300


class ArgumentsRefused(Exception):
    """The arguments cannot be used; the text is for the model."""


def read_arguments(text: str, *, checker: Checker) -> dict[str, Any]:
    """The arguments as an object; nothing, blanks and `null` are none. Raises ArgumentsRefused."""
    if len(text) > _CHARACTERS_AT_MOST:
        raise ArgumentsRefused(
            f"The arguments are {len(text)} characters long; "
            f"at most {_CHARACTERS_AT_MOST} can be taken."
        )
    arguments = _parse(text)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ArgumentsRefused("The arguments must be a JSON object.")
    if problems := checker.problems(arguments):
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise ArgumentsRefused(f"The arguments do not fit the tool's schema:{listed}")
    return arguments


def _parse(text: str) -> Any:
    if not text.strip():
        return None
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_float, parse_int=_int)
        if not _is_storable(value):
            raise ArgumentsRefused("The arguments hold NUL or half of a surrogate pair.")
    except json.JSONDecodeError as exc:
        raise ArgumentsRefused(
            f"The arguments are no JSON: {exc.msg} at character {exc.pos + 1}."
        ) from None
    except RecursionError:
        raise ArgumentsRefused("The arguments are nested too deeply.") from None
    return value


def _is_storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_storable(name) and _is_storable(part) for name, part in value.items())
    if isinstance(value, list):
        return all(map(_is_storable, value))
    return not isinstance(value, str) or is_storable(value)


def _no_number(word: str) -> NoReturn:
    raise ArgumentsRefused(f"The arguments hold {word}, which is no JSON number.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ArgumentsRefused("The arguments hold a number that is too large.")
    return value


def _int(text: str) -> int:
    if len(text) > _DIGITS_AT_MOST:
        raise ArgumentsRefused("The arguments hold a number that is too large.")
    return int(text)
