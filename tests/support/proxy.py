"""A TCP proxy before the database, which can go silent, lose an answer, or be gone."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres import Cluster
from tests.support.stack import Loop


class Proxy:
    """Forwards each connection to the server (or its pooler) until it is told otherwise."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = Loop()
        self._flows: list[asyncio.Event] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._seen = threading.Condition()
        self._bytes = b""
        self._silent = False
        self._lose: bytes | None = None
        self.accepted = 0
        self._server = self._loop.run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def url(self, role: str, database: str) -> str:
        """This role's way to this database."""
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def fall_silent(self, *, new_ones: bool = False) -> None:
        """Pass nothing on any more, on the connections there are, or on new ones as well."""

        async def stop() -> None:
            self._silent = new_ones
            for flow in self._flows:
                flow.clear()
            self._flows.clear()

        self._loop.run(stop())

    def speak(self) -> None:
        """Forward new connections again. Those that fell silent stay so."""
        self._silent = False

    def lose_answer_to(self, statement: bytes) -> None:
        """Cut the next connection that sends this, once the server has answered it."""
        self._lose = statement

    def sent(self, statement: bytes) -> int:
        """How often clients have sent this."""
        with self._seen:
            return self._bytes.count(statement)

    def wait_sent(self, statement: bytes, seconds: float = 15) -> None:
        """Until a client has sent this."""
        with self._seen:
            assert self._seen.wait_for(lambda: statement in self._bytes, seconds), statement

    def close(self) -> None:
        """Be gone, with every connection."""
        self._loop.loop.call_soon_threadsafe(self._server.close)
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = self._loop.loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = asyncio.Event()
        if not self._silent:
            flow.set()
            self._flows.append(flow)
        losing = asyncio.Event()
        try:
            server, to_server = await self._connect()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._up(reader, to_server, flow, losing))
                    group.create_task(_down(server, writer, flow, losing))
            finally:
                to_server.close()
        except* OSError:
            pass  # either end is gone, and then the other goes as well
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._cluster.pooler is not None:
            return await asyncio.open_connection(*self._cluster.pooler)
        return await asyncio.open_unix_connection(f"{self._cluster.socket_dir}/.s.PGSQL.5432")

    async def _up(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: asyncio.Event,
        losing: asyncio.Event,
    ) -> None:
        while data := await reader.read(1 << 16):
            with self._seen:
                self._bytes += data
                self._seen.notify_all()
            if self._lose is not None and self._lose in data:
                self._lose = None
                losing.set()
            await flow.wait()
            writer.write(data)
        raise ConnectionResetError


async def _down(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    flow: asyncio.Event,
    losing: asyncio.Event,
) -> None:
    while data := await reader.read(1 << 16):
        await flow.wait()
        if losing.is_set():
            break
        writer.write(data)
    raise ConnectionResetError


@contextmanager
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    """A proxy, gone at the end."""
    made = Proxy(cluster)
    try:
        yield made
    finally:
        made.close()
