"""What AWS asks of a MicroVM's image at the steps of its life, on a port of their own.

A VM starts from a snapshot that was taken after `ready`: what is random must be drawn after `run`.
"""

from __future__ import annotations

from typing import Any

from refusal import Refused
from runner import Runner
from server import Route

_PREFIX = "/aws/lambda-microvms/runtime/v1/"
_TRIALS = (("python", "print(6 * 7)"), ("shell", "echo $((6 * 7))"))
_SECONDS_FOR_A_TRIAL = 240  # a snapshot's disk is slow at first


def hooks(runner: Runner) -> dict[tuple[str, str], Route]:
    """Their routes; 200 is "done", 503 is "ask again"."""

    def ready(*_: Any) -> dict[str, Any]:
        return {}

    def validate(*_: Any) -> dict[str, Any]:
        """Run the real thing once: AWS notes what it reads of the snapshot, to fetch it ahead."""
        for language, code in _TRIALS:
            asked = {"language": language, "code": code, "timeoutSeconds": _SECONDS_FOR_A_TRIAL}
            if runner.run(asked)["stdout"].strip() != "42":
                raise Refused(f"{language} does not run.", "unavailable", status=503)
        runner.forget()
        return {}

    def run(*_: Any) -> dict[str, Any]:
        runner.forget()
        return {}

    def resume(*_: Any) -> dict[str, Any]:
        return {}

    told = {"ready": ready, "validate": validate, "run": run, "resume": resume}
    return {("POST", _PREFIX + name): hook for name, hook in told.items()}
