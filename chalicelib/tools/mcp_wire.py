"""HTTP under an MCP session: one way out for all tools, each request bounded and its end known.

The SDK sends through httpx2. What it is given is a transport over aiohttp, whose connector is the
guard's, so only checked addresses are connected to. A request that fails is answered to the SDK as
a JSON-RPC error: an exception would end the SDK's task group, and with it every other call of the
session. What became of a request is in the `Exchange` of whoever asked, which the SDK's streams
carry along as they do every context variable.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from chalicelib.outbound import Guard, Refused

if TYPE_CHECKING:
    import aiohttp
    import httpx2

BYTES_AT_MOST: Final = 1_000_000

# the SDK's own headers that say something; aiohttp makes the rest
_SENT: Final = ("accept", "content-type", "last-event-id", "mcp-")
_HEARD: Final = ("content-type", "mcp-session-id", "location")
_CONNECT_WITHIN: Final = 10.0
# nothing waits for an answer to these
_ASIDE_WITHIN: Final = 2.0
_ERROR_BYTES: Final = 64 * 1024
# what servers send with 400 for a session that they do not know
_NO_SESSION: Final = -32000

Ran = Literal["no", "unknown", "answered"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a request has no answer that is of use: in our words, and whether it was carried out.

    `said` is what the server itself says of it, which is not for a log. `again`: another try may do
    better, over a new session if this one has `expired`. `down`: the server is not there or not
    well, so that what it said earlier may still hold.
    """

    told: str
    ran: Ran
    said: str = ""
    again: bool = False
    expired: bool = False
    down: bool = False


NO_CONNECTION: Final = Fault(
    told="The MCP server cannot be reached.", ran="no", again=True, down=True
)
# one text for both: which private names exist is nobody's business
_NOT_PUBLIC: Final = "The MCP server cannot be reached at a public address."
NO_ADDRESS: Final = Fault(told=_NOT_PUBLIC, ran="no", down=True)
REFUSED_ADDRESS: Final = Fault(told=_NOT_PUBLIC, ran="no")
EXPIRED: Final = Fault(
    told="The MCP server has ended the session.", ran="no", again=True, expired=True
)
LOST: Final = Fault(
    told="The connection to the MCP server broke before its answer was there.",
    ran="unknown",
    down=True,
)
UNREADABLE: Final = Fault(told="The MCP server's answer cannot be read.", ran="unknown", down=True)
TOO_LARGE: Final = Fault(told="The MCP server's answer is too large to be read.", ran="answered")


@dataclass(kw_only=True)
class Exchange:
    """One question, from the asker's side: the wire writes down what became of it.

    `budget` is the bytes that its answers may still have.
    """

    budget: int = BYTES_AT_MOST
    fault: Fault | None = None


EXCHANGE: Final[ContextVar[Exchange]] = ContextVar("mcp_exchange")


class Wire:
    """An httpx2 transport over a session of aiohttp, with the tool's own headers on each request.

    They are not told to httpx2, which logs what it sends.
    """

    def __init__(
        self, http: "aiohttp.ClientSession", *, guard: Guard, headers: Mapping[str, str]
    ) -> None:
        self._http = http
        self._guard = guard
        self._headers = headers

    async def __aenter__(self) -> "Wire":
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Whoever made the aiohttp session closes it."""

    async def aclose(self) -> None:
        """The same."""

    async def handle_async_request(self, request: "httpx2.Request") -> "httpx2.Response":
        """The server's answer, or one of ours that stands for a failure; raises nothing."""
        body = await request.aread()
        message = _message(body) if request.method == "POST" else {}
        asking = {"id", "method"} <= message.keys()
        resuming = request.method == "GET"
        exchange = EXCHANGE.get(Exchange()) if asking or resuming else Exchange()
        if resuming and ("last-event-id" not in request.headers or exchange.fault == TOO_LARGE):
            # what a server says unasked is of no use to a turn
            return _answer(405)
        exchange.fault = None
        try:
            async with asyncio.timeout(None if asking or resuming else _ASIDE_WITHIN):
                response = await self._send(request)
                try:
                    answer = await _read(response, exchange, asked=message.get("id"))
                except BaseException:
                    response.close()
                    raise
        except Exception as exc:
            exchange.fault = _fault_of(exc)
            answer = _failure(exchange.fault)
        if resuming and exchange.fault is not None:
            # the request itself had been sent before
            exchange.fault = LOST
        return answer

    async def _send(self, request: "httpx2.Request") -> "aiohttp.ClientResponse":
        import aiohttp
        from yarl import URL

        url = str(request.url)
        self._guard.check_url(url)
        sdks = {name: value for name, value in request.headers.items() if name.startswith(_SENT)}
        own = {name: value for name, value in self._headers.items() if name.lower() not in sdks}
        return await self._http.request(
            request.method,
            URL(url, encoded=True),
            data=request.content or None,
            headers={"User-Agent": "Palimpsest", **own, **sdks, "Accept-Encoding": "identity"},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_WITHIN),
        )


async def _read(
    response: "aiohttp.ClientResponse", exchange: Exchange, *, asked: Any
) -> "httpx2.Response":
    status, kind = response.status, response.content_type
    headers = {name: value for name, value in response.headers.items() if name.lower() in _HEARD}
    if status == 200 and kind == "text/event-stream":
        return _answer(status, headers, stream=_stream_class()(response, exchange))
    body: bytes | None = b""
    if kind == "application/json":
        body = await _whole(response, exchange.budget if status < 300 else _ERROR_BYTES)
    response.release()
    if body is None and status < 300:
        exchange.fault = TOO_LARGE
        return _failure(TOO_LARGE)
    body = body or b""
    exchange.budget -= len(body)
    message = _message(body)
    session = "mcp-session-id" in response.request_info.headers
    exchange.fault = _fault_in(status, message, session=session)
    if asked is not None and status < 300 and message.get("id") != asked:
        # the SDK would wait for another, unless an error comes with a status of failure
        if "error" in message:
            return _answer(400, headers, body=body)
        exchange.fault = UNREADABLE
        return _failure(UNREADABLE)
    return _answer(status, headers, body=body)


def _fault_in(status: int, message: dict[str, Any], *, session: bool) -> Fault | None:
    """What an answer to a request means where it is none; `session`: it was asked within one."""
    error = message.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if session and (status == 404 or (status == 400 and code == _NO_SESSION)):
        return EXPIRED
    if status in (401, 403):
        return Fault(told=f"The MCP server refuses these credentials (HTTP {status}).", ran="no")
    if error is not None or (status < 300 and "result" in message):
        return None
    if status < 300:
        return UNREADABLE
    if status < 400:
        return Fault(told="The MCP server redirects elsewhere, and is not followed.", ran="no")
    return Fault(
        told=f"The MCP server answered with HTTP {status}.",
        ran="no" if status < 500 else "unknown",
        down=status in (408, 425, 429) or status >= 500,
    )


def _fault_of(exc: Exception) -> Fault:
    """What this exception of the HTTP client means for the request."""
    import aiohttp

    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, Refused):
            return REFUSED_ADDRESS
        cause = cause.__cause__ or cause.__context__
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return NO_ADDRESS
    if isinstance(exc, aiohttp.ClientSSLError):
        return Fault(told="The MCP server's certificate is not accepted.", ran="no", down=True)
    if isinstance(exc, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return NO_CONNECTION
    return LOST


def _message(body: bytes) -> dict[str, Any]:
    """The JSON object that this is, or an empty one."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


async def _whole(response: "aiohttp.ClientResponse", at_most: int) -> bytes | None:
    """The body, or None if it is larger."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > at_most:
            response.close()
            return None
    return bytes(body)


def _answer(
    status: int,
    headers: Mapping[str, str] | None = None,
    *,
    body: bytes = b"",
    stream: "httpx2.AsyncByteStream | None" = None,
) -> "httpx2.Response":
    import httpx2

    if stream is not None:
        return httpx2.Response(status, headers=headers, stream=stream)
    return httpx2.Response(status, headers=headers, content=body)


def _failure(fault: Fault) -> "httpx2.Response":
    """What the SDK hands to the one who asked, and to nobody else."""
    error = {"code": -32603, "message": fault.told}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return _answer(502, {"content-type": "application/json"}, body=body)


@cache
def _stream_class() -> Any:
    import aiohttp
    import httpx2

    class Stream(httpx2.AsyncByteStream):
        """The events of an answer; the SDK stops reading when it has what it asked for."""

        def __init__(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
            self._response = response
            self._exchange = exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self._response.content.iter_any():
                    self._exchange.budget -= len(piece)
                    if self._exchange.budget < 0:
                        self._exchange.fault = TOO_LARGE
                        raise httpx2.ReadError(TOO_LARGE.told)
                    yield piece
                self._exchange.fault = LOST
            except (aiohttp.ClientError, OSError) as exc:
                self._exchange.fault = LOST
                raise httpx2.ReadError(LOST.told) from exc

        async def aclose(self) -> None:
            self._response.close()

    return Stream
