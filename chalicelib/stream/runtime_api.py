"""The wire of Lambda's Runtime API: HTTP/1.1 on a raw connection.

A streamed answer needs what HTTP libraries hide: every piece on the wire at once as a chunk of its
own, trailers behind the last one, and a connection that broke told apart from a body that failed.
"""

import asyncio
import base64
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger(__name__)

_ROOT: Final = "/2018-06-01/runtime"
_ERROR_TYPE: Final = "Lambda-Runtime-Function-Error-Type"
_ERROR_BODY: Final = "Lambda-Runtime-Function-Error-Body"
_STREAMING: Final = (
    "Content-Type: application/vnd.awslambda.http-integration-response\r\n"
    "Lambda-Runtime-Function-Response-Mode: streaming\r\n"
    "Transfer-Encoding: chunked\r\n"
    f"Trailer: {_ERROR_TYPE}, {_ERROR_BODY}\r\n"
)
_PRELUDE_END: Final = bytes(8)
# The length and the connection are Lambda's to say: it chunks the answer anew.
_HOP_BY_HOP: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})

_MAX_FAILURES: Final = 8  # in a row, about 5 s in all
_SETTLED_SECONDS: Final = 1.0  # a wait that held this long was a working connection


class RuntimeApiError(Exception):
    """The Runtime API refuses or cannot be reached: this process is of no more use."""


class ConnectionLost(Exception):
    """The connection broke while an answer was being sent: nobody reads it any more."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What `next` brings: the event's bytes, and headers by their lower-case names."""

    headers: dict[str, str]
    payload: bytes

    @property
    def request_id(self) -> str:
        """The id that its answer must bear."""
        return self.headers["lambda-runtime-aws-request-id"]


def encode_prelude(status: int, headers: Sequence[tuple[str, str]]) -> bytes:
    """The JSON head of an answer and the 8 NULs that end it.

    Lambda takes one value a header and cookies apart, so repeated headers are joined by commas.
    """
    single: dict[str, str] = {}
    cookies: list[str] = []
    for name, value in headers:
        key = name.lower()
        if key == "set-cookie":
            cookies.append(value)
        elif key not in _HOP_BY_HOP:
            single[key] = f"{single[key]}, {value}" if key in single else value
    head = {"statusCode": status, "headers": single, "cookies": cookies}
    return json.dumps(head, separators=(",", ":")).encode() + _PRELUDE_END


def _error_object(error_type: str, sentence: str) -> bytes:
    shape = {"errorMessage": sentence, "errorType": error_type, "stackTrace": []}
    return json.dumps(shape).encode()


class RuntimeApi:
    """A client of the API at `address` (`host:port`), for one invocation at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def next(self) -> Invocation:
        """Wait for an invocation as long as it takes, connecting again when that breaks.

        RuntimeApiError when the API refuses, or breaks again and again.
        """
        failures = 0
        while True:
            asked = time.monotonic()
            try:
                status, headers, body = await self._call("GET", "/invocation/next")
            except (OSError, EOFError) as exc:
                self.close()
                held = time.monotonic() - asked > _SETTLED_SECONDS
                failures = 1 if held else failures + 1
                if failures > _MAX_FAILURES:
                    raise RuntimeApiError("the Runtime API cannot be reached") from exc
                await asyncio.sleep(0.01 * 2**failures)
                continue
            if status != 200:
                raise RuntimeApiError(f"the Runtime API gave {status} for the next invocation")
            return Invocation(headers=headers, payload=body)

    async def answer(self, request_id: str, prelude: bytes) -> "Answer":
        """Begin the streamed answer with its prelude; ConnectionLost if that fails."""
        try:
            reader, writer = await self._connect()
            head = self._head("POST", f"/invocation/{request_id}/response", _STREAMING)
            writer.write(head + _chunk(prelude))
            await writer.drain()
        except OSError as exc:
            self.close()
            raise ConnectionLost from exc
        return Answer(self, reader, writer)

    async def init_error(self, error_type: str, sentence: str) -> None:
        """Tell that the function could not start; RuntimeApiError if even that fails."""
        body = _error_object(error_type, sentence)
        more = (
            "Content-Type: application/vnd.aws.lambda.error+json\r\n"
            f"Content-Length: {len(body)}\r\n{_ERROR_TYPE}: Runtime.{error_type}\r\n"
        )
        try:
            await self._call("POST", "/init/error", more, body)
        except (OSError, EOFError) as exc:
            raise RuntimeApiError("the Runtime API did not take the start's failure") from exc
        finally:
            self.close()

    def close(self) -> None:
        """Drop the connection. Nothing is flushed: what was sent whole has been acknowledged."""
        if self._streams:
            self._streams[1].transport.abort()
            self._streams = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            self.close()
        if not self._streams:
            host, _, port = self._address.rpartition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        return self._streams

    def _head(self, method: str, path: str, more: str = "") -> bytes:
        return f"{method} {_ROOT}{path} HTTP/1.1\r\nHost: {self._address}\r\n{more}\r\n".encode()

    async def _call(
        self, method: str, path: str, more: str = "", body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        reader, writer = await self._connect()
        writer.write(self._head(method, path, more) + body)
        await writer.drain()
        status, headers, content = await _read(reader)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, content


class Answer:
    """A streamed answer that has begun. Every method raises ConnectionLost once nobody reads."""

    def __init__(
        self, api: RuntimeApi, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._api, self._reader, self._writer = api, reader, writer

    async def send(self, piece: bytes) -> None:
        """Put one piece on the wire at once. An empty one is skipped: it would end the body."""
        if piece:
            await self._write(_chunk(piece))

    async def end(self) -> None:
        """End the body."""
        await self._write(b"0\r\n\r\n")

    async def fail(self, error_type: str, sentence: str) -> None:
        """End the body in failure: Lambda hands the two trailers on to the invoker."""
        body = base64.b64encode(_error_object(error_type, sentence)).decode()
        trailers = f"{_ERROR_TYPE}: Function.{error_type}\r\n{_ERROR_BODY}: {body}\r\n"
        await self._write(f"0\r\n{trailers}\r\n".encode())

    async def acknowledged(self) -> None:
        """Wait until Lambda has taken the whole answer, then close the connection.

        Lambda's rule for streamed answers asks for the close; it costs no caller anything.
        """
        try:
            status, _, _ = await _read(self._reader)
        except (OSError, EOFError) as exc:
            raise ConnectionLost from exc
        finally:
            self._api.close()
        if status != 202:
            logger.warning("Lambda did not accept an answer", extra={"action": "answer_refused"})

    async def _write(self, data: bytes) -> None:
        try:
            # a half-closed socket still takes bytes, but its owner has gone
            if self._reader.at_eof():
                raise ConnectionResetError
            self._writer.write(data)
            await self._writer.drain()
        except OSError as exc:
            self._api.close()
            raise ConnectionLost from exc


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One HTTP answer: status, headers by lower-case name, content."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = await _read_chunks(reader)
    elif "content-length" in headers:
        content = await reader.readexactly(int(headers["content-length"]))
    else:
        content = await reader.read()
    return int(status_line.split(" ", 2)[1]), headers, content


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(pieces)
