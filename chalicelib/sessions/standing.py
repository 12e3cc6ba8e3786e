"""Where a session stands, as callers are shown it: the whole of its execution tree."""

from typing import Any

from chalicelib.auth import Principal
from chalicelib.context.tree import tree_view
from chalicelib.context.tree_store import read_nodes, read_tree
from chalicelib.db import Database
from chalicelib.errors import NotFound
from chalicelib.sessions import store


async def read_standing(db: Database, caller: Principal, session_id: str) -> dict[str, Any]:
    """The tree with all of its nodes, also of a session that has ended. Raises NotFound."""
    async with db.tenant(caller.tenant_id) as tx:
        if await store.get_session(tx, session_id) is None:
            raise NotFound("There is no such session.")
        tree, nodes = await read_tree(tx, session_id), await read_nodes(tx, session_id)
    return tree_view(nodes, tree.active)
