"""The port to tools: what a turn may call, what a call is given, what comes back.

A kind of tool is a file here and a line in the registry. A tool reports trouble by raising
`ToolFailed` with a text that the model can read; whatever else it raises is told to the model as
a plain failure and to the log by its class.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from chalicelib.providers.base import ToolSpec

Approval = Literal["never", "always"]


class ToolFailed(Exception):
    """A call failed in a way that the model may be told: no secret, no internals in the text."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """On whose behalf a call runs. `now` is when the turn's message was accepted.

    `person_id` is who the session's `user_id` is, None where that is not known.
    """

    tenant_id: str
    session_id: str
    turn_id: str
    call_id: str
    agent_name: str
    user_id: str | None
    group_id: str | None
    now: datetime
    person_id: str | None = None


Run = Callable[[dict[str, Any], ToolContext], Awaitable[str]]
"""Called with arguments that fit the schema; the result's text. Raises ToolFailed."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One thing a model may call.

    `read_only` tools change nothing; an `idempotent` one may be run again when it is unknown
    whether it ran (a read-only one is). `timeout` is in seconds.
    """

    spec: ToolSpec
    run: Run
    approval: Approval = "never"
    read_only: bool = False
    idempotent: bool = False
    timeout: float = 30.0


@dataclass(frozen=True, kw_only=True)
class ToolOutcome:
    """What became of a call: what the model is given, and the whole where that is an excerpt."""

    text: str
    is_error: bool = False
    whole: str | None = None
