"""The process that holds one sandbox: starts the agent in it, ends it, tidies up.

A program of its own, run as root or not, with an empty environment. It lives outside the sandbox;
its child is the sandbox's first process and becomes the agent. Whatever ends (the child, the
process that wanted the VM, the VM's time), all inside is killed and the folder is removed. Killed
itself, it takes its child along.

What the kernel refuses is gone without, and named on stderr.
"""

import errno
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from chalicelib.isolation.sandbox_calls import refuse_calls
from chalicelib.isolation.sandbox_files import confine
from chalicelib.isolation.sandbox_linux import (
    LINUX,
    adopt_orphans,
    descendants,
    die_with_parent,
    give_up_privileges,
    raise_loopback,
    unshare,
)
from chalicelib.isolation.sandbox_plan import Plan
from chalicelib.isolation.sandbox_root import (
    AGENT,
    WORKSPACE,
    enter_root,
    let_go,
    private_mounts,
)

_REFUSALS: Final = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOSPC}
_INNER_USER: Final = 1000
_LISTENER: Final = 3
_SPARE_PROCESSES: Final = 32  # the agent's own threads, when runs have used up theirs
_LARGEST_FILE: Final = 1 << 30
_OPEN_FILES: Final = 256  # of each process; what waits in sockets is counted for none


def main() -> None:
    """Hold the sandbox of the plan that the first argument tells, until its end."""
    plan = Plan.loads(sys.argv[1])
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, _wake)
    without = _leave_namespaces(plan)
    if LINUX:
        adopt_orphans()
    holder, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held)
        _become_agent(plan, without, holder)
    os.close(plan.listener)
    try:
        _watch(plan, child, woken)
    finally:
        _end(plan, child, alone="pid" not in without)
        if "mount" not in without:
            let_go(plan)
        remove(plan.folder, plan.ended)


def remove(folder: str, ended: str) -> None:
    """What is on the disk of a VM whose processes have ended."""
    with suppress(FileExistsError), open(ended, "x"):
        pass
    with suppress(OSError):
        _remove_tree(Path(folder, "scratch").read_text())
    _remove_tree(folder)


def _leave_namespaces(plan: Plan) -> list[str]:
    """All that the kernel lets us; names those refused."""
    without = []
    uid, gid = os.getuid(), os.getgid()
    wanted = ["mount", "pid", "network", "ipc", "hostname"]
    if plan.network:
        wanted.remove("network")
    if plan.uid is None:
        wanted.insert(0, "user")
    for name in wanted:
        try:
            # the /proc of other processes than one sees would mislead the agent
            if name in plan.refused or not LINUX or (name == "pid" and "mount" in without):
                raise PermissionError(errno.EPERM, name)
            unshare(name)
            if name == "mount":
                private_mounts(plan)
        except OSError as exc:
            if exc.errno not in _REFUSALS:
                raise  # a weaker sandbox is for kernels that have no better, not for mishaps
            without.append(name)
            continue
        if name == "user":
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{_INNER_USER} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{_INNER_USER} {gid} 1")
    return without


def _become_agent(plan: Plan, without: list[str], holder: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _exec_agent(plan, without, holder)
    except BaseException as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(1)


def _exec_agent(plan: Plan, without: list[str], holder: int) -> None:
    uid, gid = (os.getuid(), os.getgid()) if plan.uid is None else (plan.uid, plan.uid)
    os.umask(0o022)
    if "network" not in without and not plan.network:
        raise_loopback()
    if "hostname" not in without and LINUX:
        _name_host()
    counted = plan.uid is not None or not {"user", "pid"} & set(without)
    if "mount" in without:
        agent, workspace = plan.agent, _folder_outside(plan, uid, gid)
    else:
        unshare("mount")  # its holder keeps the host's root, to tidy up there
        without = [*without, *enter_root(plan, uid=uid, gid=gid)]
        agent, workspace = AGENT, WORKSPACE
    os.chdir("/")
    _bound(plan, counted=counted)
    if LINUX:
        give_up_privileges()
    if plan.uid is not None:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if LINUX:
        die_with_parent(signal.SIGKILL)
        if select.select([holder], [], [], 0)[0]:
            os._exit(1)  # it ended before that could be said
    alone = "mount" not in without
    if LINUX and not alone:
        without = [*without, *confine(plan, workspace=workspace)]
        if "files" in without and plan.uid is None:
            # it would read what this service is told and keeps, and give it to whoever asks
            raise PermissionError("no namespace, no user and no Landlock keep code from our files")
    scoped = LINUX and not alone and not {"files", "signals"} & set(without)
    networked = plan.network or "network" not in without
    if not LINUX or not refuse_calls(network=networked, paths=alone):
        without = [*without, "system calls"]
    print("without", json.dumps(without), file=sys.stderr, flush=True)  # noqa: T201
    os.umask(0o077)
    os.dup2(plan.listener, _LISTENER)
    os.closerange(_LISTENER + 1, 1 << 16)
    os.execve(  # noqa: S606
        plan.python,
        [plan.python, "-I", "-S", agent],
        {
            "PATH": f"{plan.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PAL_AGENT_FD": str(_LISTENER),
            "PAL_AGENT_WORKSPACE": workspace,
            "PAL_AGENT_OWN_USER": "1" if counted else "signals" if scoped else "0",
            "PAL_AGENT_MEMORY": str(plan.memory),
            "PAL_AGENT_PROCESSES": str(plan.processes),
            "PAL_AGENT_SECONDS": str(plan.seconds),
        },
    )


def _name_host() -> None:
    import socket

    with suppress(OSError):
        socket.sethostname("vm")


def _folder_outside(plan: Plan, uid: int, gid: int) -> str:
    """A workspace on the host's disk, in a place that its user gets to."""
    if plan.uid is None:
        folder = os.path.join(plan.folder, "workspace")
        os.mkdir(folder, 0o700)
        return folder
    folder = tempfile.mkdtemp(prefix="pal-vm-")
    Path(plan.folder, "scratch").write_text(folder)
    os.chown(folder, uid, gid)
    return folder


def _bound(plan: Plan, *, counted: bool) -> None:
    """Limits that hold for the agent too; it sets tighter ones for what it runs."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # rather this than a database beside it
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: _LARGEST_FILE,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if counted:
        bounds[resource.RLIMIT_NPROC] = plan.processes + _SPARE_PROCESSES
    for what, most in bounds.items():
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


def _watch(plan: Plan, child: int, woken: int) -> None:
    """Return when there is a reason to end: the child has, or we are to, or the time is over."""
    ends = time.monotonic() + plan.lifetime
    poll = select.poll()
    poll.register(plan.lifeline, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while (left := ends - time.monotonic()) > 0:
        # the longest that poll takes is 24 days
        for descriptor, _ in poll.poll(min(left, 86400) * 1000):
            if descriptor == plan.lifeline:
                return
            if signal.SIGTERM in os.read(woken, 4096):
                return
        if _ended(child):
            return


def _ended(child: int) -> bool:
    """Also takes note of orphans' ends."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid in (0, child):
            return pid == child


def _end(plan: Plan, child: int, *, alone: bool) -> None:
    """Kill all inside. The first process of a namespace takes everyone in it along."""
    if not alone:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)  # it knows what it has started
        ends = time.monotonic() + 2
        while not _ended(child) and time.monotonic() < ends:
            time.sleep(0.01)
        if plan.uid is not None:
            _kill_all_of(plan.uid)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    # the stopped ones fork no more, and keep their places, of which there are only so many
    stopped: set[int] = set()
    ends = time.monotonic() + 2
    while (found := set(descendants()) - stopped) and time.monotonic() < ends:
        _signal(found, signal.SIGSTOP)
        stopped |= found
    while True:
        _signal(descendants(), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_all_of(uid: int) -> None:
    """Every process of a user at once, however fast they fork."""
    killer = os.fork()
    if killer == 0:
        with suppress(OSError):
            os.setuid(uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(killer, 0)


def _signal(processes: Iterable[int], number: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _remove_tree(path: str) -> None:
    def open_up(_: Any, failed: str, __: Any) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(failed), 0o700)
            os.chmod(failed, 0o700)

    shutil.rmtree(path, onerror=open_up)
    shutil.rmtree(path, ignore_errors=True)


def _wake(*_: Any) -> None:
    """Nothing by itself: the signal's number comes through the wake-up descriptor."""
