"""Compaction's SQL: what is read of a session, and the one statement that makes it shorter.

The caller owns the transaction.
"""

from dataclasses import dataclass
from typing import Any, Final

from chalicelib.db import Tx, load_queries

_QUERIES: Final = load_queries(__file__, "compaction_store.sql")


@dataclass(frozen=True, kw_only=True)
class Long:
    """A session that has more messages than it should: `entries` is their JSON text."""

    messages: int
    compactions: int
    summary: str
    entries: str


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What is to become of it: `cut` entries leave, of which `removed` are messages.

    `next_id` is the id of the message that is the first one then, `tokens` what the summary takes.
    """

    cut: int
    removed: int
    next_id: str
    summary: str
    tokens: int


async def read_long(tx: Tx, session_id: str, *, lease: str, past: int, force: bool) -> Long | None:
    """The session, None where it has `past` messages at most or is to wait, or is not ours."""
    values = {"session_id": session_id, "lease": lease, "past": past, "force": force}
    row = await (await tx.execute(_QUERIES["read_session"], values)).fetchone()
    if row is None or row[3] is None:
        return None
    return Long(messages=row[0], compactions=row[1], summary=row[2] or "", entries=row[3])


async def lock_head(tx: Tx, session_id: str) -> bool:
    """Lock the session's head until the transaction ends; False if there is no such session."""
    cur = await tx.execute(_QUERIES["lock_head"], {"session_id": session_id})
    return await cur.fetchone() is not None


async def cut_messages(
    tx: Tx, session_id: str, cut: Cut, *, lease: str, compactions: int
) -> tuple[int, int] | None:
    """Put the summary in place of what leaves: (the event's seq, messages kept).

    None, and nothing is written, unless all is as it was read and this worker's. Call `lock_head`
    first in the same transaction.
    """
    values: dict[str, Any] = {"lease": lease, "compactions": compactions, **vars(cut)}
    cur = await tx.execute(_QUERIES["cut_messages"], {"session_id": session_id, **values})
    row = await cur.fetchone()
    return (row[0], row[1]) if row else None


async def put_off(tx: Tx, session_id: str, *, lease: str, compact_at: int) -> None:
    """Let no summary be tried for before there are so many messages."""
    values = {"session_id": session_id, "lease": lease, "compact_at": compact_at}
    await tx.execute(_QUERIES["put_off"], values)
