"""A lean HTTP/1.1 client: an event is stamped in data_received and costs no task switch.

It speaks what the bench's two servers speak: keep-alive, bodies chunked or with a length, and
event streams whose lines end in a bare line feed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import orjson

# (event name, data, time.monotonic_ns() at which its last byte was read)
Sink = Callable[[bytes, bytes, int], None]


class Answer(NamedTuple):
    """Status, body, and headers under names in lower case."""

    status: int
    body: bytes
    headers: dict[bytes, bytes]

    def json(self, *allowed: int) -> dict[str, object]:
        """The body as an object; raises Refused unless the status is one of those allowed."""
        if self.status not in allowed:
            raise Refused(f"{self.status} {self.body[:200].decode(errors='replace')}")
        value = orjson.loads(self.body)
        return value if isinstance(value, dict) else {"items": value}


class Refused(Exception):
    """The server answered with a status or an event that a turn does not survive."""


class Chunks:
    """The chunked transfer coding, taken off; `over` once the last chunk was read."""

    def __init__(self) -> None:
        self._rest = b""
        self.over = False

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data
        at, body = 0, []
        while (line := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:line].split(b";", 1)[0], 16)
            end = line + 2 + size
            if len(data) < end + 2:
                break
            body.append(data[line + 2 : end])
            at = end + 2
            if size == 0:
                self.over = True
                break
        self._rest = data[at:]
        return b"".join(body)


class Sized:
    """A body of a known length."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.over = length == 0

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        self.over = self._left <= 0
        return data


class Events:
    """An event stream cut into events, each handed to the sink as it completes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rest = b""

    def feed(self, body: bytes, at: int) -> None:
        *blocks, self._rest = (self._rest + body).split(b"\n\n")
        for block in blocks:
            name, data = b"message", []
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    data.append(line[6:])
                elif line.startswith(b"event: "):
                    name = line[7:]
            if data:
                self._sink(name, b"\n".join(data), at)


class Exchange:
    """One request and its answer: `opened` is the status, `ended` the whole answer.

    Either fails with ConnectionError if the connection is lost first. A stream's body is empty:
    its events went to the sink.
    """

    def __init__(self, connection: "Connection", sink: Sink | None) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[Answer] = loop.create_future()
        for future in (self.opened, self.ended):  # whoever waits for one may never read the other
            future.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.sink = sink
        self._connection = connection

    def close(self) -> None:
        """Leave before the end."""
        self._connection.drop()


class Connection(asyncio.Protocol):
    """A connection with at most one exchange on it."""

    def __init__(
        self, release: Callable[["Connection"], None], forget: Callable[["Connection"], None]
    ) -> None:
        self._release, self._forget = release, forget
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._head = b""
        self._coding: Chunks | Sized | None = None
        self._events: Events | None = None
        self._body: list[bytes] = []
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._last = False

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget(self)
        if (exchange := self._exchange) is not None:
            for future in (exchange.opened, exchange.ended):
                if not future.done():
                    future.set_exception(ConnectionError(f"connection lost: {exc}"))

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, request: bytes, sink: Sink | None) -> Exchange:
        assert self._transport is not None
        self._head, self._coding, self._events, self._body = b"", None, None, []
        self._exchange = Exchange(self, sink)
        self._transport.write(request)
        return self._exchange

    def data_received(self, data: bytes) -> None:
        at = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            return
        if self._coding is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._read_head(self._head[:end], exchange)
        assert self._coding is not None
        body = self._coding.feed(data) if data else b""
        if self._events is not None:
            if body:
                self._events.feed(body, at)
        else:
            self._body.append(body)
        if self._coding.over:
            self._exchange = None
            if not exchange.ended.done():
                answer = Answer(self._status, b"".join(self._body), self._headers)
                exchange.ended.set_result(answer)
            if self._last:
                self.drop()
            else:
                self._release(self)

    def _read_head(self, head: bytes, exchange: Exchange) -> None:
        first, *lines = head.split(b"\r\n")
        self._status = int(first.split(b" ", 2)[1])
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        self._headers = headers
        self._last = headers.get(b"connection", b"").lower() == b"close"
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._coding = Chunks()
        else:
            self._coding = Sized(int(headers.get(b"content-length", 0)))
        streams = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if exchange.sink is not None and self._status == 200 and streams:
            self._events = Events(exchange.sink)
        if not exchange.opened.done():
            exchange.opened.set_result(self._status)


class Client:
    """Requests to one origin over connections that are reused."""

    def __init__(self, base: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(base)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._prefix = parts.path.rstrip("/")
        given = {"Host": parts.netloc, **(headers or {})}
        self._headers = "".join(f"{k}: {v}\r\n" for k, v in given.items())
        self._free: list[Connection] = []
        self._all: set[Connection] = set()

    async def start(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        sink: Sink | None = None,
        headers: str = "",
    ) -> Exchange:
        """Send a request; `headers` are whole lines. OSError if nothing listens."""
        connection = None
        while self._free and connection is None:
            candidate = self._free.pop()
            connection = candidate if candidate.alive else None
        if connection is None:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: Connection(self._free.append, self._all.discard), self._host, self._port
            )
            self._all.add(connection)
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}{headers}"
        if sink is not None:
            head += "Accept: text/event-stream\r\n"
        data = b"" if body is None else orjson.dumps(body)
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        elif method != "GET":
            head += "Content-Length: 0\r\n"
        return connection.send(head.encode() + b"\r\n" + data, sink)

    async def call(
        self, method: str, path: str, body: object = None, *, headers: str = ""
    ) -> Answer:
        """Send a request and read its answer; ConnectionError if it is cut."""
        exchange = await self.start(method, path, body=body, headers=headers)
        try:
            return await exchange.ended
        except asyncio.CancelledError:
            exchange.close()
            raise

    def close(self) -> None:
        for connection in list(self._all):
            connection.drop()
        self._free.clear()
