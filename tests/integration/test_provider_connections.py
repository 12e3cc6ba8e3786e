"""Connections to providers: kept for every chain, bounded, and closed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chalicelib.config import Settings
from chalicelib.providers import ModelRequest, Models
from tests.support.chains import REQUEST, follow, run


class Counting:
    """Answers every request alike, on connections that it keeps and counts."""

    def __init__(self) -> None:
        self.opened, self.closed = 0, asyncio.Event()
        self.base_url = ""
        self._open: list[asyncio.StreamWriter] = []

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._open.append(writer)
        body = json.dumps(
            {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
        ).encode()
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
                )
        except asyncio.IncompleteReadError:
            self.closed.set()
        writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on a free port."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield
        finally:
            server.close()
            for writer in self._open:  # or a test that fails would wait for them
                writer.transport.abort()
            await server.wait_closed()


WHOLE = ModelRequest(system="", messages=REQUEST.messages, stream=False)


def test_connection_is_used_again_by_every_chain() -> None:
    """Lost if red: a TCP and a TLS handshake, for every turn."""

    async def call() -> int:
        server = Counting()
        async with server.serving():
            models = Models(Settings(openai_base_url=server.base_url))
            for specs in (["openai:a"], ["openai:a", "offline:o"], ["openai:a"]):
                _, error = await follow(await models.chain(specs=specs), WHOLE)
                assert error is None
            assert not server.closed.is_set()
            await models.close()
            await server.closed.wait()
            return server.opened

    assert run(call()) == 1


def test_connections_are_bounded_and_the_oldest_unused_is_closed() -> None:
    """Lost if red: a process that keeps a connection for each key that any tenant ever had."""

    async def call() -> int:
        server = Counting()
        async with server.serving():
            models = Models(Settings(openai_base_url=server.base_url))
            for part in range(3):  # 256 have room, and what was used lately is kept
                kept = await models.chain(specs=["openai:a"])
                await follow(kept, WHOLE)
                assert (server.opened, server.closed.is_set()) == (1, False)
                await models.chain(specs=[f"openai:{part}-{n}" for n in range(255)])
            await models.chain(specs=["openai:b"])
            await server.closed.wait()
            _, error = await follow(kept, WHOLE)
            assert error is None, "a turn that still has its chain can use it"
            await models.close()
            return server.opened

    assert run(call()) == 2
