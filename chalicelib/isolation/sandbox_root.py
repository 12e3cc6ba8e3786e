"""The file system that code in a sandbox sees.

Programs and Python, to be read; a workspace and /tmp in memory, each of a bounded size, that are
gone with the last process. Nothing else of the host: no home, no checkout, no data folder, no
other sandbox.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from chalicelib.isolation.sandbox_linux import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    bind,
    change_root,
    mount,
    unmount,
)
from chalicelib.isolation.sandbox_plan import Plan

AGENT: Final = "/agent"
WORKSPACE: Final = "/workspace"

PROGRAMS: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store")
OF_ETC: Final = ("ld.so.cache", "ld.so.conf", "alternatives", "ssl", "pki", "localtime")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_FILES: Final = "nr_inodes=65536"


def private_mounts(plan: Plan) -> None:
    """The first mount of all; OSError where the kernel lets us have none."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", _root(plan), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")


def let_go(plan: Plan) -> None:
    """Undo the first mount, so that its folder can be removed."""
    with suppress(OSError):
        unmount(_root(plan))


def enter_root(plan: Plan, *, uid: int, gid: int) -> list[str]:
    """Build it and make it the root; names what had to be left out."""
    root = Path(_root(plan))
    for name in PROGRAMS:
        _show(Path("/") / name, root)
    if not Path(plan.prefix).is_relative_to("/usr"):
        _show(Path(plan.prefix), root)
    for folder in plan.hidden:
        _hide(Path(folder), root)
    _make_etc(root, uid, gid, network=plan.network)
    _make_devices(root)
    agent = root / AGENT[1:]
    agent.mkdir()
    bind(plan.agent, str(agent))
    flags, whose = MS_NOSUID | MS_NODEV, f"uid={uid},gid={gid},size={plan.files},{_FILES}"
    _memory(root / WORKSPACE[1:], flags, f"mode=700,{whose}")
    _memory(root / "tmp", flags, f"mode=700,{whose}")
    without = [] if _make_proc(root) else ["proc"]
    change_root(str(root))
    return without


def _root(plan: Plan) -> str:
    return os.path.join(plan.folder, "root")


def _show(path: Path, root: Path) -> None:
    """The same path inside, if there is such a one."""
    inside = root / path.relative_to("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        inside.symlink_to(path.readlink())
    elif path.is_dir():
        inside.mkdir(exist_ok=True)
        bind(str(path), str(inside))
    elif path.is_file():
        inside.touch()
        bind(str(path), str(inside))


def _hide(path: Path, root: Path) -> None:
    """Put an empty folder over what is seen of it."""
    inside = root / path.relative_to("/")
    if inside.is_dir():
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY
        mount("tmpfs", str(inside), "tmpfs", flags, "mode=755,size=4k")


def _memory(folder: Path, flags: int, options: str) -> None:
    folder.mkdir()
    mount("tmpfs", str(folder), "tmpfs", flags, options)


def _make_etc(root: Path, uid: int, gid: int, *, network: bool) -> None:
    etc = root / "etc"
    etc.mkdir()
    (etc / "passwd").write_text(f"agent:x:{uid}:{gid}::{WORKSPACE}:/bin/sh\n")
    (etc / "group").write_text(f"agent:x:{gid}:\n")
    (etc / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    if network:
        with suppress(OSError):
            (etc / "resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
    for name in OF_ETC:
        _show(Path("/etc") / name, root)


def _make_devices(root: Path) -> None:
    devices = root / "dev"
    devices.mkdir()
    for name in DEVICES:
        (devices / name).touch()
        mount(f"/dev/{name}", str(devices / name), flags=MS_BIND)
    (devices / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (devices / name).symlink_to(f"/proc/self/fd/{number}")
    _memory(devices / "shm", MS_NOSUID | MS_NODEV, f"mode=1777,size=64m,{_FILES}")


def _make_proc(root: Path) -> bool:
    """False where a container's own /proc is covered in part: then no new one may be mounted."""
    folder = root / "proc"
    folder.mkdir()
    try:
        mount("proc", str(folder), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except PermissionError:
        return False
    return True
