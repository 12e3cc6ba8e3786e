"""One HTTP request to an agent that listens on a unix socket.

What comes back is from where anyone's code runs, and is read as such: so much and no more.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

_LONGEST_ANSWER: Final = 64 * 1024 * 1024
_LONGEST_NAME: Final = 100  # bytes that the name of a socket may have everywhere


class NoAnswer(Exception):
    """The connection could not be made, or broke; `begun` if the request may have arrived."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self.begun = begun


class NonsenseAnswer(Exception):
    """What came is not an answer of the agent."""


async def request(
    path: str, method: str, target: str, body: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    """The status and the body of the answer. Bounded in size and not in time."""
    content = json.dumps(body).encode()
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: vm\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    async with _connected(path) as (reader, writer):
        try:
            writer.write(head.encode() + content)
            await writer.drain()
            return await _answer(reader)
        except (OSError, asyncio.IncompleteReadError) as exc:
            raise NoAnswer(begun=True) from exc
        except (ValueError, asyncio.LimitOverrunError, RecursionError) as exc:
            raise NonsenseAnswer from exc


@asynccontextmanager
async def _connected(
    path: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        with SocketName(path) as name:
            reader, writer = await asyncio.open_unix_connection(name)
    except OSError as exc:
        raise NoAnswer(begun=False) from exc
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    version, status, *_ = head[0].split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    fields = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
    length = int(fields["content-length"]) if "content-length" in fields else -1
    if not 0 <= length <= _LONGEST_ANSWER:
        raise ValueError(length)
    told = json.loads(await reader.readexactly(length))
    if not isinstance(told, dict):
        raise ValueError(type(told))
    return int(status), told


class SocketName:
    """A name for a socket's path that is short enough; good while it is entered."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> str:
        if len(self._path.encode()) <= _LONGEST_NAME or not Path("/proc/self/fd").is_dir():
            return self._path
        self._folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._folder}/{os.path.basename(self._path)}"

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)
