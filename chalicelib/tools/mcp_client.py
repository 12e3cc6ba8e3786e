"""An MCP server as its client sees it: list its tools, call one, whatever the session does.

The protocol is the official SDK's. Its task groups must be left by the task that entered them, so
a session is a task of its own, and those who call wait beside it. It is opened by the first who
needs it, serves calls side by side, and ends when it is closed or has not been used for a while.
A call is made a second time only if it is known that the first was not carried out, or if that
does no harm.

Only the client half of the SDK is imported. Its packages import the server half too, which wants
a web server and a cryptography library: 18 MB more on Lambda, and a third more time.
"""

import asyncio
import importlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chalicelib.outbound import Guard
from chalicelib.tools.mcp_wire import (
    BYTES_AT_MOST,
    EXCHANGE,
    LOST,
    NO_CONNECTION,
    UNREADABLE,
    Exchange,
    Fault,
    Wire,
)

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.exceptions import MCPError
    from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
    from mcp_types import CallToolResult

_log = logging.getLogger(__name__)

T = TypeVar("T")

_importing: Final = threading.Lock()
_CLOSE_WITHIN: Final = 5.0
_LISTING_BYTES: Final = 4_000_000
_PAGES_AT_MOST: Final = 50


class McpFailed(Exception):
    """There is no answer; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.told)
        self.fault = fault


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server is and how it is reached. A session ends after so many seconds unused."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    guard: Guard
    unused_at_most: float = 20.0


class McpServer:
    """The server at this address. `close` it when it is not needed any more."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opening = asyncio.Lock()
        self._session: _Session | None = None

    async def list_tools(self) -> list[dict[str, Any]]:
        """Every tool as the server describes it, unchecked; raises McpFailed."""
        return await self._ask(_Session.list_tools, budget=_LISTING_BYTES, repeatable=True)

    async def call(
        self, tool: str, arguments: dict[str, Any], *, repeatable: bool
    ) -> "CallToolResult":
        """What the tool answers; raises McpFailed. `repeatable`: to run it twice does no harm."""

        async def call(session: _Session) -> "CallToolResult":
            return await session.call(tool, arguments)

        return await self._ask(call, budget=BYTES_AT_MOST, repeatable=repeatable)

    async def close(self) -> None:
        """End the session, if there is one, and its calls. A later call opens another."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(
        self, question: "Callable[[_Session], Awaitable[T]]", *, budget: int, repeatable: bool
    ) -> T:
        try:
            return await self._ask_once(question, budget=budget)
        except McpFailed as exc:
            if not (exc.fault.again or (repeatable and exc.fault.ran == "unknown")):
                raise
            _log.info(
                "asking an MCP server again",
                extra={"action": "mcp_asked_again", "reason": exc.fault.told},
            )
        return await self._ask_once(question, budget=budget)

    async def _ask_once(self, question: "Callable[[_Session], Awaitable[T]]", *, budget: int) -> T:
        async with self._opening:
            if self._session is None or self._session.ended:
                self._session = await _Session.open(self._address)
            session = self._session
        try:
            return await session.ask(question, budget=budget)
        except McpFailed as exc:
            if exc.fault.expired and self._session is session:
                self._session = None
                session.leave()
            raise


class _Session:
    """One session, in a task of its own."""

    # the loop itself does not keep a task alive
    _running: Final[set[asyncio.Task[None]]] = set()

    def __init__(self, address: Address) -> None:
        self._address = address
        self._sdk: ClientSession
        self._dispatcher: JSONRPCDispatcher[Any]
        self._fault: Fault | None = None
        self._greeted = asyncio.Event()
        self._leaving = False
        self._left = asyncio.Event()
        self._calls = 0
        self._used = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._live(), name="mcp-session")
        self._running.add(self._task)
        self._task.add_done_callback(self._running.discard)

    @classmethod
    async def open(cls, address: Address) -> "_Session":
        """A session that has been greeted; raises McpFailed."""
        made = cls(address)
        try:
            await made._greeted.wait()
        except asyncio.CancelledError:
            await made._cut()
            raise
        if made._fault is not None:
            raise McpFailed(made._fault)
        return made

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked of it."""
        return self._leaving

    def leave(self) -> None:
        """Let it end when the calls that run have their answers."""
        self._leaving = True
        if not self._calls:
            self._left.set()

    async def close(self) -> None:
        """End it, and with it the calls that run, and see that it has ended."""
        self._leaving = True
        self._left.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_WITHIN)
        await self._cut()

    async def _cut(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_WITHIN)

    async def ask(self, question: "Callable[[_Session], Awaitable[T]]", *, budget: int) -> T:
        """The question's answer; raises McpFailed in place of what the SDK raises."""
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        exchange = Exchange(budget=budget)
        EXCHANGE.set(exchange)
        self._calls += 1
        try:
            return await question(self)
        except MCPError as exc:
            raise McpFailed(_fault_of(exc, exchange)) from exc
        except ValidationError as exc:
            raise McpFailed(UNREADABLE) from exc
        finally:
            self._calls -= 1
            self._used = asyncio.get_running_loop().time()
            if self._leaving:
                self.leave()

    async def list_tools(self) -> list[dict[str, Any]]:
        """All pages, as far as there is an end to them."""
        listed: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_PAGES_AT_MOST):
            page, following = await self._page(cursor)
            listed += page
            if following is None or following == cursor:
                break
            cursor = following
        return listed

    async def _page(self, cursor: str | None) -> tuple[list[dict[str, Any]], str | None]:
        from mcp_types import PaginatedRequestParams

        if self._sdk.discover_result is not None:
            params = PaginatedRequestParams(cursor=cursor)
            result = await self._sdk.list_tools(params=params)
            page = [tool.model_dump(by_alias=True, exclude_none=True) for tool in result.tools]
            return page, result.next_cursor
        # not through `list_tools`, which gives up the whole page for one tool with an odd schema
        raw = await self._dispatcher.send_raw_request(
            "tools/list", None if cursor is None else {"cursor": cursor}
        )
        tools, following = raw.get("tools"), raw.get("nextCursor")
        if not isinstance(tools, list):
            raise McpFailed(UNREADABLE)
        page = [tool for tool in tools if isinstance(tool, dict)]
        return page, following if isinstance(following, str) else None

    async def call(self, tool: str, arguments: dict[str, Any]) -> "CallToolResult":
        """What the tool answers."""
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

        # not through `call_tool`, which lists all tools anew to check the result with their schemas
        params = CallToolRequestParams(name=tool, arguments=arguments)
        return await self._sdk.send_request(CallToolRequest(params=params), CallToolResult)

    async def _live(self) -> None:
        exchange = Exchange(budget=_LISTING_BYTES)
        EXCHANGE.set(exchange)
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._greet(stack, exchange)
                    self._greeted.set()
                    await self._until_left()
                except Exception as exc:
                    # here, since a task group would wrap it
                    self._fault = _greeting_fault(exc, exchange)
                finally:
                    self._leaving = True
        except Exception as exc:
            _log.warning(
                "an MCP session broke",
                extra={"action": "mcp_session_broken", "error": type(exc).__name__},
            )
        finally:
            if not self._greeted.is_set():
                self._fault = self._fault or NO_CONNECTION
                self._greeted.set()

    async def _greet(self, stack: AsyncExitStack, exchange: Exchange) -> None:
        # half a second that the loop's other turns need not wait
        await asyncio.to_thread(import_client_half)
        import aiohttp
        import httpx2
        from mcp.client.session import ClientSession
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared.exceptions import MCPError
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
        from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, Implementation

        address = self._address
        # with cookies, as long as the session lasts: balancers keep it on one machine by them
        http = aiohttp.ClientSession(connector=address.guard.connector())
        await stack.enter_async_context(http)
        wire: Any = Wire(http, guard=address.guard, headers=address.headers)
        client = httpx2.AsyncClient(transport=wire, timeout=None, trust_env=False)
        await stack.enter_async_context(client)
        streams = streamable_http_client(address.url, http_client=client, max_sse_event_size=None)
        read, write = await stack.enter_async_context(streams)
        self._dispatcher = JSONRPCDispatcher(read, write)
        self._sdk = ClientSession(
            dispatcher=self._dispatcher, client_info=Implementation(name="palimpsest", version="1")
        )
        await stack.enter_async_context(self._sdk)
        try:
            await self._sdk.initialize()
        except MCPError as exc:
            newer = exc.error.code in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION)
            if exchange.fault is not None or not newer:
                raise
            await self._sdk.discover()
            # the SDK repeats some arguments as headers, and learns which from the listing
            await self.list_tools()

    async def _until_left(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._left.is_set():
            unused = 0.0 if self._calls else loop.time() - self._used
            if unused >= self._address.unused_at_most:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self._address.unused_at_most - unused):
                    await self._left.wait()


def import_client_half() -> None:
    """Import the SDK's client, its packages without their `__init__`, which imports all there is.

    Their loggers are silenced: they write down what servers answer, and ids of sessions.
    """
    with _importing:
        for name in ("mcp", "mcp.client"):
            if name not in sys.modules:
                spec = importlib.util.find_spec(name)
                if spec is None:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
                sys.modules[name] = importlib.util.module_from_spec(spec)
        for name in ("aiohttp", "mcp.client.session", "mcp.client.streamable_http"):
            importlib.import_module(name)
        for name in ("mcp", "client", "httpx2"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _fault_of(exc: "MCPError", exchange: Exchange) -> Fault:
    """What an error of the SDK means, which the wire knows best."""
    from mcp_types import CONNECTION_CLOSED, PARSE_ERROR

    if exchange.fault is not None:
        return exchange.fault
    if exc.error.code == PARSE_ERROR:
        return UNREADABLE
    # the SDK's own words for a session that ended first; a server that uses them means no less
    if (exc.error.code, exc.error.message) == (CONNECTION_CLOSED, "Connection closed"):
        return LOST
    return Fault(
        told="The MCP server answered with an error.", ran="answered", said=exc.error.message
    )


def _greeting_fault(exc: Exception, exchange: Exchange) -> Fault:
    from mcp.shared.exceptions import MCPError

    if isinstance(exc, MCPError):
        fault = _fault_of(exc, exchange)
    elif exchange.fault is not None:
        fault = exchange.fault
    else:
        kind = type(exc).__name__
        _log.warning(
            "an MCP session was not opened", extra={"action": "mcp_not_opened", "error": kind}
        )
        fault = Fault(told="The MCP server does not answer as one.", ran="no")
    # whatever it was, no tool was run by it
    return replace(fault, ran="no", again=fault.again or fault.ran == "unknown")
