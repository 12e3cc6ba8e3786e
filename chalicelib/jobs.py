"""Functions that no caller waits for: turns, the sweep, memory's own work, the database's."""

import logging
import os
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import orjson
from chalice.app import Blueprint, CloudWatchEvent, Rate, SQSEvent

from chalicelib import bridge
from chalicelib.config import Settings, settings
from chalicelib.db import Login
from chalicelib.db.master import bootstrap_as_master
from chalicelib.db.migrate import migrate as apply_migrations
from chalicelib.services import services

T = TypeVar("T")

_log = logging.getLogger(__name__)
blueprint = Blueprint(__name__)

# part of the package, so they are read where Chalice imports this to package it
_TURNS_QUEUE = os.environ.get("PAL_TURNS_QUEUE") or Settings.turns_queue
_MEMORY_QUEUE = os.environ.get("PAL_MEMORY_QUEUE") or Settings.memory_queue
_PASSES_AT_ONCE = 10
_INDEX_SECONDS = 45.0
_UNCLAIMED_SECONDS = 60.0
_REAP_SECONDS = 10.0


class FunctionBroke(Exception):
    """An invocation failed: Lambda logs an exception's text, so this names the class alone."""


def _run(coro: Coroutine[Any, Any, T]) -> T:
    try:
        return bridge.run(coro)
    except Exception as exc:
        _log.exception("a function broke", extra={"action": "function_broke"})
        raise FunctionBroke(type(exc).__name__) from None


@blueprint.on_sqs_message(queue=_TURNS_QUEUE, batch_size=1, name="turn_worker")
def turn_worker(event: SQSEvent) -> None:
    """Run the queued turn of the session a message names: `{"tenantId", "sessionId"}`.

    One turn a message, for a second might outlast the function; what is queued by then is sent on.

    A session that is busy, or has nothing queued, needs no retry: the message is done with, and
    what it may have missed is found by the sweep.
    """
    for record in event:
        message = orjson.loads(record.body)
        _run(_run_turn(message["tenantId"], message["sessionId"]))


async def _run_turn(tenant_id: str, session_id: str) -> None:
    ready = await services()
    if await ready.engine.run_turn(tenant_id, session_id):
        await ready.sessions.dispatch(tenant_id, session_id)
    await ready.engine.wait_idle()  # what is behind the reply, since a frozen function does no work


@blueprint.schedule(Rate(1, unit=Rate.MINUTES), name="sweep")
def sweep(event: CloudWatchEvent) -> dict[str, int]:
    """End what lapsed or lies idle, dispatch unclaimed turns, delete what has expired."""
    return _run(_sweep())


async def _sweep() -> dict[str, int]:
    ready = await services()
    return {
        "turns": await ready.sweep(unclaimed=_UNCLAIMED_SECONDS),
        "sessions": await ready.end_idle(),
        "machines": await ready.reaper.sweep(within=_REAP_SECONDS),
        "events": await ready.purge(),
    }


@blueprint.schedule(Rate(1, unit=Rate.MINUTES), name="memory_tick")
def memory_tick(event: CloudWatchEvent) -> dict[str, int]:
    """Send the tenants whose pass is due to the queue; while distillation is off, do nothing."""
    if not settings().memory_distill:
        return {"tenants": 0}
    return {"tenants": _run(_memory_tick())}


async def _memory_tick() -> int:
    return await (await services()).distill_due()


@blueprint.on_sqs_message(
    queue=_MEMORY_QUEUE, batch_size=1, name="memory_worker", maximum_concurrency=_PASSES_AT_ONCE
)
def memory_worker(event: SQSEvent) -> None:
    """Run a slice of the pass of the tenant a message names: `{"tenantId"}`.

    With `"only": "narratives"` its narratives alone are rewritten.

    What it leaves is sent on. A pass that fails, or that another process is at, needs no retry: the
    message is done with, and the tick comes back to the tenant.
    """
    for record in event:
        message = orjson.loads(record.body)
        _run(_run_slice(message["tenantId"], only=message.get("only")))


async def _run_slice(tenant_id: str, *, only: str | None) -> None:
    from chalicelib.memory.schedule import NARRATIVES, run_slice  # five others do without

    ready = await services()
    if only == NARRATIVES:
        await ready.narrator.refresh(tenant_id)
    elif ready.settings.memory_distill and await run_slice(
        ready.distiller, tenant_id, ready.narrator
    ):
        await ready.hand_out([tenant_id])


@blueprint.schedule(Rate(1, unit=Rate.MINUTES), name="memory_index")
def memory_index(event: CloudWatchEvent) -> dict[str, int]:
    """Make vectors that lack, for most of the minute; without embeddings, do nothing."""
    if settings().embeddings == "off":
        return {"vectors": 0}
    return {"vectors": _run(_fill_index())}


async def _fill_index() -> int:
    from chalicelib.memory.schedule import fill_index

    indexer = (await services()).indexer
    made, ends = 0, time.monotonic() + _INDEX_SECONDS
    while indexer is not None and (left := ends - time.monotonic()) > 0:
        some = await fill_index(indexer, seconds=left)
        made += some
        if not some:
            break
    return made


@blueprint.lambda_function(name="migrate")
def migrate(event: Any, context: Any) -> dict[str, Any]:
    """Apply the migrations that the database lacks, as pal_owner: `{"applied": [names]}`.

    An event `{"keys": ...}` asks for a key to be made or revoked, and for no migration.
    """
    owner = Login(settings().database_owner_url, iam=settings().database_iam)
    if isinstance(event, dict) and "keys" in event:
        from chalicelib.administration import administer_keys  # with pydantic

        return dict(bridge.run(administer_keys(owner, event["keys"])))
    return {"applied": bridge.run(apply_migrations(owner))}


@blueprint.lambda_function(name="bootstrap")
def bootstrap(event: Any, context: Any) -> dict[str, bool]:
    """Make roles, extensions and their grants as the database's master user, on RDS."""
    ours = settings()
    bridge.run(bootstrap_as_master(ours.database_owner_url, ours.database_master_secret))
    return {"bootstrapped": True}
