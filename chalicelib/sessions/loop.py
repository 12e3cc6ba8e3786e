"""The tool loop of one turn: ask, run what was asked for, ask again.

Not streamed. Calls of one round run side by side and keep their order. What is done is in the
journal before and behind it, so a turn that takes up one that was cut runs no call twice. A round
with a call that needs a person's approval is the turn's last one.
"""

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from chalicelib.db import Tx
from chalicelib.errors import PalError
from chalicelib.ids import new_id
from chalicelib.providers import AttemptFailed, Finished, Provider, TextDelta, ToolCall, ToolSpec
from chalicelib.sessions import journal
from chalicelib.sessions.calls import (
    CHANGED,
    UNKNOWN,
    Call,
    CallStatus,
    NewApproval,
    Round,
    arguments_hash,
    canonical,
    json_value,
    spent,
    tool_name,
)
from chalicelib.sessions.ending import Reply
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.prompt import Prompt
from chalicelib.sessions.teller import Event, Teller
from chalicelib.tools.base import ToolContext, ToolOutcome
from chalicelib.tools.toolbox import Toolbox

_log = logging.getLogger(__name__)

CALLS_PER_ROUND: Final = 32
_AT_ONCE: Final = 8
_TOO_MANY: Final = f"Not run: at most {CALLS_PER_ROUND} calls are taken in one answer."


class ToolLoop:
    """One turn's loop. `offered` are the names of the tools that this turn may use."""

    def __init__(
        self,
        turn: RunningTurn,
        reply: Reply,
        *,
        prompt: Prompt,
        provider: Provider,
        toolbox: Toolbox,
        offered: frozenset[str],
        teller: Teller,
        rounds_at_most: int,
        approval_ttl: float,
    ) -> None:
        self._turn, self._reply = turn, reply
        self._prompt, self._provider, self._teller = prompt, provider, teller
        self._toolbox, self._offered = toolbox, offered
        self._rounds_at_most, self._approval_ttl = rounds_at_most, approval_ttl
        self._specs = tuple(one for one in toolbox.specs if one.name in offered)
        self._begun: set[str] = set()

    async def run(self) -> None:
        """Run to the turn's end, which the reply then holds; raises PalError."""
        reply = self._reply
        await self._settle(reply.decided)
        while True:
            if reply.rounds:
                calls = reply.rounds[-1].calls
                await self._settle(calls)
                if waiting := [one for one in calls if one.status == "asked"]:
                    self._wait_for(waiting)
                    return
            # at the limit the model is asked once more, without tools
            tools = self._specs if len(reply.rounds) < self._rounds_at_most else ()
            text, answer = await self._ask(tools)
            if not tools or not answer.tool_calls:
                reply.text = text
                reply.finished = replace(answer, **vars(spent([*reply.rounds, answer])))
                return
            await self._begin(text, answer)

    # ── asking ───────────────────────────────────────────────────────────────────────────────
    async def _ask(self, tools: tuple[ToolSpec, ...]) -> tuple[str, Finished]:
        reply = self._reply
        request = self._prompt.request(
            decided=reply.decided, rounds=reply.rounds, tools=tools, stream=False
        )
        said: list[str] = []
        finished: Finished | None = None
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    said.append(event.text)
                elif isinstance(event, AttemptFailed):
                    await tell_failure(self._teller, event)
                else:
                    finished = event
        if finished is None:
            raise PalError("The model gave no answer.", code="provider_error")
        return "".join(said), finished

    # ── a round ──────────────────────────────────────────────────────────────────────────────
    async def _begin(self, text: str, answer: Finished) -> None:
        """Write the round down, then go on with it."""
        made = Round(
            number=len(self._reply.rounds) + 1,
            content=text,
            provider=answer.provider,
            model=answer.model,
            reasoning=answer.reasoning,
            tokens_in=answer.tokens_in,
            tokens_out=answer.tokens_out,
            tokens_cached=answer.tokens_cached,
            cost_usd=answer.cost_usd,
        )
        for place, asked in enumerate(answer.tool_calls, 1):
            made.calls.append(self._take(asked, made.number, place))
        starting = [one for one in made.calls if one.status == "running"]
        claimed = self._turn.claimed

        async def write(tx: Tx) -> None:
            await journal.insert_round(tx, claimed, made)

        async def written(tx: Tx) -> bool:
            return await journal.has_round(tx, claimed, made.number)

        self._reply.journaled = True
        await self._teller.write([_started(one) for one in starting], write, done=written)
        self._begun |= {one.id for one in starting}
        self._reply.rounds.append(made)

    def _take(self, asked: ToolCall, number: int, place: int) -> Call:
        call = Call(
            # a vendor's own id may be missing, used twice, or no id to another vendor
            id=new_id("call"),
            turn_id=self._turn.claimed.turn_id,
            round=number,
            place=place,
            name=tool_name(asked.name),
            arguments=canonical(asked.arguments),
            status="running",
        )
        tool = self._toolbox.tools.get(call.name)
        gated = tool is not None and tool.approval == "always" and call.name in self._offered
        if gated and place <= CALLS_PER_ROUND and self._toolbox.problem(call.asked()) is None:
            call.status = "asked"
        return call

    async def _settle(self, calls: list[Call]) -> None:
        """Run what is to be run of these calls; those that wait for an approval are left."""
        await self._restart(calls)
        running = [one for one in calls if one.status == "running"]
        if not running:
            return
        gate = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for one in running:
                    group.create_task(self._run(one, gate))
        except BaseExceptionGroup as broken:
            raise broken.exceptions[0] from None

    async def _restart(self, calls: list[Call]) -> None:
        """Start what was approved, and what a process that died had started, if it may."""
        starting = []
        for call in calls:
            if call.status == "approved":
                hashed = arguments_hash(self._turn.claimed.session_id, call.id, call.arguments)
                if hashed == call.approved_hash:
                    starting.append(call)
                else:
                    await self._finish(call, "failed", ToolOutcome(text=CHANGED, is_error=True))
            elif call.status == "running" and call.id not in self._begun:
                if self._may_run_again(call):
                    starting.append(call)
                else:
                    await self._finish(call, "unknown", ToolOutcome(text=UNKNOWN, is_error=True))
        if not starting:
            return

        async def write(tx: Tx) -> None:
            await journal.start_calls(tx, starting)

        async def written(tx: Tx) -> bool:
            # to start a call twice in the journal changes nothing; its event may come twice
            return False

        await self._teller.write([_started(one) for one in starting], write, done=written)
        for call in starting:
            call.status = "running"
            self._begun.add(call.id)

    def _may_run_again(self, call: Call) -> bool:
        tool = self._toolbox.tools.get(call.name)
        if tool is None or not (tool.read_only or tool.idempotent):
            return False
        return tool.approval == "never" or call.approved_hash is not None

    async def _run(self, call: Call, gate: asyncio.Semaphore) -> None:
        async with gate:
            began = time.monotonic()
            outcome = await self._outcome(call)
            duration = time.monotonic() - began
        status: CallStatus = "failed" if outcome.is_error else "completed"
        _log.info(
            "tool call ended",
            extra={"action": "tool_call_ended", "outcome": status, "ms": round(duration * 1000)},
        )
        await self._finish(call, status, outcome, duration=duration)

    async def _outcome(self, call: Call) -> ToolOutcome:
        decided = call.approved_hash is not None and call.turn_id != self._turn.claimed.turn_id
        if call.place > CALLS_PER_ROUND and not decided:
            return ToolOutcome(text=_TOO_MANY, is_error=True)
        if not decided and call.name not in self._offered:
            known = ", ".join(sorted(self._offered)) or "none"
            return ToolOutcome(
                text=f"There is no tool {call.name}. The tools are: {known}.", is_error=True
            )
        claimed = self._turn.claimed
        context = ToolContext(
            tenant_id=claimed.tenant_id,
            session_id=claimed.session_id,
            turn_id=claimed.turn_id,
            call_id=call.id,
            agent_name=claimed.agent_name,
            user_id=claimed.user_id,
            person_id=claimed.person_id,
            group_id=claimed.group_id,
            now=claimed.accepted_at,
        )
        return await self._toolbox.call(call.asked(), context)

    async def _finish(
        self, call: Call, status: CallStatus, outcome: ToolOutcome, *, duration: float = 0.0
    ) -> None:
        call.status, call.result = status, outcome.text
        kind = "tool_call_completed" if status == "completed" else "tool_call_failed"
        said = "result" if status == "completed" else "error"
        data = {
            "callId": call.id,
            "name": call.name,
            "status": status,
            said: outcome.text,
            "durationMs": round(duration * 1000),
        }

        async def write(tx: Tx) -> None:
            await journal.finish_call(tx, call, output=outcome.whole)
            if call.turn_id != self._turn.claimed.turn_id:
                await journal.show_calls(tx, call.turn_id)

        async def written(tx: Tx) -> bool:
            return await journal.call_status(tx, call.id) == status

        await self._teller.write([(kind, data)], write, done=written)

    # ── the end ──────────────────────────────────────────────────────────────────────────────
    def _wait_for(self, calls: list[Call]) -> None:
        """End the turn with an approval for each of these calls."""
        expires_at = datetime.now(UTC) + timedelta(seconds=self._approval_ttl)
        reply = self._reply
        reply.approvals = [
            NewApproval(id=new_id("apr"), call=one, expires_at=expires_at) for one in calls
        ]
        last = reply.rounds[-1]
        reply.text = last.content
        reply.finished = Finished(
            reason="awaiting_approval",
            provider=last.provider,
            model=last.model,
            **vars(spent(reply.rounds)),
        )


async def tell_failure(teller: Teller, failed: AttemptFailed) -> None:
    """Tell that a provider of the chain failed and another try is made."""
    await teller.tell(
        "provider_attempt_failed",
        provider=failed.provider,
        model=failed.model,
        error=failed.reason,
    )


def _started(call: Call) -> Event:
    data = {
        "callId": call.id,
        "name": call.name,
        "arguments": json_value(call.arguments),
        "round": call.round,
    }
    return "tool_call_started", data
