"""The tree's SQL: all nodes that there ever were, of which the folded are read by audits alone.

The caller owns the transaction.
"""

from typing import Any, Final

from psycopg.types.json import Jsonb

from chalicelib.context.shapes import Node, Tree
from chalicelib.context.tree import closed_below
from chalicelib.db import Tx, load_queries

_QUERIES: Final = load_queries(__file__, "tree_store.sql")


async def read_tree(tx: Tx, session_id: str) -> Tree:
    """The tree as the next turn goes on with it; an empty one where there is none."""
    cur = await tx.execute(_QUERIES["read_tree"], {"session_id": session_id})
    rows = await cur.fetchall()
    if not rows:
        return Tree()
    active, count = rows[0][:2]
    nodes = tuple(_node(row[2:]) for row in rows if row[2] is not None)
    return Tree(nodes=nodes, active=active, count=count)


async def read_nodes(tx: Tx, session_id: str) -> list[Node]:
    """All nodes, the folded ones too; what stands below a closed one is closed."""
    cur = await tx.execute(_QUERIES["read_nodes"], {"session_id": session_id})
    return closed_below([_node(row) for row in await cur.fetchall()])


async def write_tree(
    tx: Tx,
    session_id: str,
    before: Tree,
    after: Tree,
    *,
    rendered: str,
    ordinal: int,
    lease: str,
) -> bool:
    """Write what has changed from `before`, and that turns up to `ordinal` are in it.

    False, and nothing is written, where the session is gone or sealed, or the lease another's.
    """
    cur = await tx.execute(_QUERIES["hold_session"], {"session_id": session_id})
    if not cur.rowcount:
        return False
    known = {one.number: one for one in before.nodes}
    changed = [one for one in after.nodes if known.get(one.number) != one]
    values = {
        "session_id": session_id,
        "lease": lease,
        "rendered": rendered,
        "ordinal": ordinal,
        "active": after.active,
        "count": after.count,
        "nodes": Jsonb([_row(one) for one in changed]),
    }
    return (await tx.execute(_QUERIES["write_tree"], values)).rowcount > 0


def _row(node: Node) -> dict[str, Any]:
    return {
        "number": node.number,
        "parent": node.parent,
        "kind": node.kind,
        "text": node.text,
        "status": node.status,
        "outcome": node.outcome,
        "sources": list(node.sources),
        "folded": node.folded,
        "opened_at": node.opened_at.isoformat(),
        "closed_at": None if node.closed_at is None else node.closed_at.isoformat(),
    }


def _node(row: tuple[Any, ...]) -> Node:
    number, parent, kind, text, status, outcome, sources, folded, opened_at, closed_at = row
    return Node(
        number=number,
        parent=parent,
        kind=kind,
        text=text,
        opened_at=opened_at,
        status=status,
        outcome=outcome,
        sources=tuple(sources),
        folded=folded,
        closed_at=closed_at,
    )
