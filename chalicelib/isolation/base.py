"""The port to microVMs: start one, ask the agent inside it, end it, list what there is.

A driver is a file here and a line in the registry. What runs inside a VM is `infra/microvm/agent`,
the same for every driver; its protocol is told there.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


class MachineGone(Exception):
    """The VM is no more, and its files and variables with it.

    What was asked may have begun, unless the driver is sure that it has not: `begun=False`.
    """

    def __init__(self, about: str = "", *, begun: bool = True) -> None:
        super().__init__(about)
        self.begun = begun


class MachineUnavailable(Exception):
    """The driver could not do it now; the message is a sentence without internals."""


class MachineSilent(MachineUnavailable):
    """No answer came within the time that was given."""


class AgentRefused(Exception):
    """The agent would not do it (no such file, too large); the message is one for the model."""


class SessionClosed(Exception):
    """Raised by the keeper alone: the session takes no turns any more, and so it has no VM."""


class MachineLost(Exception):
    """Raised by the keeper alone: the VM went during a call, which is not repeated."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A VM as its driver knows it, with an agent that is ready or soon will be.

    `endpoint` is an https URL or the path of a socket; only the driver reads it.
    """

    id: str
    endpoint: str
    started_at: datetime


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A VM that a driver has found alive; `started_at` by the driver's clock."""

    id: str
    started_at: datetime


class Driver(Protocol):
    """Where VMs come from. Every method raises MachineUnavailable when the driver cannot."""

    name: str
    """What the registry keeps beside a VM, since only its driver can end it.

    Drivers that cannot end each other's VMs, such as those of two hosts, have different names.
    """

    longest: float
    """Seconds that a VM of this driver lives at most."""

    async def start(self, *, token: str, idle: float) -> Machine:
        """A new VM, or the one that this token has started before.

        Returns once its agent answers. Unused for `idle` seconds it may be suspended, and some
        time later be ended by the driver itself. Raises MachineGone when the token's VM has ended.
        """
        ...

    async def ask(
        self, machine: Machine, path: str, body: dict[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """The agent's answer to a POST of `body`; a suspended VM is resumed for it.

        `timeout` in seconds is for the whole of it, and MachineSilent says that it was up. Raises
        MachineGone and AgentRefused too.
        """
        ...

    async def terminate(self, machine_id: str) -> None:
        """End the VM; fine if it has ended or was never there."""
        ...

    async def list(self) -> list[Listed]:
        """All VMs alive, suspended ones too, of those that drivers of this name have started.

        Raises rather than leave some out: what is missing here counts as gone.
        """
        ...

    async def close(self) -> None:
        """Let go of what this process holds. VMs live on, unless they are children of it."""
        ...
