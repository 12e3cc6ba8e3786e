"""What a deployment that is tried out may answer in place of what it should."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from scripts.deploying.errors import DeployError
from scripts.deploying.smoke import try_out

Serve = Callable[[dict[str, tuple[str, bytes]]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a body by method and path's end; the rest is `{"id": "s"}`. Bodies promise 9 more."""
    servers = []

    def start(answers: dict[str, tuple[str, bytes]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked = f"{self.command} {self.path.rpartition('/')[2]}"
                kind, body = answers.get(asked, ("application/json", b'{"id": "s"}'))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                promised = len(body) + (9 if body.endswith(b"...") else 0)
                self.send_header("Content-Length", str(promised))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("asked", "kind", "body", "told"),
    [
        pytest.param("GET healthz", "text/html", b"<p>hello", "no whole answer", id="page"),
        pytest.param("POST sessions", "application/json", b'{"i...', "no whole answer", id="cut"),
        pytest.param(
            "POST messages", "text/event-stream", b"data: <p>\n\n", "broke off", id="stream"
        ),
    ],
)
def test_answer_that_cannot_be_read_has_the_old_version_back(
    asked: str, kind: str, body: bytes, told: str, serve: Serve
) -> None:
    """Lost if red: the way back, for a traceback, while the broken version goes on serving."""
    base = serve({asked: (kind, body)})
    with pytest.raises(DeployError, match=told):
        try_out({"ApiUrl": base, "StreamUrl": base}, "pal_key", wait=0)
