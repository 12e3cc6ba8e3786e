"""VMs that are none: the agent in a sandboxed process of this host, for a laptop or a container.

Weaker than a VM. The kernel of the host is shared, so one flaw in it is enough; a program may learn
what hardware and which kernel there is, keep a processor busy, and fill the memory it is allowed.
What stands between code and the host:
- a user of its own for each sandbox where this runs as root, else a user namespace; no capability,
  and none to be had (no_new_privs)
- namespaces of processes, network (with a loopback only), mounts, IPC and host name: it sees its
  own processes, Python and the system's programs, an empty workspace, and nothing else of the disk
- a list of system calls that fail (`sandbox_calls`)
- limits on memory, processes, open files and sizes; an empty environment; no descriptor of ours

A namespace that the kernel refuses is gone without, and a warning says so once. A usual container
refuses all of them: then Landlock shows the same parts of the disk and keeps processes apart, and
the list keeps code from the network and local sockets; it can still fill the disk. Where there is
no Landlock either (before Linux 5.13, or left out), code reads what any user may read, as a user of
its own; and where this does not run as root, so that it would be our own user, no sandbox starts.
macOS has none of it and the sandbox is a process of this user with limits: good against accidents
only.

A sandbox ends with the process that started it, however that ends; see `sandbox`.
"""

import asyncio
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from chalicelib.config import Settings
from chalicelib.isolation.base import (
    AgentRefused,
    Listed,
    Machine,
    MachineGone,
    MachineSilent,
    MachineUnavailable,
)
from chalicelib.isolation.sandbox_folders import SOCKET, Folders, name_of
from chalicelib.isolation.sandbox_plan import Plan
from chalicelib.isolation.sandbox_wire import NoAnswer, NonsenseAnswer, SocketName, request

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_AGENT: Final = _CHECKOUT / "infra" / "microvm" / "agent"
_READY_SECONDS: Final = 60.0
_USERS: Final = ((200_000, 65_536), (20_000, 20_000))  # first and count; no one's by convention
_MEMORY: Final = 1 << 30
_FILES: Final = 256 << 20
_PROCESSES: Final = 64
_LONGEST_RUN: Final = 600
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    "from chalicelib.isolation.sandbox import main; main()"
)

_lifeline: tuple[int, int] | None = None
_holders: set[int] = set()
_told: set[str] = set()


class LocalDriver:
    """Sandboxes below the data folder. `refused`: namespaces to do without."""

    longest = 8 * 3600.0

    def __init__(
        self, settings: Settings, *, agent: Path = _AGENT, refused: tuple[str, ...] = ()
    ) -> None:
        self._data = Path(os.path.abspath(settings.data_dir))
        self._folders = Folders(self._data / "vms")
        self._agent = agent
        self._network = settings.microvm_network
        self._refused = refused
        self._own: set[str] = set()
        place = hashlib.sha256(str(self._data).encode()).hexdigest()[:8]
        self.name = f"local@{socket.gethostname()}/{place}"

    async def start(self, *, token: str, idle: float) -> Machine:
        """See `Driver`; `idle` changes nothing here."""
        machine, log = await _blocking(self._launch, name_of(token))
        try:
            async with asyncio.timeout(_READY_SECONDS):
                status, _ = await request(machine.endpoint, "GET", "/healthz", {})
            if status != 200:
                raise NonsenseAnswer
        except (NoAnswer, NonsenseAnswer, TimeoutError) as exc:
            _log.error("the sandbox did not start: %s", _written(log))
            raise MachineUnavailable("The sandbox did not start.") from exc
        else:
            _tell_without(log)
        finally:
            if log is not None:
                log.close()
        return machine

    async def ask(
        self, machine: Machine, path: str, body: dict[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """See `Driver`."""
        try:
            async with asyncio.timeout(timeout):
                status, told = await request(machine.endpoint, "POST", path, body)
        except NoAnswer as exc:
            raise MachineGone("The sandbox has ended.", begun=exc.begun) from exc
        except TimeoutError as exc:
            raise MachineSilent("The sandbox did not answer in time.") from exc
        except NonsenseAnswer as exc:
            raise MachineUnavailable("The sandbox's answer made no sense.") from exc
        if status == 200:
            return told
        error = told.get("error")
        if 400 <= status < 500 and isinstance(error, str):
            raise AgentRefused(error)
        raise MachineUnavailable("The sandbox could not do it.")

    async def terminate(self, machine_id: str) -> None:
        """See `Driver`."""
        await _blocking(self._end, machine_id)

    async def list(self) -> list[Listed]:
        """See `Driver`; what has been left behind by a process that was killed is removed."""
        return await _blocking(_listed, self._folders)

    async def close(self) -> None:
        """End what this driver has started: a laptop is left as it was found."""
        await asyncio.gather(*(self.terminate(machine_id) for machine_id in self._own))

    def _launch(self, machine_id: str) -> tuple[Machine, IO[bytes] | None]:
        """The sandbox, and what a new one writes while it starts."""
        with self._folders.locked():
            _reap()
            alive = {kept.id: kept for kept in self._folders.alive()}
            if kept := alive.get(machine_id):
                return self._machine(machine_id, kept.started_at), None
            if self._folders.has_ended(machine_id):
                raise MachineGone("The sandbox has ended.", begun=False)
            if not (self._agent / "__main__.py").is_file():
                raise MachineUnavailable("The sandbox's agent is not installed here.")
            uid = _free_user(machine_id, {kept.uid for kept in alive.values()})
            return self._spawn(machine_id, uid)

    def _spawn(self, machine_id: str, uid: int | None) -> tuple[Machine, IO[bytes]]:
        folder, lock = self._folders.make(machine_id)
        log = tempfile.TemporaryFile()  # noqa: SIM115  it is read once the agent answers, or not
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                with SocketName(str(folder / SOCKET)) as name:
                    listener.bind(name)
                listener.listen(64)
                plan = Plan(
                    folder=str(folder),
                    ended=str(self._folders.ended(machine_id)),
                    hidden=(str(self._data), str(_CHECKOUT)),
                    agent=str(self._agent),
                    python=os.path.realpath(sys.executable),
                    prefix=os.path.realpath(sys.base_prefix),
                    uid=uid,
                    network=self._network,
                    lifetime=self.longest,
                    memory=_MEMORY,
                    files=_FILES,
                    processes=_PROCESSES,
                    seconds=_LONGEST_RUN,
                    listener=listener.fileno(),
                    lifeline=_read_end(),
                    lock=lock,
                    refused=self._refused,
                )
                pid = _hold(plan, log)
            started_at = self._folders.note(lock, pid=pid, uid=uid)
        except OSError as exc:
            log.close()
            _log.error("the sandbox did not start: %s", exc)
            raise MachineUnavailable("The sandbox did not start.") from exc
        finally:
            os.close(lock)
        self._own.add(machine_id)
        return self._machine(machine_id, started_at), log

    def _end(self, machine_id: str) -> None:
        try:
            self._folders.end(machine_id)
        except ValueError:
            return  # never one of ours
        self._own.discard(machine_id)
        _reap()

    def _machine(self, machine_id: str, started_at: datetime) -> Machine:
        endpoint = str(self._folders.path(machine_id) / SOCKET)
        return Machine(id=machine_id, endpoint=endpoint, started_at=started_at)


def _listed(folders: Folders) -> list[Listed]:
    with folders.locked():
        _reap()
        alive = folders.alive()
    return [Listed(id=kept.id, started_at=kept.started_at) for kept in alive]


def _hold(plan: Plan, log: IO[bytes]) -> int:
    """The process that holds the sandbox; it has nothing of ours but what the plan names."""
    holder = subprocess.Popen(  # noqa: S603
        [plan.python, "-I", "-S", "-c", _START, str(_CHECKOUT), plan.dumps()],
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=(plan.listener, plan.lifeline, plan.lock),
        start_new_session=True,
    )
    holder.returncode = 0  # not to be complained of when this process ends first
    _holders.add(holder.pid)
    return holder.pid


def _read_end() -> int:
    """Of a pipe that nobody writes to: its other end closes when this process ends."""
    global _lifeline
    if _lifeline is None:
        _lifeline = os.pipe()
    return _lifeline[0]


def _reap() -> None:
    """Take note of the ends of our children."""
    for pid in tuple(_holders):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _holders.discard(pid)


def _free_user(machine_id: str, taken: set[int | None]) -> int | None:
    """A user id that no sandbox here has; None where one may not become another user."""
    if os.geteuid() != 0:
        return None
    mapped = _users_mapped()
    for first, count in _USERS:
        if first + count <= mapped:
            wanted = int(hashlib.sha256(machine_id.encode()).hexdigest(), 16)
            for step in range(count):
                uid = first + (wanted + step) % count
                if uid not in taken:
                    return uid
    raise MachineUnavailable("No user is left for a sandbox.")


def _users_mapped() -> int:
    """Ids from 0 on that exist where we run; a container may have few."""
    try:
        told = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return 1 << 31
    return int(told[2]) if told[:1] == ["0"] else 0


def _written(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    return log.read(4096).decode(errors="replace")


def _tell_without(log: IO[bytes] | None) -> None:
    """Warn of what the kernel refuses, once a process."""
    for line in _written(log).splitlines():
        word, _, names = line.partition(" ")
        if word == "without" and names not in _told:
            _told.add(names)
            if without := json.loads(names):
                _log.warning(
                    "sandboxes are weaker here, as the kernel refuses: %s", ", ".join(without)
                )


async def _blocking(work: Callable[..., T], *arguments: Any) -> T:
    """In a thread; what the disk says no to is the driver's inability."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as exc:
        _log.error("sandboxes cannot be kept: %s", exc)
        raise MachineUnavailable("Sandboxes cannot be kept here.") from exc
