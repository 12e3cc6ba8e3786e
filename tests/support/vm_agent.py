"""The agent of a session's VM as a process of its own, and a client of it."""

import http.client
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

AGENT = Path(__file__).parents[2] / "infra" / "microvm" / "agent"
MEMORY = 256 << 20
FILE = 1 << 20


class SocketConnection(http.client.HTTPConnection):
    """A connection to the path of a socket."""

    def __init__(self, path: str) -> None:
        super().__init__("vm", timeout=50)
        self._path = path

    def connect(self) -> None:
        """Instead of a TCP connection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(50)
        self.sock.connect(self._path)


class Agent:
    """A running agent and its workspace."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.workspace = folder / "workspace"
        self.socket = os.path.relpath(folder / "agent.sock")
        self.process = psutil.Popen(
            [sys.executable, "-I", str(AGENT)],
            env={
                "PATH": os.environ["PATH"],
                "PAL_AGENT_SOCKET": self.socket,
                "PAL_AGENT_WORKSPACE": str(self.workspace),
                "PAL_AGENT_MEMORY": str(MEMORY),
                "PAL_AGENT_FILE": str(FILE),
                **environment,
            },
        )

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return int(self.process.wait(20))

    def send(self, method: str, path: str, content: bytes | str) -> tuple[int, dict[str, Any]]:
        """Any request; the status and the answer."""
        connection = SocketConnection(self.socket)
        try:
            connection.request(method, path, content)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def call(self, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
        """A POST of a JSON object."""
        return self.send("POST", path, json.dumps(body))

    def run(self, code: str, language: str = "python", **more: Any) -> dict[str, Any]:
        """What a run that was not refused has given."""
        status, answer = self.call("/v1/run", language=language, code=code, **more)
        assert status == 200, answer
        return answer

    def shell(self, code: str, **more: Any) -> dict[str, Any]:
        """The same, in a shell."""
        return self.run(code, "shell", **more)

    def children(self) -> list[psutil.Process]:
        """All that it has started, and what those have."""
        found: list[psutil.Process] = self.process.children(recursive=True)
        return found
