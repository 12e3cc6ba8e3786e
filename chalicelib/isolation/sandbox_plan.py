"""What the driver tells the process that holds a sandbox."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One sandbox. Descriptors are numbers that the process inherits."""

    folder: str
    """The VM's own, removed at its end."""

    ended: str
    """A file to leave behind, so that the VM's token is not used again."""

    hidden: tuple[str, ...]
    """Folders that must not be seen, wherever they lie."""

    agent: str
    python: str
    prefix: str
    """Where Python's own files are."""

    uid: int | None
    """A user of its own; None where this process may not change its user."""

    network: bool
    lifetime: float
    memory: int
    """Bytes that all processes hold together at most."""

    files: int
    """Bytes in the workspace at most, and again in /tmp: both are in memory."""

    processes: int
    seconds: int
    """The longest run."""

    listener: int
    """Where the agent accepts connections; its path is not seen from inside."""

    lifeline: int
    """Closed at the other end when the process that wanted the VM has gone."""

    lock: int
    """A file that is locked for as long as the sandbox is held."""

    refused: tuple[str, ...] = ()
    """Namespaces not to ask for, as on a kernel that refuses them."""

    def dumps(self) -> str:
        """As an argument of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> "Plan":
        """What `dumps` has written."""
        told: dict[str, Any] = json.loads(text)
        for name in ("hidden", "refused"):
            told[name] = tuple(told[name])
        return cls(**told)
