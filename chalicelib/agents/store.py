"""The agents' SQL: one function a query, a transaction in, a row object out, no decisions.

The caller owns the transaction.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg.types.json import Json

from chalicelib.db import Tx, load_queries

_QUERIES: Final = load_queries(__file__)


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A defined agent; `definition` is the JSON that was sent, without the name."""

    id: str
    name: str
    definition: dict[str, Any]
    created_at: datetime
    updated_at: datetime


async def insert_agent(
    tx: Tx, *, agent_id: str, name: str, definition: dict[str, Any]
) -> Agent | None:
    """Write a new agent; None if there is one of that name."""
    values = {"id": agent_id, "name": name, "definition": Json(definition)}
    row = await (await tx.execute(_QUERIES["insert_agent"], values)).fetchone()
    return _agent(row) if row else None


async def replace_agent(tx: Tx, *, name: str, definition: dict[str, Any]) -> Agent | None:
    """Write a definition in place of the one there is; None if there is none."""
    values = {"name": name, "definition": Json(definition)}
    row = await (await tx.execute(_QUERIES["replace_agent"], values)).fetchone()
    return _agent(row) if row else None


async def get_agent(tx: Tx, name: str) -> Agent | None:
    """The agent, None if this tenant has defined none of that name."""
    row = await (await tx.execute(_QUERIES["get_agent"], {"name": name})).fetchone()
    return _agent(row) if row else None


async def list_agents(tx: Tx, *, after: str | None, most: int) -> list[Agent]:
    """The agents behind the name `after`, by name."""
    cur = await tx.execute(_QUERIES["list_agents"], {"after": after, "most": most})
    return [_agent(row) for row in await cur.fetchall()]


async def delete_agent(tx: Tx, name: str) -> bool:
    """Delete the agent; whether there was one."""
    cur = await tx.execute(_QUERIES["delete_agent"], {"name": name})
    return await cur.fetchone() is not None


def _agent(row: tuple[Any, ...]) -> Agent:
    return Agent(id=row[0], name=row[1], definition=row[2], created_at=row[3], updated_at=row[4])
