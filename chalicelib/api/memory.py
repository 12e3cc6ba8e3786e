"""Memory: the timeline. Distillation is off until it is there, and answers as the contract says."""

from typing import Any

from chalice.app import Blueprint

from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_schemas import EventIn, EventsIn, IngestedOut
from chalicelib.api.people import handle_at
from chalicelib.api.schemas import DistillatesOut, DistillOut
from chalicelib.memory.handles import Handle
from chalicelib.memory.timeline import NewEvent

blueprint = Blueprint(__name__)


@blueprint.route("/v1/memory/events", methods=["POST"])
@endpoint(scope="memory", body=EventsIn, answers={200: IngestedOut}, idempotent=True)
async def ingest_events(request: Request[EventsIn]) -> Any:
    """Put what was said elsewhere on the timeline, whole or not at all."""
    known: dict[tuple[str, str], Handle] = {}
    events = [_event(place, one, known) for place, one in enumerate(request.body.events)]
    return await request.services.timeline.ingest(request.caller, events, once=request.once)


@blueprint.route("/v1/memory/distillates", methods=["GET"])
@endpoint(scope="memory", answers={200: DistillatesOut})
async def list_distillates(request: Request[None]) -> Any:
    """List what has been distilled; empty while distillation is off."""
    return {"enabled": False, "distillates": []}


@endpoint(scope="memory", answers={200: DistillOut})
async def distill(request: Request[None]) -> Any:
    """Run a slice of distillation now; finds nothing while distillation is off."""
    return {"enabled": False, "found": 0}


def _event(place: int, one: EventIn, known: dict[tuple[str, str], Handle]) -> NewEvent:
    person = one.person
    handle = None
    if person is not None:
        # a batch is often one conversation, and a phone number takes a while to read
        given = (person.channel, person.handle)
        if given not in known:
            known[given] = handle_at(f"events.{place}.person.handle", *given)
        handle = known[given]
    return NewEvent(
        channel=one.channel,
        kind=one.kind,
        content=one.content,
        occurred_at=one.occurred_at,
        direction=one.direction,
        external_id=one.external_id,
        group_id=one.group_id,
        person=handle,
        name=None if person is None else person.name,
        metadata=one.metadata,
    )
