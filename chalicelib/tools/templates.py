"""How a model's arguments get into the request of an `http` tool.

A place is `{name}`, the name of an argument. In a URL its value is percent-encoded and can change
neither the host nor the number of path segments. In a body a text that is nothing but a place
becomes the argument itself, `{{name}}` stands for the text `{name}`, and an argument that the
model left out takes its member along. A value that is no text is written as JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from chalicelib.tools.base import ToolFailed

ARGUMENT: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""A name that vendors take for an argument, and so what a place can hold."""

_PLACE: Final = re.compile(rf"\{{({ARGUMENT.pattern})\}}")
_PLACE_OR_BRACES: Final = re.compile(rf"\{{(\{{{ARGUMENT.pattern}\}})\}}|{_PLACE.pattern}")
_WHOLE_VALUE: Final = re.compile(rf"([^=]*=){_PLACE.pattern}")
# of a URL: what has a meaning there, and escapes that stand there already
_LITERAL: Final = "%:/?[]@!$&'()*+,;=~"
_URL_AT_MOST: Final = 8000

_ABSENT: Final = object()


def url_places(template: str) -> set[str]:
    """The arguments that this URL names; raises ValueError for braces that hold no such name."""
    if re.search(r"[{}]", _PLACE.sub("", template)):
        raise ValueError("must hold braces only as {argument}")
    return set(_PLACE.findall(template))


def body_places(template: Any) -> set[str]:
    """The arguments that this body's texts name."""
    return {
        found[2]
        for text in _texts(template)
        for found in _PLACE_OR_BRACES.finditer(text)
        if found[2]
    }


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def fill_url(template: str, arguments: Mapping[str, Any], *, others: bool) -> str:
    """The URL with these arguments; `others` puts those without a place into the query.

    A query parameter that is nothing but a place goes with an argument that is absent or null.
    Raises ToolFailed where a path would change its shape.
    """
    given = {name: _text(value) for name, value in arguments.items() if value is not None}
    path, question, query = template.partition("?")
    parameters = [_parameter(part, given) for part in query.split("&")] if question else []
    if others:
        parameters += [
            f"{quote(name, safe='')}={quote(value, safe='')}"
            for name, value in given.items()
            if name not in url_places(template)
        ]
    url = "/".join(_segment(part, given) for part in path.split("/"))
    if filled := "&".join(part for part in parameters if part is not None):
        url = f"{url}?{filled}"
    if len(url) > _URL_AT_MOST:
        raise ToolFailed(f"The arguments are too long: the URL may have {_URL_AT_MOST} characters.")
    return url


def _segment(template: str, given: Mapping[str, str]) -> str:
    for name in _PLACE.findall(template):
        value = given.get(name, "")
        if not value:
            raise ToolFailed(f"The argument `{name}` must be given, and not be empty.")
        # servers and proxies are seen to unescape before they walk the path
        if not {".", ".."}.isdisjoint(re.split(r"[/\\]", value)):
            raise ToolFailed(f"The argument `{name}` must not be or hold the path `.` or `..`.")
    return _fill(template, given)


def _parameter(template: str, given: Mapping[str, str]) -> str | None:
    whole = _WHOLE_VALUE.fullmatch(template)
    return None if whole and whole[2] not in given else _fill(template, given)


def _fill(template: str, given: Mapping[str, str]) -> str:
    literals, names = _PLACE.split(template)[::2], _PLACE.split(template)[1::2]
    values = [quote(given.get(name, ""), safe="") for name in names]
    parts = [quote(literal, safe=_LITERAL) for literal in literals]
    return "".join(part + value for part, value in zip(parts, [*values, ""], strict=True))


def fill_body(template: Any, arguments: Mapping[str, Any]) -> Any:
    """The body with these arguments; None where it is one place and that argument is absent."""
    filled = _fill_value(template, arguments)
    return None if filled is _ABSENT else filled


def _fill_value(template: Any, arguments: Mapping[str, Any]) -> Any:
    if isinstance(template, str):
        if whole := _PLACE.fullmatch(template):
            return arguments.get(whole[1], _ABSENT)
        return _PLACE_OR_BRACES.sub(
            lambda found: found[1] or _text(arguments.get(found[2], "")), template
        )
    if isinstance(template, dict):
        members = ((name, _fill_value(inner, arguments)) for name, inner in template.items())
        return {name: value for name, value in members if value is not _ABSENT}
    if isinstance(template, list):
        items = (_fill_value(inner, arguments) for inner in template)
        return [item for item in items if item is not _ABSENT]
    return template


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
