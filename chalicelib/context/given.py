"""What a context is compiled from: the session as it is stored, and what is asked in it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A session as a turn finds it.

    `history` is the JSON text of `sessions.messages`, `pins` that of its pins, `tree` the execution
    tree as it is told, `definition` the JSON text of the agent's, None for an agent that no one has
    defined (`agent_missing`: where that is an error). `local_time` is the present, or the turn's
    accepted-at, on the clocks of `timezone`. `calibration` is the provider's count of tokens over
    our estimate, as `counted_model` last told it.
    """

    tenant_id: str
    session_id: str
    agent_name: str
    definition: str | None
    agent_missing: bool
    own_keys: bool
    person_id: str | None
    person_name: str | None
    group_id: str | None
    history: str
    summary: str | None
    pins: str
    tree: str
    local_time: datetime
    timezone: str
    calibration: float = 1.0
    counted_model: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the newest messages ask for beside the session. `pending` is their JSON text.

    `tools` are the names of what may be used, `tools_text` what a provider is told of it, as JSON.
    """

    pending: str = "[]"
    system_hint: str | None = None
    turn_hint: str | None = None
    tools: tuple[str, ...] = ()
    tools_text: str = ""
