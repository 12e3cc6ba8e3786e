"""Calls to the Linux kernel that Python has no function for."""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

NAMESPACES: Final = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "ipc": 0x08000000,
    "hostname": 0x04000000,
}

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2

_PDEATHSIG: Final = 1
_CAPBSET_DROP: Final = 24
_NO_NEW_PRIVS: Final = 38
_CHILD_SUBREAPER: Final = 36
_LAST_CAPABILITY: Final = 63

_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1

LINUX: Final = sys.platform == "linux"

_libc: Final = ctypes.CDLL(None, use_errno=True)


def unshare(namespace: str) -> None:
    """Leave a namespace for a new one; OSError where that is refused."""
    _call("unshare", NAMESPACES[namespace])


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """As mount(2)."""
    words = [word.encode() if word else None for word in (source, target, kind, options)]
    _call("mount", words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])


def bind(source: str, target: str) -> None:
    """Show `source` at `target` too, to be read and run but not written."""
    mount(source, target, flags=MS_BIND | MS_REC)
    # what its mount forbids already must be said again, or a user namespace may not remount it
    kept = os.statvfs(target).f_flag & (MS_NOEXEC | MS_NOSUID | MS_NODEV)
    mount("", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def unmount(folder: str) -> None:
    """Take a mount away from here; those who are in it keep it."""
    _call("umount2", folder.encode(), _MNT_DETACH)


def change_root(folder: str) -> None:
    """Make a mounted folder the root, and let go of the old one."""
    os.chdir(folder)
    _call("pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")
    mount("", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def raise_loopback() -> None:
    """So that programs inside can talk to each other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own has ended."""
    _call("prctl", _CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """All that have come of this process and have not ended, nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if LINUX else []:
        with suppress(OSError, ValueError):
            state, parent, *_ = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            if name.isdigit() and state not in "ZX":
                children.setdefault(int(parent), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def die_with_parent(signal: int) -> None:
    """Get this signal when the parent ends; changing the user afterwards would undo it."""
    _call("prctl", _PDEATHSIG, signal, 0, 0, 0)


def give_up_privileges() -> None:
    """Now and for all that is run from here: setuid files give nothing any more."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            break  # past the last that this kernel has, or none may be dropped
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
