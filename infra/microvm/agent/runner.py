"""Runs: one at a time, each within its limits, and nothing of a shell's left after it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import processes
from capture import Capture
from fields import number, text
from kernel import Ended, Kernel
from limits import Limits
from refusal import Refused

_ONE_ARGUMENT = 120_000  # bytes that the system takes as one
_USUAL_SECONDS = 30
_USUAL_OUTPUT = 65536
_BETWEEN_LOOKS = 0.2
_BETWEEN_IDLE_LOOKS = 1.0


class Runner:
    """What runs, and the interpreter that stays between runs."""

    def __init__(self, workspace: str, limits: Limits) -> None:
        self._workspace = workspace
        self._limits = limits
        self._kernel = Kernel(workspace, limits)
        self._turn = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._lost = False  # variables, of which no one has been told
        self._ending = False
        threading.Thread(target=self._look_after, daemon=True).start()

    def run(
        self, body: dict[str, Any], hung_up: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Run code and tell how it went; a second run waits for the first, for its own time.

        A run whose caller has hung up is ended: a turn that was cancelled holds up no other.
        """
        language = text(body, "language")
        if language not in ("python", "shell"):
            raise Refused('language must be "python" or "shell".')
        code = text(body, "code")
        most = _ONE_ARGUMENT if language == "shell" else self._limits.code
        if len(code.encode()) > most:
            sentence = f"The code is longer than {most} bytes: write it to a file and run that."
            raise Refused(sentence, "too_large", status=413)
        if language == "shell" and "\0" in code:
            raise Refused("code must not hold NUL.")
        seconds = number(body, "timeoutSeconds", default=_USUAL_SECONDS, most=self._limits.seconds)
        limit = number(body, "outputLimit", default=_USUAL_OUTPUT, most=self._limits.output)
        if not self._turn.acquire(timeout=seconds):
            raise Refused("Another run has not ended yet.", "busy", status=409)
        try:
            return self._timed(language, code, seconds, int(limit), hung_up)
        finally:
            if self._ending:
                threading.Event().wait()  # the agent ends: no answer, rather than a wrong one
            self._turn.release()

    def forget(self) -> None:
        """End the interpreter once it is idle; the next run starts another."""
        with self._turn:
            self._kernel.end()

    def end(self) -> None:
        """Kill whatever runs. Not to be used afterwards."""
        self._ending = True
        if self._shell is not None:
            processes.kill_group(self._shell.pid)
        self._kernel.end()

    def _look_after(self) -> None:
        """Between runs too, what Python has started in the background may take no more memory."""
        while True:
            time.sleep(_BETWEEN_IDLE_LOOKS)
            if not self._turn.acquire(blocking=False):
                continue  # a run looks for itself
            try:
                pid = self._kernel.pid
                if pid is not None and processes.held() > self._limits.memory:
                    processes.kill_group(pid)
                    processes.sweep(pid)
            finally:
                self._turn.release()

    def _timed(
        self, language: str, code: str, seconds: float, limit: int, hung_up: Callable[[], bool]
    ) -> dict[str, Any]:
        began = time.monotonic()
        perform = self._in_shell if language == "shell" else self._in_kernel
        watch = _Watch(self._limits.memory, hung_up)
        try:
            capture, ended = perform(code, began + seconds, limit, watch)
        except BlockingIOError:  # no process can be made
            processes.sweep()
            self._kernel.end()
            sentence = "Too many processes were running; all have been ended, and variables lost."
            raise Refused(sentence, "busy", status=409) from None
        stdout, stderr = capture.texts()
        if ended.note:
            stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + _told(
                ended, language, seconds
            )
        answer = {
            "stdout": stdout,
            "stderr": stderr,
            "exitCode": _status(ended.exit_code),
            "timedOut": ended.timed_out,
            "truncated": capture.truncated,
            "durationMs": round((time.monotonic() - began) * 1000),
        }
        if language == "python" and ended.note:
            answer["restarted"] = True
        return answer

    def _in_kernel(
        self, code: str, until: float, limit: int, watch: _Watch
    ) -> tuple[Capture, Ended]:
        lost, self._lost = self._lost or self._kernel.has_ended(), False
        stdout, stderr = self._kernel.start()
        capture = Capture(stdout, stderr, limit=limit)
        ended = self._kernel.run(code, capture, until=until, over=watch)
        self._lost = watch.hung_up
        if lost and not ended.note:
            ended = ended._replace(note="Python had ended since the last run")
        return capture, ended

    def _in_shell(
        self, code: str, until: float, limit: int, watch: _Watch
    ) -> tuple[Capture, Ended]:
        with subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", code],
            cwd=self._workspace,
            env=processes.environment(self._workspace),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=processes.restrict(self._limits),
        ) as shell:
            self._shell = shell
            assert shell.stdout is not None
            assert shell.stderr is not None
            capture = Capture(shell.stdout.fileno(), shell.stderr.fileno(), limit=limit)
            try:
                in_time = capture.follow(
                    lambda: _has_ended(shell) or bool(watch()), until=until
                ) and _wait(shell, until, watch)
            finally:
                processes.kill_group(shell.pid)  # not waited for yet, so its number is its own
                code_of_shell = shell.wait()
                kept = processes.sweep(self._kernel.pid)
                self._shell = None
            capture.drain()
        if watch.why:
            return capture, Ended(None, note=watch.why)
        if not in_time:
            return capture, Ended(None, timed_out=True, note="its time was up")
        note = "" if kept else "its processes could not be ended otherwise"
        return capture, Ended(code_of_shell, note=note)


class _Watch:
    """Why a run is to be ended before its time, nothing while it is not; looks now and then."""

    def __init__(self, most: int, hung_up: Callable[[], bool]) -> None:
        self._most, self._hung_up = most, hung_up
        self._next = time.monotonic() + _BETWEEN_LOOKS
        self.why = ""
        self.hung_up = False

    def __call__(self) -> str:
        if not self.why and time.monotonic() >= self._next:
            self.hung_up = self._hung_up()
            if self.hung_up:
                self.why = "no one waits for it any more"
            elif processes.held() > self._most:
                self.why = "it held too much memory"
            self._next = time.monotonic() + _BETWEEN_LOOKS
        return self.why


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without taking note of it where that can be: until then its number is no one else's."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(process: subprocess.Popen[bytes], until: float, watch: _Watch) -> bool:
    """False if its time is up before it ends; it may have closed its output long before."""
    pause = 0.0005
    while not _has_ended(process) and not watch():
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


def _status(code: int | None) -> int | None:
    """As a shell tells it: 128 and the signal that ended it."""
    return 128 - code if code is not None and code < 0 else code


def _told(ended: Ended, language: str, seconds: float) -> str:
    """What stderr ends with when a run did not end by itself."""
    what = f"{ended.note} ({seconds:g} s)" if ended.timed_out else ended.note
    if language == "shell":
        return f"[run ended: {what}]\n"
    return f"[{what}; Python starts anew: variables are lost, files are kept]\n"
