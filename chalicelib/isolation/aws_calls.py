"""Calls of Lambda's microVM API: boto3 on threads, its errors as the port's."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from chalicelib.isolation.base import MachineGone, MachineUnavailable
from chalicelib.threads import on_own_thread

_log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 20.0
# each is safe to repeat: a start has its token, and nothing else adds up
_ATTEMPTS: Final = 4
_CONNECTIONS: Final = 32

_DENIED: Final = "This service may not use microVMs as it is set up."
_TOLD: Final = {
    "AccessDeniedException": _DENIED,
    "InsufficientCapacityException": "AWS has no room for a microVM now; try again in a minute.",
    "ServiceQuotaExceededException": "The quota of microVMs is used up; try again later.",
    "ThrottlingException": "Too many microVMs are asked for now; try again in a minute.",
    "TooManyRequestsException": "Too many microVMs are asked for now; try again in a minute.",
    "ValidationException": _DENIED,
}
_OTHERWISE: Final = "The microVM service does not answer now; try again in a minute."
# nothing that a later try would change: the operator has to see it
_SET_UP_WRONGLY: Final = frozenset({"AccessDeniedException", "ValidationException"})


class Conflict(Exception):
    """The VM is in a state that does not allow this, or a token was used for something else."""


class Calls:
    """The client, made by the first call in its thread.

    The threads are daemons and not the loop's: those also resolve names, and none of them may
    keep a process from ending.
    """

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        self._make = make or _make_client
        self._making = threading.Lock()
        self._made: Any = None

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to an operation by its method's name, `run_microvm`.

        Raises MachineGone for a VM that is not there, Conflict and MachineUnavailable.
        """
        answer: dict[str, Any] = await on_own_thread(
            lambda: self._call(operation, parameters), name="microvm"
        )
        return answer

    def close(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()

    def _call(self, operation: str, parameters: dict[str, Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._client(), operation)(**parameters)
        except ClientError as exc:
            code = str(exc.response.get("Error", {}).get("Code", ""))
            if code == "ResourceNotFoundException":
                raise MachineGone("There is no such microVM.") from exc
            if code == "ConflictException":
                raise Conflict(operation) from exc
            _tell(operation, code)
            raise MachineUnavailable(_TOLD.get(code, _OTHERWISE)) from exc
        except BotoCoreError as exc:
            _tell(operation, type(exc).__name__)
            raise MachineUnavailable(_OTHERWISE) from exc

    def _client(self) -> Any:
        with self._making:
            if self._made is None:
                self._made = self._make()
        return self._made


def _tell(operation: str, code: str) -> None:
    # AWS's own message holds ARNs, and may hold what was sent
    _log.log(
        logging.ERROR if code in _SET_UP_WRONGLY else logging.WARNING,
        "a call of the microVM service failed: %s of %s",
        code,
        operation,
        extra={"action": "microvm_call_failed", "operation": operation, "code": code},
    )


def _make_client() -> Any:
    import boto3
    from botocore.config import Config

    # a session of its own: the default one is not to be shared by threads that make clients
    return boto3.session.Session().client(
        "lambda-microvms",
        config=Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            max_pool_connections=_CONNECTIONS,
            tcp_keepalive=True,
        ),
    )
