"""What code may reach where the kernel gives it no file system of its own: by Landlock.

A usual container refuses namespaces, and then a sandbox sees the host's disk and its processes,
often as the very user that this service runs as. Landlock needs no rights: from here on, files are
opened below a list of folders only, and processes outside are neither looked into nor signalled.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from chalicelib.isolation.sandbox_plan import Plan
from chalicelib.isolation.sandbox_root import DEVICES, OF_ETC, PROGRAMS

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every processor
_VERSION, _BELOW = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15}  # how many each version knows of; later ones 16
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_SCOPED_SINCE: Final = 6

_ALSO_OF_ETC: Final = ("passwd", "group", "hosts")
_FOR_NETWORK: Final = ("resolv.conf", "nsswitch.conf", "gai.conf")

_libc: Final = ctypes.CDLL(None, use_errno=True)


def confine(plan: Plan, *, workspace: str) -> list[str]:
    """Bind this process and all that is run from here; names what the kernel cannot keep apart.

    Privileges have been given up before.
    """
    try:
        version = _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return ["files"]
    every = (1 << _RIGHTS.get(version, 16)) - 1
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if version >= _SCOPED_SINCE else 0
    # each version takes the fields that it knows: files, network, scopes
    asked = struct.pack("=QQQ", every, 0, scopes)[: 24 if scopes else 8]
    rules = _call(_CREATE_RULESET, asked, len(asked), 0)
    try:
        for path in _shown(plan):
            _allow(rules, path, _READ)
        for name in DEVICES:
            _allow(rules, Path("/dev", name), (_READ | _WRITE_FILE | _TRUNCATE) & every)
        _allow(rules, Path(workspace), every)
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return [] if scopes else ["signals"]


def _shown(plan: Plan) -> list[Path]:
    """As in a file system of its own: programs, Python and the agent, and what is not hidden."""
    etc = (*OF_ETC, *_ALSO_OF_ETC, *(_FOR_NETWORK if plan.network else ()))
    folders = [Path("/", name) for name in PROGRAMS] + [Path("/etc", name) for name in etc]
    hidden = [Path(os.path.realpath(path)) for path in plan.hidden]
    shown = [one for folder in (*folders, Path(plan.prefix)) for one in _around(folder, hidden)]
    return [*shown, Path(plan.agent), Path("/proc")]


def _around(folder: Path, hidden: list[Path]) -> list[Path]:
    """The folder, or what is in it beside what is hidden: a rule holds for all that is below."""
    folder = Path(os.path.realpath(folder))
    if any(folder.is_relative_to(one) for one in hidden):
        return []
    if not any(one.is_relative_to(folder) for one in hidden):
        return [folder]
    return [one for inner in sorted(folder.iterdir()) for one in _around(inner, hidden)]


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # there is none, or it is closed to this user anyway
    try:
        rights = rights if path.is_dir() else rights & _OF_FILES
        _call(_ADD_RULE, rules, _BELOW, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: bytes | int | None) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "landlock")
    return result
