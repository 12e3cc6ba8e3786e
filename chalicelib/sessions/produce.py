"""From a claimed turn to its reply: which agent and models; streamed, or through the tool loop."""

import time
from contextlib import aclosing
from typing import Final

from chalicelib.agents.definition import AgentDefinition, parse_definition
from chalicelib.context.compile import Compiled, compile_context
from chalicelib.context.given import Asked, Ground
from chalicelib.errors import NotFound
from chalicelib.memory.injection import NOTHING, Injector
from chalicelib.providers import AttemptFailed, Models, Provider, TextDelta
from chalicelib.sessions.ending import Reply
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.loop import ToolLoop, tell_failure
from chalicelib.sessions.prompt import Hints, Prompt, read_hints
from chalicelib.sessions.teller import Teller
from chalicelib.tools.offer import offered_names, told_tools
from chalicelib.tools.toolbox import ToolDeps, open_toolbox

_PLAIN: Final = parse_definition("{}")
"""The agent of a name that no one has defined."""


class Compiler:
    """Makes the context of sessions, from what is stored and what the memory holds."""

    def __init__(self, models: Models, injector: Injector) -> None:
        self._models, self._injector = models, injector

    async def compile(
        self,
        ground: Ground,
        hints: Hints,
        *,
        pending: str,
        budget: int | None = None,
        tree_sources: tuple[str, ...] = (),
    ) -> Compiled:
        """The context of a turn with these messages (JSON text). `budget` may only lower the own.

        Raises TooLarge, and NotFound where agents have to be defined and this one is not.
        """
        agent = agent_of(ground)
        specs = agent.models.primary
        most = self._models.budget(specs)
        tools = () if hints.no_tools else tuple(agent.tools)
        memory = NOTHING
        if agent.memory.inject:
            memory = await self._injector.recollect(
                ground.tenant_id, person_id=ground.person_id, group_id=ground.group_id
            )
        return compile_context(
            ground,
            Asked(
                pending=pending,
                system_hint=hints.system,
                turn_hint=hints.turn,
                tools=offered_names(tools, read_only=hints.read_only_tools),
                tools_text=told_tools(tools, read_only=hints.read_only_tools),
            ),
            persona=agent.system_prompt or f"You are {ground.agent_name}, a helpful assistant.",
            budget=most if budget is None else min(budget, most),
            model=self._models.first(specs),
            memory=memory,
            facts_budget=agent.memory.token_budget,
            tree_sources=tree_sources,
        )


def agent_of(ground: Ground) -> AgentDefinition:
    """The session's agent. NotFound where it is not defined and has to be."""
    if ground.agent_missing:
        raise NotFound(f"There is no agent {ground.agent_name}.", code="agent_not_found")
    return parse_definition(ground.definition) if ground.definition else _PLAIN


class Producer:
    """Makes replies, with the models and tools of this process."""

    def __init__(self, models: Models, tools: ToolDeps, compiler: Compiler) -> None:
        self._models, self._tools, self._compiler = models, tools, compiler

    async def produce(
        self, turn: RunningTurn, reply: Reply, teller: Teller, *, began: float
    ) -> None:
        """Fill the reply in; raises PalError. `began` is the turn's start, on the monotonic clock.

        What the reply holds already of calls and rounds is what an earlier turn has left.
        Without tools the text is streamed. With any offered, or any call to go on with, the tool
        loop runs.
        """
        claimed = turn.claimed
        agent = agent_of(claimed)
        hints = read_hints(claimed, claimed.journal.hints)
        compiled = await self._compiler.compile(claimed, hints, pending=claimed.pending)
        prompt = Prompt(compiled=compiled)
        provider = await self._models.chain(
            tenant_id=claimed.tenant_id,
            specs=agent.models.primary,
            own_keys=claimed.own_keys,
        )
        wanted = reply.used_tools or (agent.tools and not hints.no_tools)
        if wanted and await self._loop(turn, reply, teller, agent, hints, prompt, provider):
            return
        reply.estimated = compiled.tokens / compiled.factor
        await _stream(turn, reply, teller, prompt, provider, began=began)

    async def _loop(
        self,
        turn: RunningTurn,
        reply: Reply,
        teller: Teller,
        agent: AgentDefinition,
        hints: Hints,
        prompt: Prompt,
        provider: Provider,
    ) -> bool:
        """Run the tool loop; False if this turn has no use for it."""
        settings = self._tools.settings
        toolbox = await open_toolbox(
            agent.tools, tenant_id=turn.claimed.tenant_id, read_only=False, deps=self._tools
        )
        try:
            offered = frozenset(
                name
                for name, tool in toolbox.tools.items()
                if not hints.no_tools and (tool.read_only or not hints.read_only_tools)
            )
            if not offered and not reply.used_tools:
                return False
            loop = ToolLoop(
                turn,
                reply,
                prompt=prompt,
                provider=provider,
                toolbox=toolbox,
                offered=offered,
                teller=teller,
                rounds_at_most=agent.max_tool_rounds or settings.tool_rounds,
                approval_ttl=settings.approval_ttl,
            )
            await loop.run()
            return True
        finally:
            await toolbox.close()


async def _stream(
    turn: RunningTurn,
    reply: Reply,
    teller: Teller,
    prompt: Prompt,
    provider: Provider,
    *,
    began: float,
) -> None:
    async with aclosing(provider.stream(prompt.request())) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                if reply.first_token is None:
                    reply.first_token = time.monotonic() - began
                turn.live.add(event.text)
            elif isinstance(event, AttemptFailed):
                await tell_failure(teller, event)
            else:
                reply.finished = event
