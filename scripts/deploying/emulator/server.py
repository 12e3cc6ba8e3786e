"""Where the emulator is: LocalStack's, or a moto server that is started here."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from botocore.config import Config
from localstack_client.config import parse_localstack_host
from localstack_client.session import Session

from ..account import Account
from ..errors import DeployError

REGION = "eu-central-1"
# moto knows the policies that AWS manages only if it is told to
MOTO = {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
_PORT = 4566
_START_SECONDS = 30.0

# those of this process; they are to outlive it, and so are held and not waited for
_started: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """An emulator that answers."""

    kind: Literal["localstack", "moto"]
    host: str

    def account(self, region: str = REGION) -> Account:
        """Its one account."""
        session = Session(region_name=region, localstack_host=self.host)
        config = Config(retries={"max_attempts": 2}, read_timeout=120)
        return Account(lambda service: session.client(service, config=config), region)


def address() -> str:
    """`host:port` of LOCALSTACK_HOST, else LocalStack's port on this machine."""
    given = os.environ.get("LOCALSTACK_HOST", "").strip() or f"127.0.0.1:{_PORT}"
    try:
        host, port = parse_localstack_host(given)
    except RuntimeError as exc:
        raise DeployError(f"LOCALSTACK_HOST must be host:port, not {given!r}.") from exc
    return f"{host}:{port}"


def find(host: str) -> Emulator | None:
    """What answers there; None if nothing does. Raises DeployError if it is no emulator."""
    try:
        if "services" in json.loads(_get(f"http://{host}/_localstack/health") or "{}"):
            return Emulator(kind="localstack", host=host)
        if _get(f"http://{host}/moto-api/config") is not None:
            return Emulator(kind="moto", host=host)
    except (OSError, ValueError):
        return None
    raise DeployError(f"What answers at {host} is neither LocalStack nor moto's server.")


def _get(url: str) -> bytes | None:
    """The body; None where the answer is an error. Raises OSError if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as exc:
        exc.close()
        return None


def start_moto(host: str, folder: Path, say: Callable[[str], None]) -> Emulator:
    """Start moto's server there and leave it running; its pid and log go into the folder."""
    name, _, port = host.rpartition(":")
    if name not in ("127.0.0.1", "localhost"):
        raise DeployError(f"Nothing answers at {host}, and a server is started on 127.0.0.1 only.")
    folder.mkdir(parents=True, exist_ok=True)
    log, pid = (_file(folder, host, kind) for kind in ("log", "pid"))
    with log.open("ab") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port],
            env={**os.environ, **MOTO},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _started[server.pid] = server
    pid.write_text(f"{server.pid}\n")
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and server.poll() is None:
        if found := find(host):
            say(f"Nothing listened at {host}: moto's server runs there now, process {server.pid}.")
            say("It keeps what it is given in memory until ./scripts/deploy --local --stop.")
            return found
        time.sleep(0.1)
    server.terminate()
    _started.pop(server.pid).wait(10)
    pid.unlink(missing_ok=True)
    raise DeployError(f"moto's server did not start on {host}; its log is {log}.")


def stop_moto(host: str, folder: Path) -> bool:
    """End the server that was started there by us; False if none runs."""
    file = _file(folder, host, "pid")
    try:
        server = psutil.Process(int(file.read_text()))
        # a pid is given out again; this one must still be ours
        if "moto.server" not in server.cmdline():
            raise ValueError(server.pid)
    except (OSError, ValueError, psutil.Error):
        file.unlink(missing_ok=True)
        return False
    server.terminate()
    try:
        server.wait(10)
    except psutil.TimeoutExpired:
        server.kill()
    if own := _started.pop(server.pid, None):
        own.wait(10)
    file.unlink(missing_ok=True)
    return True


def _file(folder: Path, host: str, kind: str) -> Path:
    """One for each port, so that a second server does not make the first one forgotten."""
    return folder / f"moto-{host.rpartition(':')[2]}.{kind}"
