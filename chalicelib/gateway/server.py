"""The gateway as a process: one uvicorn server on one loop, drained before it goes."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chalicelib import bridge, services
from chalicelib.api.app import PalApp, new_request_id
from chalicelib.api.call import error_answer
from chalicelib.config import Settings
from chalicelib.errors import InvalidRequest
from chalicelib.gateway.asgi import Gateway
from chalicelib.services import Services


class PortTaken(Exception):
    """Someone listens on the address already; the message is one sentence for a person."""


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn reads it; what it cannot read is refused in the contract's shape."""

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP request, and hang up."""
        request_id = new_request_id()
        refusal = InvalidRequest("This is no HTTP request that can be read.")
        body = error_answer(refusal, request_id).text().encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """A uvicorn server that says when it serves, and leaves the signals to us."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing: a signal starts the drain, which stops the server when it is through."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises PortTaken. Calls that come before the server runs wait in it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # a caller that stopped reading without a word is given up after 30 s; accepted ones inherit it
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    # a token waits for no other one to fill its packet
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as exc:
        sock.close()
        raise PortTaken(f"Something listens on {host}:{port} already; set PAL_PORT.") from exc
    sock.set_inheritable(True)
    return sock


def run(app: PalApp, settings: Settings, sock: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, then drain and return. `on_ready` is called once it serves."""
    uvloop.run(_serve(app, settings, sock, on_ready))


async def _serve(
    app: PalApp, settings: Settings, sock: socket.socket, on_ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    bridge.lend(loop)
    made = Services.build(settings)
    await made.start(sweeping=True)
    services.use(made)
    gateway = Gateway(app)
    server = _Server(
        uvicorn.Config(
            Starlette(routes=[Mount("/", app=gateway)]),
            http=_Protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
        ),
        on_ready,
    )
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    serving = loop.create_task(server.serve(sockets=[sock]))
    try:
        stopping = loop.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    finally:
        # the second signal does not wait for the drain
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, made.engine.hurry)
        await made.stop()
        server.should_exit = True
        await serving
        gateway.close()
        services.use(None)
