"""The agent's HTTP: a table of routes, JSON in and out, bodies bounded."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import socketserver
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from limits import Limits
from refusal import Refused
from runner import Runner
from workspace import Workspace

Route = Callable[[dict[str, Any], Callable[[], bool]], dict[str, Any]]
"""Called with the body, and what tells whether the caller has hung up."""

_SECONDS_TO_SEND = 60


def routes(runner: Runner, workspace: Workspace) -> dict[tuple[str, str], Route]:
    """What there is to call, by method and path."""
    return {
        ("GET", "/healthz"): lambda *_: {"ok": True},
        ("POST", "/v1/run"): runner.run,
        ("POST", "/v1/read"): lambda body, _: workspace.read(body),
        ("POST", "/v1/write"): lambda body, _: workspace.write(body),
    }


class Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """Serves a listening socket, be it of TCP or of a path."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listener: socket.socket, table: dict[tuple[str, str], Route], limits: Limits
    ) -> None:
        super().__init__(listener.getsockname(), _Handler)
        self._listener = listener
        self.table = table
        # a text with each character escaped, and what stands around it
        self.longest_body = max(limits.file, limits.code) * 6 + 8192

    def fileno(self) -> int:
        """What is waited on for connections."""
        return self._listener.fileno()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection."""
        return self._listener.accept()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, or in this one where the system has none left."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Done with a connection."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is not worth a word; what was asked may be someone's secret."""
        print(f"{sys.exc_info()[0]} in a request", file=sys.stderr)  # noqa: T201


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS_TO_SEND

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        try:
            body = self._body()
        except Refused as exc:
            self.close_connection = True  # what comes next may be the body
            self._refuse(exc)
            return
        self._serve(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: whoever asks keeps the log."""

    def _serve(self, body: dict[str, Any]) -> None:
        route = self.server.table.get((self.command, self.path.partition("?")[0]))
        try:
            if route is None:
                raise Refused("There is no such call.", "not_found", status=404)
            self._answer(200, route(body, self._hung_up))
        except Refused as exc:
            self._refuse(exc)
        except OSError as exc:
            self._answer(500, {"error": f"The agent could not: {exc.strerror}.", "code": "failed"})

    def _hung_up(self) -> bool:
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused("The body's length is missing.", status=411)
        if len(length) > 12 or int(length) > self.server.longest_body:
            raise Refused("The body is too large.", "too_large", status=413)
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            raise Refused("The body is not JSON.") from None
        if not isinstance(body, dict):
            raise Refused("The body must be a JSON object.")
        return body

    def _refuse(self, refused: Refused) -> None:
        self._answer(refused.status, {"error": str(refused), "code": refused.code})

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
