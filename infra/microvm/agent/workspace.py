"""Files of the workspace folder, and of nothing outside it.

A path is walked from the folder's own descriptor, one name after another and never through a
symbolic link. So nothing that code puts there, before or during the walk, leads out of it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import os
import stat
from typing import Any

from fields import number, offset, text
from refusal import Refused

_MOST = 4096


class Workspace:
    """The folder that runs work in; made when it is not there."""

    def __init__(self, folder: str, *, largest: int) -> None:
        self.folder = os.path.realpath(folder)
        self._largest = largest
        os.makedirs(self.folder, exist_ok=True)

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """A file's bytes from `offset` on; as base64 when they are not text."""
        path = text(body, "path")
        start = offset(body, "offset")
        limit = int(number(body, "limit", default=self._largest, most=self._largest))
        descriptor = self._open(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            file.seek(start)
            content = file.read(limit)
        cut = start + len(content) < size
        told, encoding = _shown(content, cut)
        return {"content": told, "encoding": encoding, "size": size, "truncated": cut}

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        """Replaces a file's content; folders on the way to it are made."""
        path = text(body, "path")
        content = _given(text(body, "content"), text(body, "encoding", default="utf-8"))
        if len(content) > self._largest:
            raise Refused(
                f"The content is larger than {self._largest} bytes.", "too_large", status=413
            )
        descriptor = self._open(path, os.O_WRONLY | os.O_CREAT, make=True)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(0)
                file.write(content)
        except OSError as exc:
            raise _refusal(exc, path) from exc
        return {"size": len(content)}

    def _open(self, path: str, flags: int, *, make: bool = False) -> int:
        """The descriptor of a regular file."""
        names = self._names(path)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in names[:-1]:
                inner = _enter(name, folder, make=make)
                os.close(folder)
                folder = inner
            # a pipe that nobody holds the other end of would be waited for
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(names[-1], flags, 0o644, dir_fd=folder)
        except OSError as exc:
            raise _refusal(exc, path) from exc
        finally:
            os.close(folder)
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            os.close(descriptor)
            what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
            raise Refused(f"{path} is {what}.", "not_a_file")
        return descriptor

    def _names(self, path: str) -> list[str]:
        """The names on the way from the folder to the file."""
        if not path or "\0" in path or len(path.encode()) > _MOST:
            raise Refused("path must be the name of a file in the workspace.")
        full = os.path.normpath(os.path.join(self.folder, path))
        if full == self.folder:
            raise Refused(f"{path} is the workspace itself, not a file.", "not_a_file")
        if os.path.commonpath([full, self.folder]) != self.folder:
            raise Refused(f"{path} is outside the workspace, {self.folder}.", "outside")
        return os.path.relpath(full, self.folder).split(os.sep)


def _enter(name: str, folder: int, *, make: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another call may have made it
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _refusal(exc: OSError, path: str) -> Refused:
    if exc.errno == errno.ENOENT:
        return Refused(f"There is no file {path}.", "not_found", status=404)
    if exc.errno == errno.ELOOP:
        return Refused(f"{path} is a symbolic link, which is not followed.", "outside")
    if exc.errno == errno.ENOTDIR:
        sentence = f"{path} goes through something that is not a folder, or a symbolic link."
        return Refused(sentence, "outside")
    if exc.errno == errno.EISDIR:
        return Refused(f"{path} is a folder.", "not_a_file")
    if exc.errno == errno.ENXIO:  # a pipe or a socket that nobody reads
        return Refused(f"{path} is not a regular file.", "not_a_file")
    if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Refused(f"No room is left to write {path}; it may be cut.", "no_space", status=413)
    return Refused(f"{path}: {os.strerror(exc.errno or 0)}.", "failed")


def _given(content: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return content.encode()
    if encoding != "base64":
        raise Refused('encoding must be "utf-8" or "base64".')
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise Refused("content is not base64.") from None


def _shown(content: bytes, cut: bool) -> tuple[str, str]:
    """Text where it is text; NUL bytes make it binary, as no database keeps them in a text."""
    if b"\0" not in content:
        for dropped in range(4 if cut else 1):  # a cut may go through a character
            try:
                return content[: len(content) - dropped].decode(), "utf-8"
            except UnicodeDecodeError:
                continue
    return base64.b64encode(content).decode(), "base64"
