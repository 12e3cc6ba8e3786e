"""The tool calls of one answer on the OpenAI wire, put together from their fragments.

A fragment should carry an index, and the first one of a call its id and name. Servers leave out
the index, use 0 for all calls, give no id or a new one with each fragment, and repeat the name. So
a call begins where a name comes that the call before it cannot own.
"""

from typing import Any, Final

import orjson

from chalicelib.providers.base import ToolCall
from chalicelib.providers.reading import clean_text

_NAME_AT_MOST: Final = 200


class _Call:
    __slots__ = ("arguments", "id", "index", "name", "repeats_name")

    def __init__(self, *, index: int | None) -> None:
        self.index = index
        self.id = self.name = ""
        self.arguments: list[str] = []
        self.repeats_name = False

    def is_another(self, *, call_id: str, name: str, arguments: str) -> bool:
        """Whether a fragment at this call's place begins the next call."""
        if not name:
            return False
        if (call_id and self.id and call_id != self.id) or (self.name and name != self.name):
            return True
        if not self.name or not arguments or self.repeats_name:
            return False
        # the same name once more: either another call, or a server that says it each time
        if _is_object("".join(self.arguments)):
            return True
        self.repeats_name = True
        return False


class CallReader:
    """Takes fragments, gives calls in the order in which they began; one per answer."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int | None, _Call] = {}

    def take(self, fragment: dict[str, Any], *, whole: bool = False) -> None:
        """Add one entry of `tool_calls`; `whole` says that it is a call of its own."""
        function = fragment.get("function") or {}
        index = place if type(place := fragment.get("index")) is int else None
        call_id, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        call = None if whole else self._owner(index, call_id, name)
        if call is None or call.is_another(call_id=call_id, name=name, arguments=arguments):
            call = _Call(index=index)
            self._calls.append(call)
        call.id, call.name = call.id or call_id, call.name or name
        if arguments:
            call.arguments.append(arguments)
        self._by_index[call.index] = call
        if call_id:
            self._by_id[call_id] = call

    def calls(self) -> tuple[ToolCall, ...]:
        """What has come so far; a call that no fragment named is none."""
        return tuple(
            ToolCall(
                id=clean_text(call.id),
                name=clean_text(call.name),
                arguments=_spoken("".join(call.arguments)),
            )
            for call in self._calls
            if call.name
        )

    def _owner(self, index: int | None, call_id: str, name: str) -> _Call | None:
        known = self._by_id.get(call_id)
        if known is not None and (index is None or index == known.index):
            return known
        if index is not None and index in self._by_index:
            return self._by_index[index]
        # at a place of its own, only what has a name is a call; the rest belongs to one before it
        if index is not None and name:
            return None
        return known or (self._calls[-1] if self._calls else None)


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _text(value: object) -> str:
    return str(value)[:_NAME_AT_MOST] if isinstance(value, str | int) else ""


def _arguments(value: object) -> str:
    if isinstance(value, dict):  # some servers send the object itself
        return orjson.dumps(value).decode()
    if value is not None and not isinstance(value, str):
        raise TypeError("arguments are neither text nor an object")
    return value or ""


def _spoken(arguments: str) -> str:
    text = clean_text(arguments)
    return "{}" if text.strip() in ("", "null") else text
