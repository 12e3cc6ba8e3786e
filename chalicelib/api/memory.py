"""Memory: the timeline, what callers have remembered, search."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from chalice.app import Blueprint

from chalicelib.api.call import Call
from chalicelib.api.distillate_schemas import DistillateOut, IndexOut, RememberIn, SearchOut
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_schemas import EventIn, EventsIn, IngestedOut, read_moment
from chalicelib.api.people import handle_at
from chalicelib.errors import InvalidField
from chalicelib.memory.handles import Handle
from chalicelib.memory.search.service import TIERS
from chalicelib.memory.timeline import NewEvent
from chalicelib.texts import rfc3339

blueprint = Blueprint(__name__)

QUERY_AT_MOST: Final = 2_000
RESULTS: Final = 10
RESULTS_AT_MOST: Final = 200


@blueprint.route("/v1/memory/events", methods=["POST"])
@endpoint(scope="memory", body=EventsIn, answers={200: IngestedOut}, idempotent=True)
async def ingest_events(request: Request[EventsIn]) -> Any:
    """Put what was said elsewhere on the timeline, whole or not at all."""
    known: dict[tuple[str, str], Handle] = {}
    events = [_event(place, one, known) for place, one in enumerate(request.body.events)]
    return await request.services.timeline.ingest(request.caller, events, once=request.once)


@blueprint.route("/v1/memory/remember", methods=["POST"])
@endpoint(scope="memory", body=RememberIn, answers={201: DistillateOut}, idempotent=True)
async def remember(request: Request[RememberIn]) -> Any:
    """Remember something by the caller's own word, which nothing inferred overwrites."""
    body = request.body
    return await request.services.distillates.remember(
        request.caller,
        content=body.content,
        topic=body.topic,
        person_id=body.person_id,
        group_id=body.group_id,
        once=request.once,
    )


@blueprint.route("/v1/memory/search", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: SearchOut},
    query={
        "q": f"What is looked for, in words; at most {QUERY_AT_MOST} characters.",
        "personId": "Only what is this person's, also by the id of one who was merged into them.",
        "groupId": "Only what was said in this group.",
        "tiers": f"By commas, which of {', '.join(TIERS)}; all of them if absent.",
        "limit": f"How many, {RESULTS} if absent, at most {RESULTS_AT_MOST}.",
        "since": "Only what occurred at this time or later.",
        "until": "Only what occurred before this time.",
    },
)
async def search_memory(request: Request[None]) -> Any:
    """Search what was said and what is known, the best first."""
    call, ready = request.call, request.services
    text = (call.text_query("q") or "").strip()
    if not 0 < len(text) <= QUERY_AT_MOST:
        raise InvalidField.of("q", f"must be a text of 1 to {QUERY_AT_MOST} characters")
    tiers = _tiers(call.query.get("tiers"))
    since, until = _moment(call.query, "since"), _moment(call.query, "until")
    if since is not None and until is not None and since > until:
        raise InvalidField.of("until", "must not be before since")
    limit = limit_of(call, most=RESULTS_AT_MOST) or RESULTS
    group_id, person_id = call.text_query("groupId"), call.text_query("personId")
    if person_id is not None:
        person_id = await ready.people.resolve(request.caller, person_id)
    found = await ready.search.find(
        request.caller.tenant_id,
        text=text,
        person_id=person_id,
        group_id=group_id,
        tiers=tiers,
        since=since,
        until=until,
        limit=limit,
    )
    return {"results": [{**one, "occurred_at": rfc3339(one["occurred_at"])} for one in found]}


@blueprint.route("/v1/memory/index", methods=["GET"])
@endpoint(scope="memory", answers={200: IndexOut})
async def show_index(request: Request[None]) -> Any:
    """Read how much of what can be found has the vector that search by meaning takes."""
    indexer = request.services.indexer
    if indexer is None:
        return {"embeddings": {"model": None, "done": 0, "total": 0}}
    return {"embeddings": await indexer.progress(request.caller.tenant_id)}


def limit_of(call: Call, *, most: int) -> int | None:
    """`limit`, None without one; raises InvalidField unless it is a number from 1 to `most`."""
    text = call.query.get("limit")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most):
        raise InvalidField.of("limit", f"must be a whole number from 1 to {most}")
    return int(text)


def _tiers(text: str | None) -> tuple[str, ...]:
    named = {part.strip() for part in (text or "").split(",")} - {""}
    if not named <= set(TIERS):
        raise InvalidField.of("tiers", f"must be some of {', '.join(TIERS)}, by commas")
    return tuple(one for one in TIERS if one in named) or TIERS


def _moment(query: Mapping[str, str], name: str) -> datetime | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return read_moment(text)
    except ValueError as exc:
        raise InvalidField.of(name, str(exc)) from exc


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
