"""The agent of a session's VM: runs code, keeps files, answers over HTTP. `python -I agent/`.

Python 3.9 or newer and nothing else. Of the environment:
- PAL_AGENT_PORT       TCP port on all addresses, 8080 unless one of the next two is set
- PAL_AGENT_SOCKET     path of a unix socket instead
- PAL_AGENT_FD         number of a socket that whoever starts this listens on already
- PAL_AGENT_HOOKS_PORT TCP port of AWS's hooks (see `hooks`); none unless set
- PAL_AGENT_WORKSPACE  the folder that runs work in, /workspace
- PAL_AGENT_OWN_USER   1 if all that its user can see to run is its own: then no other processes are
                       counted, and all are ended at once where they cannot be ended one by one;
                       "signals" if only the latter holds
- PAL_AGENT_SECONDS, _MEMORY, _PROCESSES, _OUTPUT, _CODE, _FILE: see `limits`

`GET /healthz`, `POST /v1/run`, `POST /v1/read`, `POST /v1/write`: see `server.routes`, and `run`,
`read` and `write` there. 4xx answers are `{"error": <sentence>, "code"}`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Any

import processes
from hooks import hooks
from limits import limits
from runner import Runner
from server import Server, routes
from workspace import Workspace

_WAITING = 64


def _listener() -> socket.socket:
    if inherited := os.environ.get("PAL_AGENT_FD"):
        found = socket.socket(fileno=int(inherited))
        found.set_inheritable(False)
        return found
    if path := os.environ.get("PAL_AGENT_SOCKET"):
        made = socket.socket(socket.AF_UNIX)
        before = os.umask(0o077)
        made.bind(path)
        os.umask(before)
        made.listen(_WAITING)
        return made
    return _bound(int(os.environ.get("PAL_AGENT_PORT") or 8080))


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("0.0.0.0", port))  # noqa: S104
    made.listen(_WAITING)
    return made


def _stop(*_: Any) -> None:
    raise SystemExit(0)


def main() -> None:
    """Serve until SIGTERM, and leave nothing that runs."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    bounds = limits()
    workspace = Workspace(
        os.environ.get("PAL_AGENT_WORKSPACE") or "/workspace", largest=bounds.file
    )
    processes.settle()
    runner = Runner(workspace.folder, bounds)
    try:
        if port := os.environ.get("PAL_AGENT_HOOKS_PORT"):
            beside = Server(_bound(int(port)), hooks(runner), bounds)
            threading.Thread(target=beside.serve_forever, daemon=True).start()
        Server(_listener(), routes(runner, workspace), bounds).serve_forever()
    finally:
        runner.end()
        processes.sweep()
        sys.stderr.flush()
        os._exit(0)  # threads of requests are not waited for


if __name__ == "__main__":
    main()
