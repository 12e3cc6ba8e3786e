"""What tests of the `mcp` tool kind are made with: a loop that is left clean, a server's client."""

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import uvloop

from chalicelib.config import Settings
from chalicelib.outbound import Guard
from chalicelib.tools.base import Tool, ToolContext
from chalicelib.tools.definitions import McpTool
from chalicelib.tools.mcp import Listings, mcp_tools
from chalicelib.tools.mcp_client import Address, McpServer, import_client_half
from chalicelib.tools.toolbox import ToolDeps
from tests.fakes.mcp_server import FakeMcp

T = TypeVar("T")

LOCAL = Guard(["127.0.0.1"])

# or the first test would spend its time limits on it
import_client_half()

CONTEXT = ToolContext(
    tenant_id="ten_1",
    session_id="sess_1",
    turn_id="tur_1",
    call_id="call_1",
    agent_name="guide",
    user_id=None,
    group_id=None,
    now=datetime(2026, 11, 30, tzinfo=UTC),
)


def run(work: Coroutine[Any, Any, T], *, loop: str = "uvloop") -> T:
    """The result, on this kind of loop; nothing may be left behind on it.

    Not a task, and not a future whose exception no one took or a connection no one closed.
    """
    told: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
        result = await work
        left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
        assert left == []
        return result

    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(watched())
    gc.collect()
    assert told == []
    return result


@asynccontextmanager
async def client(fake: FakeMcp, **more: Any) -> AsyncIterator[McpServer]:
    """A client of the fake, closed at the end."""
    server = McpServer(Address(**{"url": fake.url, "headers": {}, "guard": LOCAL, **more}))
    try:
        yield server
    finally:
        await server.close()


def entry(url: str, **more: Any) -> McpTool:
    """An agent's entry for a server at this URL; `more` in the entry's own spelling."""
    return McpTool.model_validate({"kind": "mcp", "name": "srv", "url": url, **more})


def tool_deps(
    secrets: Mapping[str, str] | None = None, guard: Guard = LOCAL, **settings: Any
) -> ToolDeps:
    """What tools are made with, and one tenant's secrets."""

    async def secret(_tenant_id: str, name: str) -> str | None:
        return (secrets or {}).get(name)

    return ToolDeps(settings=Settings(**settings), guard=guard, secret=secret)


@asynccontextmanager
async def tools_of(
    definition: McpTool,
    *,
    deps: ToolDeps | None = None,
    tenant_id: str = "ten_1",
    listings: Listings | None = None,
) -> AsyncIterator[dict[str, Tool]]:
    """The tools of this entry by name, until the end of the block; nothing is known beforehand."""
    deps = deps or tool_deps()
    try:
        made = await mcp_tools(
            definition, tenant_id=tenant_id, deps=deps, listings=listings or Listings()
        )
        yield {tool.spec.name: tool for tool in made}
    finally:
        await deps.closing.aclose()


async def call(tool: Tool, **arguments: Any) -> str:
    """What the tool answers."""
    return await tool.run(arguments, CONTEXT)
