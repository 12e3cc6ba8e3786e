"""What callers do with agents: define, replace, look, delete."""

from collections.abc import Callable
from typing import Any

from chalicelib.agents import store
from chalicelib.agents.definition import AgentDefinition, definition_json
from chalicelib.agents.store import Agent
from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.errors import Conflict, InvalidField, NotFound
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import new_id
from chalicelib.secrets import Secrets
from chalicelib.texts import is_storable, rfc3339


class Agents:
    """The agents that tenants define.

    `knows` tells whether a chain may name a provider; `secrets`, which ones a tenant brings itself;
    `isolates`, whether sessions can have microVMs here.
    """

    def __init__(
        self, db: Database, *, knows: Callable[[str], bool], secrets: Secrets, isolates: bool
    ) -> None:
        self._db, self._knows, self._secrets = db, knows, secrets
        self._isolates = isolates

    async def create(
        self, caller: Principal, *, name: str, definition: AgentDefinition, once: Once | None = None
    ) -> dict[str, Any]:
        """Define an agent, and what `get` shows of it.

        Raises Conflict when the tenant has one of that name, InvalidField for an unknown provider
        and for microVMs where there are none.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            await self._require_possible(tx, definition)
            made = await store.insert_agent(
                tx, agent_id=new_id("agt"), name=name, definition=definition_json(definition)
            )
            if made is None:
                raise Conflict("There is an agent of that name already.", code="agent_exists")
            answer = _body(made)
            await finish_once(tx, once, answer)
        return answer

    async def replace(
        self, caller: Principal, *, name: str, definition: AgentDefinition
    ) -> dict[str, Any]:
        """Put another definition in the whole one's place, from the next turn on.

        Raises NotFound, and InvalidField as `create` does.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            await _require(tx, name)
            await self._require_possible(tx, definition)
            found = await store.replace_agent(tx, name=name, definition=definition_json(definition))
            if found is None:  # deleted in this moment
                raise _no_agent()
        return _body(found)

    async def get(self, caller: Principal, name: str) -> dict[str, Any]:
        """The definition as it was sent, with `name`, `id`, `createdAt`, `updatedAt`.

        Raises NotFound, also for a name that sessions use and no one has defined.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            return _body(await _require(tx, name))

    async def find(
        self, caller: Principal, *, after: str | None, most: int
    ) -> list[dict[str, Any]]:
        """The agents behind the name `after`, by name, as `get` shows them."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return [_body(one) for one in await store.list_agents(tx, after=after, most=most)]

    async def delete(self, caller: Principal, name: str) -> None:
        """Delete an agent; sessions go on with a plain assistant of that name. Raises NotFound."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if not (is_storable(name) and await store.delete_agent(tx, name)):
                raise _no_agent()

    async def _require_possible(self, tx: Tx, definition: AgentDefinition) -> None:
        if definition.isolation == "microvm" and not self._isolates:
            reason = "microvm is not available here: PAL_ISOLATION is off"
            raise InvalidField(
                f"isolation: {reason}", details=[{"field": "isolation", "reason": reason}]
            )
        named = {
            f"models.{role}.{place}": model.partition(":")[0]
            for role in ("primary", "fast")
            for place, model in enumerate(getattr(definition.models, role))
        }
        unknown = {path: one for path, one in named.items() if not self._knows(one)}
        if not unknown:
            return
        own = await self._secrets.provider_names(tx)
        details = [
            {"field": path, "reason": f"names a provider that is not set up: {one}"}
            for path, one in unknown.items()
            if one not in own
        ]
        if details:
            first = details[0]
            raise InvalidField(f"{first['field']}: {first['reason']}", details=details)


async def _require(tx: Tx, name: str) -> Agent:
    found = await store.get_agent(tx, name) if is_storable(name) else None
    if found is None:
        raise _no_agent()
    return found


def _no_agent() -> NotFound:
    return NotFound("There is no such agent.")


def _body(agent: Agent) -> dict[str, Any]:
    return {
        "id": agent.id,
        "name": agent.name,
        **agent.definition,
        "createdAt": rfc3339(agent.created_at),
        "updatedAt": rfc3339(agent.updated_at),
    }
