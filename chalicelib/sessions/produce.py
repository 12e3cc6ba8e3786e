"""From a claimed turn to its reply: which agent and models; streamed, or through the tool loop."""

import time
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from chalicelib.agents.definition import AgentDefinition, parse_definition
from chalicelib.errors import NotFound
from chalicelib.memory.injection import Injector
from chalicelib.providers import AttemptFailed, Models, Provider, TextDelta
from chalicelib.sessions.ending import Reply
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.loop import ToolLoop, tell_failure
from chalicelib.sessions.prompt import Hints, Prompt, build_prompt, read_hints
from chalicelib.sessions.teller import Teller
from chalicelib.tools.toolbox import ToolDeps, open_toolbox

_PLAIN: Final = parse_definition("{}")
"""The agent of a name that no one has defined."""


class Producer:
    """Makes replies, with the models and tools of this process, and its memory if it has one."""

    def __init__(self, models: Models, tools: ToolDeps, injector: Injector | None = None) -> None:
        self._models, self._tools, self._injector = models, tools, injector

    async def produce(
        self, turn: RunningTurn, reply: Reply, teller: Teller, *, began: float
    ) -> None:
        """Fill the reply in; raises PalError. `began` is the turn's start, on the monotonic clock.

        What the reply holds already of calls and rounds is what an earlier turn has left.
        Without tools the text is streamed. With any offered, or any call to go on with, the tool
        loop runs.
        """
        claimed = turn.claimed
        if claimed.agent_missing:
            raise NotFound(f"There is no agent {claimed.agent_name}.", code="agent_not_found")
        agent = parse_definition(claimed.definition) if claimed.definition else _PLAIN
        hints = read_hints(claimed, claimed.journal.hints)
        prompt = await self._remind(build_prompt(claimed, agent, hints), turn, agent)
        provider = await self._models.chain(
            tenant_id=claimed.tenant_id,
            specs=agent.models.primary if agent.models else (),
            own_keys=claimed.own_keys,
        )
        wanted = reply.used_tools or (agent.tools and not hints.no_tools)
        if wanted and await self._loop(turn, reply, teller, agent, hints, prompt, provider):
            return
        await _stream(turn, reply, teller, prompt, provider, began=began)

    async def _remind(self, prompt: Prompt, turn: RunningTurn, agent: AgentDefinition) -> Prompt:
        """The prompt with what the memory knows for it, where the agent wants that."""
        if self._injector is None or not agent.memory.inject:
            return prompt
        claimed = turn.claimed
        notes = await self._injector.notes(
            claimed.tenant_id,
            person_id=claimed.person_id,
            group_id=claimed.group_id,
            text=prompt.asked,
            budget=agent.memory.token_budget,
        )
        return replace(prompt, notes=notes)

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
