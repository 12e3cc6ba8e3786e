"""Functions that no caller waits for: the turn worker, the sweep, migrations."""

import os
from typing import Any

import orjson
from chalice.app import Blueprint, CloudWatchEvent, Rate, SQSEvent

from chalicelib import bridge
from chalicelib.config import Settings, settings
from chalicelib.db.migrate import migrate as apply_migrations
from chalicelib.services import services

blueprint = Blueprint(__name__)

# part of the package, so it is read where Chalice imports this to package it
_TURNS_QUEUE = os.environ.get("PAL_TURNS_QUEUE") or Settings.turns_queue
_UNCLAIMED_SECONDS = 60.0


@blueprint.on_sqs_message(queue=_TURNS_QUEUE, batch_size=1, name="turn_worker")
def turn_worker(event: SQSEvent) -> None:
    """Run the queued turn of the session a message names: `{"tenantId", "sessionId"}`.

    One turn a message, for a second might outlast the function; what is queued by then is sent on.

    A session that is busy, or has nothing queued, needs no retry: the message is done with, and
    what it may have missed is found by the sweep.
    """
    for record in event:
        message = orjson.loads(record.body)
        bridge.run(_run_turn(message["tenantId"], message["sessionId"]))


async def _run_turn(tenant_id: str, session_id: str) -> None:
    ready = await services()
    if await ready.engine.run_turn(tenant_id, session_id):
        await ready.sessions.dispatch(tenant_id, session_id)


@blueprint.schedule(Rate(1, unit=Rate.MINUTES), name="sweep")
def sweep(event: CloudWatchEvent) -> dict[str, int]:
    """End lapsed turns, dispatch unclaimed ones, delete expired events: how many of each."""
    return bridge.run(_sweep())


async def _sweep() -> dict[str, int]:
    ready = await services()
    return {
        "turns": await ready.sweep(unclaimed=_UNCLAIMED_SECONDS),
        "events": await ready.purge(),
    }


@blueprint.lambda_function(name="migrate")
def migrate(event: Any, context: Any) -> dict[str, list[str]]:
    """Apply the migrations that the database lacks, as pal_owner: `{"applied": [names]}`."""
    return {"applied": bridge.run(apply_migrations(settings().database_owner_url))}
