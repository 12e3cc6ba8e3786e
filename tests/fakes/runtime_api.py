"""A Lambda Runtime API on a real socket: hands out invocations, keeps the raw bytes of the answers.

    async with FakeRuntimeApi() as api:
        call = api.invoke({"path": "/"})
        ...                          # serve(handler, api=api.address) runs beside
        head = await call.head()     # the answer's request line and headers
        await call.chunk()           # the next chunk's content; None when the body has ended
        await call.trailers()

It reads byte by byte what HTTP/1.1 prescribes and nothing laxer: framing it does not expect is
raised by the `call` method that waits for it. Every wait ends after `PATIENCE` seconds.
"""

import asyncio
import json
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

PATIENCE = 5.0

T = TypeVar("T")


class FramingError(Exception):
    """The client sent what is not a chunked body."""


@dataclass(frozen=True)
class Head:
    """A request's first lines: headers as (name, value) in the order and case they came in."""

    method: str
    path: str
    headers: list[tuple[str, str]]

    def values(self, name: str) -> list[str]:
        """The values of one header, whatever its case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Call:
    """One invocation and what was answered to it."""

    request_id: str
    payload: bytes
    headers: dict[str, str]
    chunked: bool
    raw: bytearray = field(default_factory=bytearray)
    """The answer's body as it came, framing and trailers included."""
    asked_on: int = 0
    answered_on: int = 0
    """Which connection asked for it and which answered, counted from 1."""

    def __post_init__(self) -> None:
        self._head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._chunks: asyncio.Queue[bytes | FramingError | None] = asyncio.Queue()
        self._trailers: asyncio.Future[list[tuple[str, str]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._closed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None

    async def head(self) -> Head:
        """The head of the answer, once it is there."""
        return await patiently(asyncio.shield(self._head))

    async def chunk(self) -> bytes | None:
        """The next chunk, once it is there whole; None at the end of the body."""
        got = await patiently(self._chunks.get())
        if isinstance(got, FramingError):
            raise got
        return got

    async def body(self) -> list[bytes]:
        """All chunks from here on, to the end of the body."""
        chunks = []
        while (chunk := await self.chunk()) is not None:
            chunks.append(chunk)
        return chunks

    async def trailers(self) -> list[tuple[str, str]]:
        """The trailers, once the body has ended."""
        return await patiently(asyncio.shield(self._trailers))

    async def closed(self) -> None:
        """Wait until the client has closed the connection it answered on."""
        await patiently(self._closed.wait())

    def hang_up(self) -> None:
        """Break the connection the answer comes on."""
        assert self._writer is not None
        self._writer.transport.abort()


class FakeRuntimeApi:
    """The API; `address` is what `AWS_LAMBDA_RUNTIME_API` holds."""

    def __init__(self) -> None:
        self.asked = 0
        """How often the next invocation was asked for."""
        self.connections = 0
        self.journal: list[str] = []
        """What came, in order; tests add their own lines."""
        self.break_next = 0
        """So many coming questions for an invocation are hung up on."""
        self.refuse_next = False
        """Answer such questions with 403, as to a runtime in the wrong state."""
        self.acknowledge = asyncio.Event()
        """Cleared, answers wait for their 202."""
        self.acknowledge.set()
        self._calls: asyncio.Queue[Call] = asyncio.Queue()
        self._by_id: dict[str, Call] = {}
        self._ids = count(1)
        self._init_error: asyncio.Future[tuple[Head, bytes]] | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._init_error = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    def invoke(
        self,
        event: dict[str, Any] | bytes,
        headers: dict[str, str] | None = None,
        *,
        chunked: bool = False,
    ) -> Call:
        """Queue an invocation; `chunked` sends the event without a Content-Length."""
        call = Call(
            request_id=f"request-{next(self._ids)}",
            payload=event if isinstance(event, bytes) else json.dumps(event).encode(),
            headers=headers or {},
            chunked=chunked,
        )
        self._by_id[call.request_id] = call
        self._calls.put_nowait(call)
        return call

    async def init_error(self) -> tuple[Head, bytes]:
        """What was posted to /runtime/init/error, once it is."""
        assert self._init_error is not None
        return await patiently(asyncio.shield(self._init_error))

    async def round_trip(self) -> None:
        """Ask this server something: whatever was on its way before has arrived after."""
        host, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /ping HTTP/1.1\r\n\r\n")
        await patiently(reader.readuntil(b"\r\n\r\n"))
        writer.close()
        await writer.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer, self.connections)
        except (EOFError, OSError):
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> None:
        while True:
            head = await _read_head(reader)
            if head.path == "/2018-06-01/runtime/invocation/next":
                if not await self._next(writer, connection):
                    return
            elif head.path == "/2018-06-01/runtime/init/error":
                body = await reader.readexactly(int(head.values("content-length")[0]))
                assert self._init_error is not None
                self._init_error.set_result((head, body))
                await _answer(writer, 202)
            elif match := re.fullmatch(
                r"/2018-06-01/runtime/invocation/([^/]+)/response", head.path
            ):
                call = self._by_id[match[1]]
                call.answered_on = connection
                call._writer = writer
                self.journal.append(f"answer to {call.request_id}")
                await self._take(call, head, reader, writer)
                if await reader.read(1) == b"":  # Lambda wants no request behind a streamed answer
                    call._closed.set()
                return
            else:
                await _answer(writer, 200 if head.path == "/ping" else 404)

    async def _next(self, writer: asyncio.StreamWriter, connection: int) -> bool:
        self.asked += 1
        self.journal.append("next")
        if self.break_next:
            self.break_next -= 1
            return False
        if self.refuse_next:
            await _answer(writer, 403)
            return True
        call = await self._calls.get()
        call.asked_on = connection
        lines = {"Lambda-Runtime-Aws-Request-Id": call.request_id, **call.headers}
        if call.chunked:
            half = len(call.payload) // 2
            parts = [call.payload[:half], call.payload[half:], b""]
            framed = b"".join(b"%X;part\r\n%b\r\n" % (len(part), part) for part in parts)
            await _answer(writer, 200, framed, {"Transfer-Encoding": "chunked", **lines})
        else:
            await _answer(writer, 200, call.payload, lines)
        return True

    async def _take(
        self,
        call: Call,
        head: Head,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        call._head.set_result(head)
        try:
            while chunk := await _read_chunk(reader, call.raw):
                call._chunks.put_nowait(chunk)
            trailers = []
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                call.raw += line
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                trailers.append((name, value))
            call.raw += line
        except FramingError as exc:
            call._chunks.put_nowait(exc)
            raise EOFError from exc
        call._trailers.set_result(trailers)
        call._chunks.put_nowait(None)
        self.journal.append(f"end of {call.request_id}")
        await self.acknowledge.wait()
        await _answer(writer, 202, b'{"status":"OK"}\n')


async def patiently(awaitable: Awaitable[T]) -> T:
    """The result, or TimeoutError after `PATIENCE` seconds."""
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def _read_head(reader: asyncio.StreamReader) -> Head:
    first, *lines = (
        (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n").split("\r\n")
    )
    method, path, _ = first.split(" ")
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    return Head(method, path, headers)


async def _read_chunk(reader: asyncio.StreamReader, raw: bytearray) -> bytes:
    line = await reader.readuntil(b"\r\n")
    raw += line
    if not re.fullmatch(rb"[0-9A-Fa-f]+\r\n", line):
        raise FramingError(f"not the size of a chunk: {line!r}")
    size = int(line, 16)
    if not size:
        return b""
    content = await reader.readexactly(size)
    end = await reader.readexactly(2)
    raw += content + end
    if end != b"\r\n":
        raise FramingError(f"a chunk of {size} bytes ends in {end!r}")
    return content


async def _answer(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> None:
    lines = {"Date": "Mon, 30 Nov 2026 00:00:00 GMT", **(headers or {})}
    if "Transfer-Encoding" not in lines:
        lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body)
    await writer.drain()
