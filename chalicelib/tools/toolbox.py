"""The tools of one turn: opened from an agent's definitions, called by a model's wishes, closed.

Whatever a tool does, the turn goes on: a source that cannot be opened is left out, and a call that
is wrong, breaks, hangs or answers without end becomes a text that the model can read.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from chalicelib.config import Settings
from chalicelib.outbound import Guard
from chalicelib.providers.base import ToolCall, ToolSpec
from chalicelib.tools.arguments import ArgumentsRefused, read_arguments
from chalicelib.tools.base import Tool, ToolContext, ToolFailed, ToolOutcome
from chalicelib.tools.builtin import builtin_tools
from chalicelib.tools.definitions import Definition
from chalicelib.tools.excerpt import beginning, clean, excerpt
from chalicelib.tools.headers import ReadSecret
from chalicelib.tools.http import http_tools
from chalicelib.tools.lambda_ import lambda_tools
from chalicelib.tools.masking import Masking
from chalicelib.tools.memory import MemoryTools
from chalicelib.tools.microvm import microvm_tools
from chalicelib.tools.schema import Checker

if TYPE_CHECKING:
    from chalicelib.isolation.keeper import Machines

_log = logging.getLogger(__name__)

_WHOLE_AT_MOST: Final = 4 << 20
_NAME_SHOWN: Final = 80
_NAMES_SHOWN: Final = 2000


async def _no_secret(_tenant_id: str, _name: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class ToolDeps:
    """What tools are made with. `secret` takes a tenant's id and the secret's name.

    `memory` is what `remember` and `recall` use, `machines` what `microvm` tools do; without them
    they fail.
    `masking` and `closing` are each toolbox's own: the secrets that were read, and what its tools
    hold open, to be closed with it (from another task, maybe, than it was opened in).
    """

    settings: Settings
    guard: Guard
    secret: ReadSecret
    memory: MemoryTools | None = None
    machines: "Machines | None" = None
    masking: Masking = field(default_factory=lambda: Masking(_no_secret))
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)


class Factory(Protocol):
    """Makes one entry's tools; it may ask a server. Whatever it raises leaves the entry out."""

    async def __call__(
        self, definition: Any, /, *, tenant_id: str, deps: ToolDeps
    ) -> list[Tool]: ...


async def _mcp_tools(definition: Any, /, *, tenant_id: str, deps: ToolDeps) -> list[Tool]:
    from chalicelib.tools.mcp import mcp_tools

    return await mcp_tools(definition, tenant_id=tenant_id, deps=deps)


KINDS: Final[dict[str, Factory]] = {
    "builtin": builtin_tools,
    "http": http_tools,
    "mcp": _mcp_tools,
    "lambda": lambda_tools,
    "microvm": microvm_tools,
}
"""How the tools of each kind of definition are made."""


async def open_toolbox(
    definitions: Sequence[Definition], *, tenant_id: str, read_only: bool, deps: ToolDeps
) -> "Toolbox":
    """The tools of these definitions, in their order; only those that change nothing, if so asked.

    Of two with one name the first is kept. Close it, in any case.
    """
    masking = Masking(deps.secret)
    closing = AsyncExitStack()
    deps = replace(deps, secret=masking.secret, masking=masking, closing=closing)
    try:
        found = await asyncio.gather(
            *(_open(definition, tenant_id=tenant_id, deps=deps) for definition in definitions)
        )
    except BaseException:
        await closing.aclose()
        raise
    tools: dict[str, Tool] = {}
    for definition, made in zip(definitions, found, strict=True):
        for tool in made:
            name = tool.spec.name
            if name in tools:
                _log.warning(
                    "two tools have one name; the later one is left out",
                    extra={"action": "tool_name_taken", "tool": name, "entry": definition.name},
                )
            elif tool.read_only or not read_only:
                tools[name] = tool
    return Toolbox(tools, deps=deps)


async def _open(definition: Definition, *, tenant_id: str, deps: ToolDeps) -> list[Tool]:
    try:
        async with asyncio.timeout(definition.timeout or deps.settings.tool_timeout):
            factory = KINDS[definition.kind]  # type: ignore[attr-defined]
            return await factory(definition, tenant_id=tenant_id, deps=deps)
    except Exception as exc:
        _log.warning(
            "a source of tools cannot be opened; the turn goes on without it",
            extra={
                "action": "tool_source_left_out",
                "entry": definition.name,
                "error": type(exc).__name__,
            },
        )
        return []


class Toolbox:
    """What a turn may call. `specs` are what its model is offered."""

    def __init__(self, tools: dict[str, Tool], *, deps: ToolDeps) -> None:
        self.tools = tools
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools.values())
        self._deps = deps
        self._checkers = {name: Checker(tool.spec.parameters) for name, tool in tools.items()}

    def problem(self, call: ToolCall) -> str | None:
        """Why this call cannot be made, in words for the model; None if it can."""
        try:
            self._read(call)
        except ArgumentsRefused as exc:
            return clean(str(exc))
        return None

    async def call(self, call: ToolCall, context: ToolContext) -> ToolOutcome:
        """Make the call; only cancellation is ever raised."""
        try:
            tool, arguments = self._read(call)
        except ArgumentsRefused as exc:
            return self._failed(str(exc))
        name = tool.spec.name
        try:
            async with asyncio.timeout(tool.timeout) as limit:
                text = await tool.run(arguments, context)
        except ToolFailed as exc:
            return self._failed(str(exc))
        except Exception as exc:
            if limit.expired():
                return self._failed(
                    f"{name} timed out after {tool.timeout:g} s; "
                    "whether it had an effect is unknown."
                )
            _log.warning(
                "a tool broke",
                extra={"action": "tool_broke", "tool": name, "error": type(exc).__name__},
            )
            return self._failed(f"{name} failed.")
        return self._outcome(text)

    async def close(self) -> None:
        """Let go of what the tools hold open; never raises."""
        try:
            await self._deps.closing.aclose()
        except Exception as exc:
            _log.warning(
                "a tool did not close",
                extra={"action": "tool_not_closed", "error": type(exc).__name__},
            )

    def _read(self, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        tool = self.tools.get(call.name)
        if tool is None:
            names = beginning(", ".join(self.tools), limit=_NAMES_SHOWN)
            raise ArgumentsRefused(
                f"There is no tool named {beginning(call.name, limit=_NAME_SHOWN)!r}. "
                + (f"There are: {names}." if names else "There are none.")
            )
        return tool, read_arguments(call.arguments, checker=self._checkers[call.name])

    def _failed(self, text: str) -> ToolOutcome:
        return self._outcome(text, is_error=True)

    def _outcome(self, text: str, *, is_error: bool = False) -> ToolOutcome:
        text = self._deps.masking.mask(clean(text))
        shown = excerpt(text, limit=self._deps.settings.tool_result_limit)
        whole = None if shown is text else _bounded(text)
        return ToolOutcome(text=shown, is_error=is_error, whole=whole)


def _bounded(text: str) -> str:
    """The text as far as 4 MB go."""
    raw = text.encode()
    if len(raw) <= _WHOLE_AT_MOST:
        return text
    return raw[:_WHOLE_AT_MOST].decode(errors="ignore")
