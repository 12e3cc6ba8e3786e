"""The output of a run: read as it comes, kept up to a limit."""

from __future__ import annotations

import codecs
import os
import selectors
import time
from collections.abc import Callable

_CHUNK = 65536
_TICK = 0.02
_PIPE = 1024**2  # the most that a pipe of an unprivileged user holds


class Capture:
    """stdout and stderr of a run, from the descriptors of its pipes.

    What is over the limit is read and dropped, so the run goes on and nothing here grows.
    """

    def __init__(self, stdout: int, stderr: int, *, limit: int) -> None:
        self._limit = limit
        self._kept = {stdout: bytearray(), stderr: bytearray()}
        self._open = {stdout, stderr}
        self.truncated = False
        for descriptor in self._open:
            os.set_blocking(descriptor, False)

    @property
    def closed(self) -> int:
        """How many of the two have been closed by all that could write to them."""
        return 2 - len(self._open)

    def follow(
        self, ended: Callable[[], bool], *, until: float, beside: tuple[int, ...] = ()
    ) -> bool:
        """Read until `ended()`, asked at each tick and whenever `beside` can be read.

        False when the time was up first. Both being closed ends it too.
        """
        with selectors.DefaultSelector() as selector:
            for descriptor in (*self._open, *beside):
                selector.register(descriptor, selectors.EVENT_READ)
            while self._open and not ended():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in selector.select(min(_TICK, left)):
                    if key.fd in self._open and not self._read(key.fd):
                        selector.unregister(key.fd)
        return True

    def drain(self) -> None:
        """What has been written so far; others may still hold the pipes, and are not waited for."""
        for descriptor in tuple(self._open):
            for _ in range(_PIPE // _CHUNK + 1):
                if self._read(descriptor) < _CHUNK:
                    break

    def texts(self) -> tuple[str, str]:
        """stdout and stderr; what is not UTF-8, and NUL, comes as a replacement character."""
        stdout, stderr = (self._text(bytes(kept)) for kept in self._kept.values())
        return stdout, stderr

    def _text(self, kept: bytes) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        whole = len(kept) < self._limit  # else the last character may have been cut
        return decoder.decode(kept, final=whole).replace("\0", "\N{REPLACEMENT CHARACTER}")

    def _read(self, descriptor: int) -> int:
        """How many bytes came; 0 also when it has been closed."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._open.discard(descriptor)
            return 0
        kept = self._kept[descriptor]
        room = self._limit - len(kept)
        kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room
        return len(chunk)
