"""Sessions with microVMs, for tests: the system on scripted drivers, and what its rows say."""

from collections.abc import Callable
from typing import Any

from chalicelib.isolation.keeper import Answer
from tests.fakes.machines import Cloud
from tests.support.stack import Node, Stack

TOOLS: list[dict[str, Any]] = [
    {"kind": "microvm", "name": name} for name in ("run_code", "read_file", "write_file")
]
AGENT: dict[str, Any] = {"name": "coder", "isolation": "microvm", "tools": TOOLS}


class Sessions:
    """A stack whose sessions have VMs in the cloud, asked as tools ask them."""

    def __init__(self, make_stack: Callable[..., Stack], cloud: Cloud, **changes: Any) -> None:
        self.stack = make_stack(isolation="scripted", **changes)
        self.cloud = cloud

    def new(self, key: str | None = None) -> str:
        """A session of an agent that no one has defined."""
        made = self.stack.http(key).call("POST", "/v1/sessions", {"agentName": "coder"})
        assert made.status == 201, made.body
        return str(made.json["id"])

    async def asking(
        self,
        node: Node,
        session: str,
        code: str,
        *,
        turn: str = "tur_one",
        tenant: str | None = None,
    ) -> Answer:
        """Run code in the session's VM, from a process."""
        return await node.services.machines.ask(
            tenant or self.stack.tenant,
            session,
            "/v1/run",
            {"code": code},
            turn_id=turn,
            seconds=30.0,
            again=False,
        )

    def ask(self, session: str, code: str = "print(1)", **more: Any) -> Answer:
        """Run code in the session's VM, from the first process."""
        node = more.pop("node", self.stack.node)
        return node.run(self.asking(node, session, code, **more))

    def printed(self, session: str, code: str, **more: Any) -> str:
        """What the code printed, or failed with."""
        body = self.ask(session, code, **more).body
        return (body["stdout"] or body["stderr"]).strip()

    def sweep(self) -> int:
        """One round of the reaper, which reconciles if that is due."""
        return self.stack.node.run(self.stack.node.services.reaper.sweep())

    def reconcile(self) -> int:
        """What the reaper does every few minutes."""
        return self.stack.node.run(self.stack.node.services.reaper.reconcile())

    def states(self, session: str | None = None) -> list[str]:
        """The states of the session's rows, or of all, oldest first."""
        rows = self.stack.database.rows(
            "SELECT state FROM pal.session_vms WHERE %s::text IS NULL OR session_id = %s"
            " ORDER BY id",
            session,
            session,
        )
        return [one[0] for one in rows]

    def age(self, session: str, seconds: float) -> None:
        """Have everything about the session's rows be so much older."""
        self.stack.database.rows(
            "UPDATE pal.session_vms SET created_at = created_at - gone, tried_at = NULL,"
            " running_at = running_at - gone, used_until = used_until - gone,"
            " expires_at = expires_at - gone"
            " FROM make_interval(secs => %s) AS gone WHERE session_id = %s",
            seconds,
            session,
        )
