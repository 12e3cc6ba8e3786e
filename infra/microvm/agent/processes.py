"""Processes of runs: what each may use, and how none is left behind.

Code that runs here has the agent's own user: the VM is the border, and there is one for a session.
So this keeps runs from harming one another by accident and from wearing the VM out, and the agent's
memory and descriptors from being read; it does not keep code from ending its own VM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

from limits import Limits

_LINUX = sys.platform == "linux"
_SET_DUMPABLE, _SET_SUBREAPER = 4, 36
_PAGE = resource.getpagesize()
_PATIENCE = 2.0
_WORTH_COUNTING = 64 * 1024**2

_prctl: Callable[..., int] | None = ctypes.CDLL(None).prctl if _LINUX else None


def settle() -> None:
    """Make this process unreadable for others of its user, and the parent of their orphans."""
    if _prctl is not None:
        _prctl(_SET_DUMPABLE, 0, 0, 0, 0)
        _prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def environment(workspace: str) -> dict[str, str]:
    """What a run sees: nothing of the agent's own environment but where programs are."""
    return {
        "PATH": os.environ.get("PATH") or os.defpath,
        "HOME": workspace,
        "LANG": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",  # each thread's own arena would use up the address space
    }


def restrict(limits: Limits) -> Callable[[], None]:
    """What a child does between fork and exec; it takes no lock, as other threads may hold it."""
    bounds = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, limits.memory)]
    others = 0 if _own_user() else _of_user()
    if others is not None:
        bounds.append((resource.RLIMIT_NPROC, others + limits.processes))
    bounds = [(what, min(most, _hard(what))) for what, most in bounds]

    def apply() -> None:
        for what, most in bounds:
            try:
                resource.setrlimit(what, (most, most))
            except (OSError, ValueError):
                if _LINUX:
                    raise
        if _prctl is not None:
            _prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # or its own files in /proc are closed to it
            _first_to_go()

    return apply


def _own_user() -> bool:
    """True if whatever this user runs, as far as can be seen from here, is the agent's."""
    return os.environ.get("PAL_AGENT_OWN_USER") == "1"


def _reaches_runs_alone() -> bool:
    """True if no signal of this process gets to anyone but what it has started."""
    return _own_user() or os.environ.get("PAL_AGENT_OWN_USER") == "signals"


def _of_user() -> int | None:
    """How many threads this user has already, whoever started them; None if that is not told."""
    user, found = os.getuid(), None
    for name in _processes():
        fields = dict(
            line.split(":", 1) for line in _read(f"/proc/{name}/status").splitlines() if ":" in line
        )
        if fields.get("Uid", "").split()[:1] == [str(user)]:
            found = (found or 0) + int(fields.get("Threads", 0))
    return found


def _hard(what: int) -> int:
    hard = resource.getrlimit(what)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _first_to_go() -> None:
    """When memory runs out, the kernel of the system takes a run and not the agent."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"1000")
    except OSError:
        pass
    finally:
        os.close(descriptor)


def kill_group(leader: int) -> None:
    """SIGKILL to a group whose leader has not been waited for yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def sweep(keep: int | None = None) -> bool:
    """End all descendants but `keep` and its own; False if `keep` had to go with them.

    Only where /proc is: elsewhere what left its group lives on.
    """
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends:
        found = _descendants(keep)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        _reap(keep)
        if not found:
            return True
        time.sleep(0.001)
    if _reaches_runs_alone():
        # they fork faster than one can end them: this reaches all at once, and not ourselves
        os.kill(-1, signal.SIGKILL)
        _reap(keep)
    return False


def held() -> int:
    """Bytes of memory that all runs hold together; 0 where it cannot be known."""
    pids = _descendants(None)
    rough = sum(_private(pid) for pid in pids)
    if rough < _WORTH_COUNTING:
        return rough
    return sum(_proportional(pid) for pid in pids)


def _descendants(keep: int | None) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in _processes():
        state, parent = _parent(name)
        if state != "Z":
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child != keep:
                found.append(child)
                waiting.append(child)
    return found


def _processes() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()] if _LINUX else []
    except OSError:
        return []


def _parent(pid: str) -> tuple[str, int]:
    """The state and the parent of a process; ("Z", 0) once it has gone."""
    told = _read(f"/proc/{pid}/stat")
    fields = told[told.rfind(")") + 1 :].split()  # its name may hold anything
    return (fields[0], int(fields[1])) if len(fields) > 1 else ("Z", 0)


def _private(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _proportional(pid: int) -> int:
    """What a process holds, with its part of what it shares; a forked one shares much."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _private(pid)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _reap(keep: int | None) -> None:
    """Take note of orphans' ends, and leave `keep` to whoever waits for it."""
    if not _LINUX:
        return
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == keep:
            return
        os.waitpid(ended.si_pid, 0)
