"""The one Python process of a session, where variables live on from run to run."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import processes
from capture import Capture
from limits import Limits

_REPL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "repl.py")
_LONGEST_ANSWER = 4096


class Ended(NamedTuple):
    """How a run in the kernel went. `note` says why the kernel had to go, if it had to."""

    exit_code: int | None
    timed_out: bool = False
    note: str = ""


class Kernel:
    """Started by the first run and not before: VMs restored from one snapshot share nothing."""

    def __init__(self, workspace: str, limits: Limits) -> None:
        self._workspace = workspace
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    def has_ended(self) -> bool:
        """True if it has ended between runs."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> tuple[int, int]:
        """The descriptors of its output, of a new process if the last one has ended."""
        if self.has_ended():
            self.end()
        if self._process is None:
            self._launch()
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        return process.stdout.fileno(), process.stderr.fileno()

    def run(self, code: str, capture: Capture, *, until: float, over: Callable[[], str]) -> Ended:
        """Run it in the process that `start` has given, and end that where it cannot go on.

        `over` tells why it is to be ended before `until`, nothing while it is not.
        """
        ended = self._run(code, capture, until, over)
        capture.drain()
        if ended.note:
            self.end()
        elif capture.closed:
            self.end()
            return Ended(ended.exit_code, note="the code had closed its output")
        return ended

    def end(self) -> None:
        """Kill it, with all that it has started."""
        if self._process is None:
            return
        processes.kill_group(self._process.pid)
        self._process.wait()
        processes.sweep()
        for pipe in (self._process.stdout, self._process.stderr, self._channel):
            if pipe is not None:
                pipe.close()
        self._process = self._channel = None

    def _launch(self) -> None:
        here, there = socket.socketpair()
        with there:
            # at a number that code does not come upon by closing or writing the usual ones
            number = _far_copy(there.fileno())
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-B", "-X", "utf8", _REPL, str(number)],
                    cwd=self._workspace,
                    env=processes.environment(self._workspace),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(number,),
                    start_new_session=True,
                    preexec_fn=processes.restrict(self._limits),
                )
            except BaseException:
                here.close()
                raise
            finally:
                os.close(number)
        self._channel = here

    def _run(self, code: str, capture: Capture, until: float, over: Callable[[], str]) -> Ended:
        assert self._process is not None
        assert self._channel is not None
        channel, asked = self._channel, secrets.token_hex(8)
        line = json.dumps({"id": asked, "code": code}).encode() + b"\n"
        try:
            channel.settimeout(max(0.001, until - time.monotonic()))
            channel.sendall(line)
        except TimeoutError:
            return Ended(None, note="Python did not take the code")
        except OSError:
            return self._died()
        channel.setblocking(False)
        answer = _Answer(channel)
        why = ""

        def ended() -> bool:
            nonlocal why
            why = why or over()
            return bool(why) or answer.whole()

        while not ended():
            if not capture.follow(ended, until=until, beside=(channel.fileno(),)):
                return Ended(None, timed_out=True, note="its time was up")
            if capture.closed == 2 and not ended():  # nothing left to follow: only wait
                if time.monotonic() >= until:
                    return Ended(None, timed_out=True, note="its time was up")
                time.sleep(0.02)
        if why:
            return Ended(None, note=why)
        if answer.gone:
            return self._died()
        told = answer.parsed(asked)
        if told is None:
            return Ended(None, note="the answer of Python made no sense")
        exit_code, memory = told
        return Ended(exit_code, note="memory was out" if memory else "")

    def _died(self) -> Ended:
        assert self._process is not None
        try:
            code: int | None = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None  # it lives and has closed the channel
        return Ended(code, note="Python ended")


class _Answer:
    """One line from the channel, as far as it has come."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._got = b""
        self.gone = False

    def whole(self) -> bool:
        """True once there is nothing more to wait for."""
        try:
            more = self._channel.recv(_LONGEST_ANSWER)
        except BlockingIOError:
            return self.gone or b"\n" in self._got
        except OSError:
            more = b""
        self.gone = not more
        self._got += more
        return self.gone or b"\n" in self._got or len(self._got) > _LONGEST_ANSWER

    def parsed(self, asked: str) -> tuple[int, bool] | None:
        """The exit code, and whether memory was out; None for what `repl` does not write."""
        try:
            told = json.loads(self._got)
            if told["id"] != asked:
                return None
            return int(told["exitCode"]), told["memory"] is True
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _far_copy(descriptor: int) -> int:
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, random.randrange(most // 2, most - 8))
