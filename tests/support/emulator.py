"""AWS's Lambda emulator, which starts a function at its first invocation and asks it from then on.

It panics when it is invoked while another invocation runs, so it is asked one thing at a time.
"""

import http.client
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support.postgres import free_port, wait_for_port
from tests.support.skipping import skip_except_in_ci

ROOT = Path(__file__).parents[2]
RIE = ROOT / ".cache/rie/aws-lambda-rie"
_PATH = "/2015-03-31/functions/function/invocations"


class Invoked(NamedTuple):
    """What the emulator hands on of an answer."""

    headers: http.client.HTTPMessage
    content: bytes


class Emulator:
    """The emulator at work."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self._port, self._process = port, process

    def invoke(self, event: Any, *, seconds: float = 20) -> Invoked:
        """One invocation; AssertionError when the function is not ready for it in time."""
        deadline = time.monotonic() + seconds
        while True:
            invoked = self._post(json.dumps(event), seconds)
            # managed instances do not queue a call that comes before the loop has asked again
            if invoked.headers["Error-Type"] != "Runtime.Unavailable":
                return invoked
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def processes(self) -> list[psutil.Process]:
        """The emulator, `timeout` before it, and the function once it has been invoked."""
        return [self._process, *self._process.children(recursive=True)]

    def _post(self, event: str, seconds: float) -> Invoked:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)
        try:
            connection.request("POST", _PATH, event, {"X-Amzn-Trace-Id": "Root=1-2-3"})
            answer = connection.getresponse()
            return Invoked(answer.headers, answer.read())
        finally:
            connection.close()


@contextmanager
def emulator(
    script: str, env: Mapping[str, str], *, prefix: Sequence[str] = (), cwd: Path = ROOT
) -> Iterator[Emulator]:
    """Run a shell script that ends in `exec "$RIE" $ADDRESSES …`; all it started is gone after."""
    if not RIE.exists():
        skip_except_in_ci(f"{RIE.relative_to(ROOT)} is missing: run scripts/fetch-rie")
    front, back = free_port(), free_port()
    own = {
        "RIE": str(RIE),
        "ADDRESSES": f"--runtime-interface-emulator-address 127.0.0.1:{front} "
        f"--runtime-api-address 127.0.0.1:{back}",
    }
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            ["timeout", "60", *prefix, "sh", "-c", script],
            env={**env, **own},
            cwd=cwd,
            stdout=log,
            stderr=log,
        )
        made = Emulator(front, psutil.Process(child.pid))
        try:
            wait_for_port(front, child)
            yield made
        finally:
            started = made.processes() if child.poll() is None else []
            child.terminate()
            for left in psutil.wait_procs(started, timeout=5)[1]:
                left.kill()
            child.wait(timeout=20)
            log.seek(0)
            print(log.read().decode(errors="replace"))  # seen when the test fails
