"""Our own tools, by name. A room that has one to offer adds it to `BUILTINS`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo

from chalicelib.providers.base import ToolSpec
from chalicelib.tools import memory
from chalicelib.tools.base import Tool, ToolContext, ToolFailed

if TYPE_CHECKING:
    from chalicelib.tools.definitions import BuiltinTool
    from chalicelib.tools.toolbox import ToolDeps


class RunBuiltin(Protocol):
    """As `Run`, with what tools are made with."""

    async def __call__(
        self, arguments: dict[str, Any], context: ToolContext, *, deps: "ToolDeps"
    ) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """A tool of ours: what a model is told of it, and what it does."""

    description: str
    parameters: Mapping[str, Any]
    run: RunBuiltin
    read_only: bool = False
    idempotent: bool = False


async def builtin_tools(
    definition: "BuiltinTool", /, *, tenant_id: str, deps: "ToolDeps"
) -> list[Tool]:
    """The one tool that this entry names. What it is by nature an entry cannot take from it."""
    builtin = BUILTINS[definition.name]
    return [
        Tool(
            spec=ToolSpec(
                name=definition.name,
                description=definition.description or builtin.description,
                parameters=dict(builtin.parameters),
            ),
            run=partial(builtin.run, deps=deps),
            approval=definition.approval,
            read_only=builtin.read_only,
            idempotent=builtin.idempotent,
            timeout=definition.timeout or deps.settings.tool_timeout,
        )
    ]


async def _current_time(
    arguments: dict[str, Any], context: ToolContext, *, deps: "ToolDeps"
) -> str:
    """When the turn's message was accepted: a turn that is run again asks its model the same."""
    name = arguments.get("timezone", "UTC")
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise ToolFailed(
            f"There is no time zone {name!r}. Use an IANA name such as Europe/Berlin."
        ) from None
    now = context.now.astimezone(zone)
    return f"{now.isoformat(timespec='seconds')} ({now:%A}), time zone {name}"


BUILTINS: Final[dict[str, Builtin]] = {
    "current_time": Builtin(
        description=(
            "Tells the date and time at which the user's message came in, as ISO 8601 with the "
            "day of the week."
        ),
        parameters={
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "maxLength": 64,
                    "description": "IANA time zone, such as Europe/Berlin. Default: UTC.",
                }
            },
            "additionalProperties": False,
        },
        run=_current_time,
        read_only=True,
    ),
    "remember": Builtin(
        description=memory.REMEMBER,
        parameters=memory.REMEMBER_PARAMETERS,
        run=memory.remember,
        # the same fact a second time changes nothing
        idempotent=True,
    ),
    "recall": Builtin(
        description=memory.RECALL,
        parameters=memory.RECALL_PARAMETERS,
        run=memory.recall,
        read_only=True,
    ),
}
"""Each builtin by the name that an agent's `tools` and a model call it."""
