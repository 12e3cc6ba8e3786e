"""The processes under test: started on free ports, watched through /proc, ended by their ids."""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).parents[2]
READY = re.compile(r"^ready (http://\S+)(?: key=(\S+))?", re.MULTILINE)


class NotStarted(Exception):
    """A process ended, or said nothing, instead of getting ready."""


def allow_many_files() -> None:
    """Raise this process's limit of open files, which the server inherits, as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """This environment without what would leak into the server: PAL_* and PYTHONPATH."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PAL_") and k != "PYTHONPATH"}


class Program:
    """A child in a process group of its own, with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        self._from = log.stat().st_size if log.exists() else 0
        self._out: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, seconds: float, line: re.Pattern[str] = READY) -> re.Match[str]:
        """The `ready …` line of this start; raises NotStarted with the end of the output."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            text = self._log.read_bytes()[self._from :].decode(errors="replace")
            if found := line.search(text):
                return found
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        tail = self._log.read_bytes()[self._from :].decode(errors="replace")[-2000:]
        raise NotStarted(f"exit status {self._process.poll()}, its output ends:\n{tail}")

    def close(self) -> None:
        """Let go of the output of a program that has ended."""
        self._out.close()

    def wait(self, seconds: float) -> int | None:
        """The exit status; None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def stop(self, seconds: float = 40.0) -> int | None:
        """Interrupt it, wait, and kill what is left of its group."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        status = self.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(5)
        self.close()
        return status


@contextlib.contextmanager
def provider() -> Iterator[tuple[str, int]]:
    """The fake provider as a process: its base URL, which ends in /v1, and its process id."""
    with tempfile.TemporaryDirectory(prefix="bench-provider-") as folder:
        script = str(ROOT / "tests" / "fakes" / "openai_server.py")
        command = [sys.executable, script, "--port", "0"]
        program = Program(command, Path(folder) / "log", clean_environment())
        try:
            yield program.wait_ready(20)[1], program.pid
        finally:
            program.stop(5)


@dataclass
class Server:
    """The server under test on its own data folder, startable again after a stop or a kill.

    `settings` are variables, and win over the provider's.
    """

    command: list[str]
    provider_url: str
    model: str
    settings: Mapping[str, str]

    def __post_init__(self) -> None:
        # Postgres may run as another user, who must be able to reach the data.
        self._folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._folder.chmod(0o755)
        self.data = self._folder / "data"
        self.log = self._folder / "log"
        self.port = free_port()
        self.url = self.key = ""
        self.start_seconds = 0.0
        self._program: Program | None = None

    def start(self, seconds: float = 180.0) -> None:
        """Start it and wait until it is ready."""
        env = clean_environment()
        env["PATH"] = f"{Path(sys.executable).parent}:{env.get('PATH', '')}"
        env.update(
            PAL_DATA_DIR=str(self.data),
            PAL_PORT=str(self.port),
            PAL_PROVIDERS=f"openai:{self.model}",
            OPENAI_BASE_URL=self.provider_url,
            OPENAI_API_KEY="bench",
        )
        env.update(self.settings)
        if self._program is not None:  # it was killed
            self._program.close()
        began = time.monotonic()
        self._program = Program(self.command, self.log, env)
        line = self._program.wait_ready(seconds)
        self.url, self.key = line[1], line[2] or ""
        self.start_seconds = time.monotonic() - began

    def stop(self) -> int | None:
        """Interrupt and wait; the exit status, None if it had to be killed."""
        if self._program is None:
            return None
        status = self._program.stop()
        self._program = None
        if (postmaster := self.postmaster()) is not None:
            with contextlib.suppress(psutil.Error):
                postmaster.send_signal(signal.SIGINT)
                postmaster.wait(20)
        return status

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_gateway(self) -> None:
        """SIGKILL the process that listens on the port, and only that."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                sockets = process.net_connections("tcp")
                if any(
                    s.status == psutil.CONN_LISTEN and s.laddr.port == self.port for s in sockets
                ):
                    process.kill()
                    return
        raise NotStarted(f"nothing of the server listens on port {self.port}")

    def ended(self, seconds: float) -> bool:
        """Whether the started command ends within so many seconds."""
        return self._program is None or self._program.wait(seconds) is not None

    def postmaster(self) -> psutil.Process | None:
        """The embedded Postgres; None if it does not run."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int((self.data / "postgres" / "postmaster.pid").read_text().splitlines()[0])
            process = psutil.Process(pid)
            if "postgres" in process.name():
                return process
        return None

    def _postgres(self) -> list[psutil.Process]:
        return tree(self.postmaster())

    def processes(self) -> list[psutil.Process]:
        """The server's own processes: everything started by it but Postgres."""
        if self._program is None:
            return []
        with contextlib.suppress(psutil.Error):
            postgres = {p.pid for p in self._postgres()}
            mine = tree(psutil.Process(self._program.pid))
            return [p for p in mine if p.pid not in postgres and not is_postgres(p)]
        return []

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far of the server's own processes and of Postgres."""
        return cpu_seconds(self.processes()), cpu_seconds(self._postgres())

    def rss_mb(self) -> float:
        """Resident megabytes of the server's own processes."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total / 1e6


def is_postgres(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() in ("postgres", "postmaster", "pg_ctl")
    return False


def tree(process: psutil.Process | None) -> list[psutil.Process]:
    """A process and all its descendants; nothing if it is gone."""
    if process is None:
        return []
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system seconds, those of ended children included."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
