"""What a model would be told in a session right now, for whoever asks."""

from typing import Any

import orjson

from chalicelib.auth import Principal
from chalicelib.context.compile import Compiled
from chalicelib.context.shapes import Section, Tree
from chalicelib.context.tree_store import read_tree
from chalicelib.db import Database
from chalicelib.errors import NotFound
from chalicelib.sessions import store
from chalicelib.sessions.produce import Compiler
from chalicelib.sessions.prompt import Hints


class Contexts:
    """Shows compiled contexts. No model is asked."""

    def __init__(self, db: Database, compiler: Compiler) -> None:
        self._db, self._compiler = db, compiler

    async def show(
        self, caller: Principal, session_id: str, *, query: str | None, budget: int | None
    ) -> dict[str, Any]:
        """`{sections, tokens, budget, dropped}`, as for a message `query`, or for none.

        Raises NotFound, and TooLarge where what may not be left out does not fit.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            ground = await store.read_ground(tx, session_id)
            tree = await read_tree(tx, session_id) if ground is not None else Tree()
        if ground is None:
            raise NotFound("There is no such session.")
        pending = [] if query is None else [{"role": "user", "content": query}]
        sources = dict.fromkeys(one for node in tree.nodes for one in node.sources)
        compiled = await self._compiler.compile(
            ground,
            Hints(),
            pending=orjson.dumps(pending).decode(),
            budget=budget,
            tree_sources=tuple(sources),
        )
        return context_body(compiled)


def context_body(compiled: Compiled) -> dict[str, Any]:
    """The context as callers see it, its sections in the order in which a model reads them."""
    sections = [*compiled.before]
    if compiled.blocks:
        sections.append(_turns(compiled))
    sections += compiled.behind
    return {
        "sections": [vars(one) | {"sources": list(one.sources)} for one in sections],
        "tokens": compiled.tokens,
        "budget": compiled.budget,
        "dropped": [vars(one) for one in compiled.dropped],
    }


def _turns(compiled: Compiled) -> Section:
    told = []
    for block in compiled.blocks:
        for one in block.messages:
            calls = [f"{one.role} calls {call.name}({call.arguments})" for call in one.tool_calls]
            told += [f"{one.role}: {one.content}"] if one.content or not calls else []
            told += calls
    return Section(
        tier="working",
        kind="turns",
        text="\n".join(told),
        tokens=sum(one.tokens for one in compiled.blocks),
        sources=tuple(source for block in compiled.blocks for source in block.sources),
    )
