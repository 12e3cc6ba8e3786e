"""What a program asks a model: how the material is told, and how the answer is read.

What people wrote is told as JSON, an object a line. No text can end its own line, so none can pass
for another message, another speaker or the end of the material. An answer as a whole is read
strictly: what is not clearly one answer raises.
"""

import json
import re
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Final

from chalicelib.providers.base import Finished, ModelRequest, Provider, TextDelta

_ANSWER_AT_MOST: Final = 400_000  # characters; 40 facts of the longest, all escaped, are 150,000
_STEPS_AT_MOST: Final = 4_000_000  # characters read in vain, where brace follows upon brace
_FAILURES_AT_MOST: Final = 2_000  # each counts the lines before it

_BRACKET: Final = re.compile(r"[{\[]")
_BEGUN: Final = re.compile(r'\{\s*"')
_THOUGHT: Final = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
# JSON leaves these as they are, and some readers begin a line behind them
_BREAKS: Final = {ord(each): f"\\u{ord(each):04x}" for each in "\x7f\x85\u2028\u2029"}


def list_schema(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an object with one list, of objects with all of these properties.

    Of what vendors' strict forms take.
    """
    one = {
        "type": "object",
        "additionalProperties": False,
        "required": list(item),
        "properties": item,
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name],
        "properties": {name: {"type": "array", "items": one}},
    }


class UnreadableAnswer(ValueError):
    """An answer that is not clearly one answer. The message tells why, and none of its text."""


class CutOff(UnreadableAnswer):
    """An answer that ends where it may be no longer: less is to be asked for at once."""


class Repeated(dict[str, Any]):
    """An object that gives one of its names twice, so that no one knows what it says."""


def json_line(value: Any) -> str:
    """The value as JSON on one line, to whatever reader."""
    return json.dumps(value, ensure_ascii=False).translate(_BREAKS)


async def ask_text(
    provider: Provider, request: ModelRequest, *, at_most: int = _ANSWER_AT_MOST
) -> tuple[str, str]:
    """The answer's text and the reason of its end, as `Finished` has it. Raises PalError.

    Of an answer of more than `at_most` characters the rest is not waited for: it is told as far as
    it has come, without a reason.
    """
    texts: list[str] = []
    length, reason = 0, ""
    async with aclosing(provider.stream(request)) as events:
        async for one in events:
            if isinstance(one, TextDelta):
                texts.append(one.text)
                length += len(one.text)
                if length > at_most:
                    break
            elif isinstance(one, Finished):
                reason = one.reason
    return "".join(texts), reason


async def ask_whole(provider: Provider, request: ModelRequest) -> str:
    """The answer's text. Raises CutOff, and PalError."""
    text, reason = await ask_text(provider, request)
    if reason == "length":
        raise CutOff("The answer is cut off.")
    return text


def read_object(text: str, name: str) -> dict[str, Any]:
    """The one object of an answer that has this name in it. Raises UnreadableAnswer.

    Prose, code fences and thoughts around it are passed over.
    """
    found = read_objects(text, name)
    if len(found) > 1:
        raise UnreadableAnswer(f"The answer holds several objects with {name}.")
    if isinstance(found[0], Repeated):
        raise UnreadableAnswer("The answer gives a name twice.")
    return found[0]


def read_objects(text: str, name: str) -> list[dict[str, Any]]:
    """As `read_object`, all of them, at least one; one that is told twice once."""
    if not text.strip():
        raise UnreadableAnswer("The answer is empty.")
    if len(text) > _ANSWER_AT_MOST:
        raise UnreadableAnswer("The answer is too long to be one.")
    try:
        objects: list[dict[str, Any]] | None = _objects(text)
    except RecursionError:
        objects = None
    if objects is None:
        raise UnreadableAnswer("The answer nests too deep.")
    found: list[dict[str, Any]] = []
    for one in objects:
        if name in one and one not in found:
            found.append(one)
    if not found:
        raise UnreadableAnswer(f"The answer holds no object with {name}.")
    return found


def _objects(text: str) -> list[dict[str, Any]]:
    """The objects that stand in a text by themselves, those of a thought left out."""
    found: list[dict[str, Any]] = []
    thinking = False
    for one in _pieces(text):
        if isinstance(one, dict):
            if not thinking:
                found.append(one)
        else:
            thinking = one == ""
            if not thinking:  # its beginning may be missing: some servers keep that
                found.clear()
    return found


def _pieces(text: str) -> Iterator[dict[str, Any] | str]:
    """Objects, and between them "" where a thought begins and "/" where one ends."""
    at = steps = failures = 0
    while (bracket := _BRACKET.search(text, at)) is not None:
        yield from (tag[1] for tag in _THOUGHT.finditer(text, at, bracket.start()))
        at = bracket.start()
        failure = None
        try:
            value, end = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as exc:
            # not `from exc`, which holds the text
            failure = exc.pos, exc.msg
        if failure is None:
            if isinstance(value, dict):
                yield value
            at = end
            continue
        stopped, why = failure
        if _BEGUN.match(text, at) and (
            why.startswith("Unterminated string") or not text[stopped:].strip("`\n\r\t ")
        ):
            # what is inside of it would otherwise pass for the answer
            raise UnreadableAnswer("The answer is cut off.")
        steps += stopped - at
        failures += 1
        if steps > _STEPS_AT_MOST or failures > _FAILURES_AT_MOST:
            raise UnreadableAnswer("The answer holds too many braces.")
        at += 1
    yield from (tag[1] for tag in _THOUGHT.finditer(text, at))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    return named if len(named) == len(pairs) else Repeated(named)


def _integer(digits: str) -> int | float:
    # Python refuses to read integers of thousands of digits
    return int(digits) if len(digits) < 20 else float(digits)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)
