"""A gateway as a process of its own, as a container runs it: it can be killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.postgres import TestDatabase, free_port

ROOT = Path(__file__).parents[2]


class GatewayProcess:
    """`python -m chalicelib.gateway` on a database, started and ready."""

    def __init__(self, database: TestDatabase, provider_url: str, **settings: str) -> None:
        listen = database.direct if database.app == database.direct else ""
        port = free_port()
        self.base = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chalicelib.gateway"],
            cwd=ROOT,
            env={
                **{name: value for name, value in os.environ.items() if name[:4] != "PAL_"},
                "PAL_DATABASE_URL": database.app,
                "PAL_DATABASE_LISTEN_URL": listen,
                "PAL_DATABASE_POOL": "6",
                "PAL_PORT": str(port),
                "PAL_PROVIDERS": "openai:fake",
                "PAL_SESSION_TREE": "plain",  # scripted providers would be asked to keep it
                "PAL_LOG_LEVEL": "WARNING",
                "OPENAI_BASE_URL": provider_url,
                "OPENAI_API_KEY": "sk-fake",
                **settings,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), f"the gateway did not start: {line!r}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up."""
        self._process.kill()
        self._wait()

    def stop(self) -> int:
        """SIGINT, as Ctrl-C does; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        return self._wait()

    def _wait(self) -> int:
        assert self._process.stdout is not None
        try:
            return self._process.wait(30)
        finally:
            self._process.kill()
            self._process.stdout.close()
