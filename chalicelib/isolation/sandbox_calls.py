"""System calls that code in a sandbox may not make.

What is left of the kernel's surface is what programs usually need. Refused is what makes another
namespace or mount, looks into other processes, reaches parts of the kernel that have had more than
their share of flaws, or holds memory that belongs to no process and so counts for none. A list of
what is refused, and not of what is allowed, as the code may be any program.
"""

import ctypes
import errno
import platform
import struct
from typing import Final

# by name: the numbers on x86-64 and on 64-bit ARM
_REFUSED: Final = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_CLONE: Final = (56, 220)
_CLONE3: Final = 435
_SOCKET: Final = (41, 198)
_UNIX: Final = 1
_NETWORK: Final = (2, 10, 16)  # IPv4, IPv6, netlink; others know no network namespace
_NEW_NAMESPACES: Final = 0x7E020000
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32: Final = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000

_SET_SECCOMP: Final = 22
_FILTER: Final = 2


def refuse_calls(*, network: bool, paths: bool) -> bool:
    """From here on, also for all that is run. False where there is no list or no such means.

    Without `network` no socket of the internet can be made, for where the host's would be reached;
    without `paths` none of the local kind, for where the host's could be seen.
    """
    if platform.machine() not in _ARCHITECTURES:
        return False
    families = (*((_UNIX,) if paths else ()), *(_NETWORK if network else ()))
    program = b"".join(_program(*_ARCHITECTURES[platform.machine()], families))
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, head, 0, 0) == 0)


def _program(column: int, architecture: int, families: tuple[int, ...]) -> list[bytes]:
    """In the kernel's packet-filter language; a jump's numbers are steps to skip."""
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, architecture, 1, 0),
        _fail(errno.ENOSYS),  # 32-bit programs have numbers of their own
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _X32, 0, 1),
        _fail(errno.ENOSYS),
        _step(_EQUAL, _CLONE3, 0, 1),
        _fail(errno.ENOSYS),  # its flags cannot be seen; the C library takes clone instead
    ]
    for numbers in _REFUSED.values():
        steps += [_step(_EQUAL, numbers[column], 0, 1), _fail(errno.EPERM)]
    steps += [
        _step(_EQUAL, _CLONE[column], 0, 4),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, _SOCKET[column], 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_LOAD, _FIRST_ARGUMENT),
    ]
    for family in families:
        steps += [_step(_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    return [*steps, _fail(errno.EAFNOSUPPORT)]


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _fail(number: int) -> bytes:
    return _step(_RETURN, _FAIL | number)
