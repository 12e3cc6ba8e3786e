"""What memory does by itself: passes of distillation that are due, and vectors that lack.

Who is due is handed out to someone who runs a slice of their pass. A slice that gets lost is no
loss: its tenant is due until a pass has begun.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from chalicelib import telemetry
from chalicelib.errors import Conflict, PalError
from chalicelib.memory.distill.passes import Distiller
from chalicelib.memory.embedder import Indexer
from chalicelib.memory.narrative.narrator import Narrator

_log = logging.getLogger(__name__)

_DUE_AT_MOST: Final = 1_000
_SQS_BATCH: Final = 10

NARRATIVES: Final = "narratives"

HandOut = Callable[[Sequence[str]], Awaitable[None]]
"""Called with the ids of tenants that a slice is to be run for."""


async def tick(distiller: Distiller, hand_out: HandOut, *, every: float) -> int:
    """Hand out a slice for each tenant whose last pass was `every` seconds ago; how many."""
    due = await distiller.due(every, _DUE_AT_MOST)
    if due:
        await hand_out(due)
        _log.info("passes handed out", extra={"action": "passes_handed_out", "tenants": len(due)})
    return len(due)


async def run_slice(distiller: Distiller, tenant_id: str, narrator: Narrator | None = None) -> bool:
    """Run one slice of this tenant's pass; whether it left more. A failure is left to the tick.

    Once a pass has caught up, what it changed is written into the tenant's narratives.
    """
    telemetry.bind(tenant_id=tenant_id)
    try:
        if (await distiller.run(tenant_id)).more:
            return True
        if narrator is not None:
            await narrator.refresh(tenant_id)
    except Conflict:
        pass  # another process is at it
    except PalError as exc:
        _log.warning("pass put off", extra={"action": "pass_put_off", "error": exc.code})
    except Exception:
        _log.exception("pass broke", extra={"action": "pass_broke"})
    return False


def run_here(distiller: Distiller, narrator: Narrator | None = None) -> HandOut:
    """Run passes in this process, a slice of each tenant in turn until all have caught up."""

    async def hand_out(tenants: Sequence[str]) -> None:
        waiting = deque(tenants)
        while waiting:
            tenant_id = waiting.popleft()
            if await run_slice(distiller, tenant_id, narrator):
                waiting.append(tenant_id)

    return hand_out


def retell_here(narrator: Narrator) -> HandOut:
    """Rewrite narratives in this process."""

    async def retell(tenants: Sequence[str]) -> None:
        for tenant_id in tenants:
            await narrator.refresh(tenant_id)

    return retell


def send_to_queue(queue_url: str, *, only: str | None = None) -> HandOut:
    """Send each tenant to an SQS queue as `{"tenantId"}`, with `only` where it is not all."""
    client: Any = None
    more = {} if only is None else {"only": only}

    def send(tenants: Sequence[str]) -> None:
        nonlocal client
        if client is None:
            import boto3  # 170 ms of import, paid only where a queue is set

            client = boto3.client("sqs")
        for first in range(0, len(tenants), _SQS_BATCH):
            entries = [
                {"Id": str(place), "MessageBody": orjson.dumps({"tenantId": one, **more}).decode()}
                for place, one in enumerate(tenants[first : first + _SQS_BATCH])
            ]
            answer = client.send_message_batch(QueueUrl=queue_url, Entries=entries)
            for failed in answer.get("Failed", ()):
                _log.warning(
                    "pass not sent", extra={"action": "pass_not_sent", "error": failed["Code"]}
                )

    async def hand_out(tenants: Sequence[str]) -> None:
        await asyncio.to_thread(send, tenants)

    return hand_out


async def fill_index(indexer: Indexer, *, seconds: float = math.inf) -> int:
    """Make some of the vectors that lack, in every tenant that lacks any: how many were made.

    After so many seconds no other tenant is begun with.
    """
    made, ends = 0, time.monotonic() + seconds
    try:
        for tenant_id in await indexer.due(_DUE_AT_MOST):
            if time.monotonic() >= ends:
                break
            with suppress(PalError):  # told there; one tenant's trouble is not the others'
                made += await indexer.run_once(tenant_id)
    except PalError as exc:
        _log.warning("index put off", extra={"action": "index_put_off", "error": exc.code})
    return made
