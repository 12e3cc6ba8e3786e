"""Tool calls and rounds as a turn holds them, and what their arguments are made into. Pure."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import orjson

from chalicelib.providers.base import Finished, Reasoning, ToolCall

CallStatus = Literal[
    "asked",  # written down, not started: it waits for an approval to be asked for
    "running",
    "completed",
    "failed",
    "pending",  # an approval is open
    "approved",
    "denied",
    "expired",
    "superseded",
    "unknown",  # its process died between starting it and keeping its result
]

DENIED: Final = '{"executed": false, "reason": "A person denied this call. It was not done."}'
EXPIRED: Final = (
    '{"executed": false, "reason": "No one decided on this call in time. It was not done."}'
)
SUPERSEDED: Final = (
    '{"executed": false, "reason": "A later request took its place. It was not done."}'
)
UNKNOWN: Final = (
    "The process that ran this call ended before its result was kept. It is unknown whether it"
    " took effect; it has not been run again."
)
NOT_RUN: Final = '{"executed": false, "reason": "The turn ended before this call was run."}'
CHANGED: Final = "The arguments are not those that were approved. It was not done."

_N = TypeVar("_N", int, float)

_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAID: Final = frozenset({"completed", "failed", "denied", "expired", "superseded", "unknown"})
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")

# what an event, a history and every vendor can carry
_DEPTH_AT_MOST: Final = 64
_WHOLE: Final = range(-(2**63), 2**64)


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a tool, from the model's wish to its result.

    `arguments` is JSON text: an object, or a string holding what the model sent in its place.
    `approved_hash` is the hash of what was approved, where an approval was asked for.
    """

    id: str
    turn_id: str
    round: int
    place: int
    name: str
    arguments: str
    status: CallStatus
    result: str | None = None
    approved_hash: bytes | None = None

    @property
    def settled(self) -> bool:
        """Whether there is something to tell the model of it."""
        return self.status in _SAID

    @property
    def is_error(self) -> bool:
        """Whether the model is to take the result for a failure of the tool."""
        return self.status in ("failed", "unknown")

    def asked(self) -> ToolCall:
        """The call as the model is shown it."""
        return ToolCall(id=self.id, name=self.name, arguments=self.arguments)


@dataclass(kw_only=True, eq=False)
class Round:
    """One answer of a model that asked for tools, with what it cost."""

    number: int
    content: str
    provider: str
    model: str
    reasoning: Reasoning | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What models took, None where one of them does not tell; `cost_usd` in dollars."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None


def spent(parts: Sequence[Round | Finished]) -> Spent:
    """What these took together."""
    cost = _total([one.cost_usd for one in parts])
    return Spent(
        tokens_in=_total([one.tokens_in for one in parts]),
        tokens_out=_total([one.tokens_out for one in parts]),
        tokens_cached=_total([one.tokens_cached for one in parts]),
        # sums of floats, told to a hundredth of a millionth of a cent
        cost_usd=None if cost is None else round(cost, 10),
    )


def _total(values: list[_N | None]) -> _N | None:
    known = [one for one in values if one is not None]
    return sum(known, type(known[0])()) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class NewApproval:
    """An approval that a turn ends with, to be written by its commit."""

    id: str
    call: Call
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What a claimed turn finds written: calls decided on since they were asked for, and rounds.

    `hints` are those of the turn that stopped for an approval, newest message first.
    """

    decided: list[Call] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    hints: list[dict[str, Any]] = field(default_factory=list)


def canonical(arguments: str) -> str:
    """JSON text of what a model sent as arguments, fit to be stored: see `Call.arguments`.

    An object that nests too deep or holds a number of more than 64 bits counts as none.
    """
    text = arguments.strip()
    value: Any = arguments
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite) if text else {}
        if found is None or isinstance(found, dict):
            value = _fit(found or {}, 0)
    except (ValueError, RecursionError):
        pass
    return orjson.dumps(_clean(value)).decode()


def arguments_hash(session_id: str, call_id: str, arguments: str) -> bytes:
    """What an approval is bound to: the session, the call, and the arguments in any key order."""
    ordered = json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(f"{session_id}|{call_id}|{ordered}".encode()).digest()


def tool_name(name: str) -> str:
    """The name of a call as every vendor accepts it in a history."""
    return _NAME.sub("_", name)[:64] or "unnamed"


def json_value(arguments: str) -> Any:
    """The arguments as an event or an answer shows them."""
    return json.loads(arguments)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return value


def _fit(value: Any, depth: int) -> Any:
    if depth > _DEPTH_AT_MOST or (type(value) is int and value not in _WHOLE):
        raise ValueError
    for inner in value.values() if isinstance(value, dict) else ():
        _fit(inner, depth + 1)
    for inner in value if isinstance(value, list) else ():
        _fit(inner, depth + 1)
    return value


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(text)
    return number


def _refuse(name: str) -> None:
    raise ValueError(name)
