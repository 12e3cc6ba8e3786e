"""Where a process asks for its role's key: a metadata service, and an STS that refuses."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_REFUSAL = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"


class RoleServer(ThreadingHTTPServer):
    """On 127.0.0.1; while `silent` the metadata service has nothing to tell."""

    def __init__(self, key: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.key, self.silent = dict(key), True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: RoleServer

    def do_PUT(self) -> None:
        self._answer(200, "a session")

    def do_GET(self) -> None:
        until = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = {"Code": "Success", "Token": "session", "Expiration": until, **self.server.key}
        told = "name" if self.path.endswith("/") else json.dumps(key)
        self._answer(404 if self.server.silent else 200, told)

    def do_POST(self) -> None:
        self._answer(403, _REFUSAL)

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's output is for its own words."""


@contextmanager
def role_server(key: Mapping[str, str]) -> Iterator[RoleServer]:
    """One that is silent at first, gone at the end."""
    with RoleServer(key) as made:
        serving = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        try:
            yield made
        finally:
            made.shutdown()
            serving.join()
