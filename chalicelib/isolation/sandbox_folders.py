"""Folders of sandboxes: which there are, which of them live, and which have been.

A sandbox lives as long as its file `vm.json` is locked: the process that holds it was started with
the lock, and a lock ends with its last holder whatever happens. So no process id is trusted before
the lock has been looked at, and a reboot leaves nothing that seems alive.
"""

import fcntl
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chalicelib.isolation.sandbox import remove

SOCKET: Final = "agent.sock"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE: Final = "vm.json"
_ENDED_KEPT: Final = 86400.0
_GRACE: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is known of a sandbox that lives."""

    id: str
    pid: int
    uid: int | None
    started_at: datetime


class Folders:
    """Those below one folder; safe among processes. Its methods block, for milliseconds or so."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all who make or remove folders here."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.root / ".lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def path(self, machine_id: str) -> Path:
        """Where a sandbox has its files; ValueError for what is no id."""
        if not _NAME.fullmatch(machine_id):
            raise ValueError(machine_id)
        return self.root / machine_id

    def ended(self, machine_id: str) -> Path:
        """The file that is left of one that has ended, for a day."""
        return self.root / ".ended" / machine_id

    def has_ended(self, machine_id: str) -> bool:
        """True if its id must not be used again."""
        return self.ended(machine_id).exists()

    def make(self, machine_id: str) -> tuple[Path, int]:
        """A new folder and the descriptor of its locked file. Under `locked` only."""
        self.ended(machine_id).parent.mkdir(mode=0o700, exist_ok=True)
        folder = self.path(machine_id)
        folder.mkdir(mode=0o700)
        (folder / "root").mkdir()
        descriptor = os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return folder, descriptor

    def note(self, descriptor: int, *, pid: int, uid: int | None) -> datetime:
        """Write down who holds it; the time that counts as its start."""
        now = datetime.now(UTC)
        os.pwrite(
            descriptor, json.dumps({"pid": pid, "uid": uid, "at": now.isoformat()}).encode(), 0
        )
        return now

    def find(self, machine_id: str) -> Kept | None:
        """A sandbox that lives."""
        try:
            with open(self.path(machine_id) / _FILE) as file:
                if not _is_locked(file.fileno()):
                    return None
                told = json.load(file)
        except (OSError, ValueError):
            return None  # also one whose starter has died before it could write
        started_at = datetime.fromisoformat(told["at"])
        return Kept(id=machine_id, pid=told["pid"], uid=told["uid"], started_at=started_at)

    def alive(self) -> list[Kept]:
        """All that live. Under `locked` only: removes what the others have left behind."""
        found = []
        for folder in sorted(self.root.iterdir()):
            if not _NAME.fullmatch(folder.name) or not folder.is_dir():
                continue
            if kept := self.find(folder.name):
                found.append(kept)
            elif not _is_held(folder):
                self.remove(folder.name)
        self._forget_ended()
        return found

    def remove(self, machine_id: str) -> None:
        """The folder of one that does not live. Under `locked` only."""
        self.ended(machine_id).parent.mkdir(mode=0o700, exist_ok=True)
        remove(str(self.path(machine_id)), str(self.ended(machine_id)))

    def end(self, machine_id: str) -> None:
        """End what lives in it and wait for that; its holder removes the folder."""
        ends = time.monotonic() + _GRACE
        sent = signal.SIGTERM
        kept = self.find(machine_id)
        while kept is not None:
            with suppress(ProcessLookupError):
                os.kill(kept.pid, sent)
            if time.monotonic() > ends:
                sent = signal.SIGKILL  # the kernel ends what it held
            time.sleep(0.005)
            kept = self.find(machine_id)
        with self.locked():
            if self.path(machine_id).exists() and not _is_held(self.path(machine_id)):
                self.remove(machine_id)

    def _forget_ended(self) -> None:
        with suppress(FileNotFoundError):
            for file in (self.root / ".ended").iterdir():
                with suppress(FileNotFoundError):
                    if file.stat().st_mtime < time.time() - _ENDED_KEPT:
                        file.unlink()


def name_of(token: str) -> str:
    """The id that a token stands for."""
    if _NAME.fullmatch(token):
        return token
    return "vm_" + hashlib.sha256(token.encode()).hexdigest()[:40]


def _is_held(folder: Path) -> bool:
    try:
        with open(folder / _FILE) as file:
            return _is_locked(file.fileno())
    except OSError:
        return False


def _is_locked(descriptor: int) -> bool:
    try:
        # shared, so that two who look at once do not take each other for the holder
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
