"""People: who is who across channels."""

from collections.abc import Sequence
from typing import Any

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_schemas import (
    DuplicatesOut,
    HandleIn,
    MergeIn,
    PeopleOut,
    PersonIn,
    PersonOut,
)
from chalicelib.api.paging import bad_token, next_page, read_token
from chalicelib.errors import InvalidField
from chalicelib.ids import is_id
from chalicelib.memory.handles import Handle, InvalidHandle, read_handle

blueprint = Blueprint(__name__)


@blueprint.route("/v1/people", methods=["POST"])
@endpoint(scope="memory", body=PersonIn, answers={201: PersonOut}, idempotent=True)
async def create_person(request: Request[PersonIn]) -> Any:
    """Make a person known."""
    body = request.body
    return await request.services.people.create(
        request.caller,
        name=body.name,
        handles=handles_of(body.handles),
        metadata=body.metadata,
        once=request.once,
    )


@blueprint.route("/v1/people", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: PeopleOut},
    query={
        "q": "Only people with this in their name or in a handle.",
        "channel": "Only people with a handle on this channel.",
        "handle": "Only the person with this handle on `channel`.",
        "pageSize": "How many, 50 if absent, at most 200.",
        "pageToken": "Where to go on: `X-Next-Page-Token` of the page before.",
    },
)
async def list_people(request: Request[None]) -> Any:
    """List people, newest first."""
    call = request.call
    before = read_token(call.query.get("pageToken"), 1)
    if before is not None and not is_id(str(before[0]), "per"):
        raise bad_token()
    channel, given = call.text_query("channel"), call.text_query("handle")
    if given is not None and channel is None:
        raise InvalidField.of("channel", "must be given with a handle")
    size = call.page_size()
    found = await request.services.people.find(
        request.caller,
        before=None if before is None else before[0],
        text=call.text_query("q"),
        channel=channel and channel.strip().lower(),
        handle=handle_at("handle", channel, given) if channel and given else None,
        most=size + 1,
    )
    more = len(found) > size
    headers = next_page([found[size - 1]["id"]]) if more else {}
    return Answer(body={"people": found[:size]}, headers=headers)


@blueprint.route("/v1/people/duplicates", methods=["GET"])
@endpoint(scope="memory", answers={200: DuplicatesOut})
async def list_duplicates(request: Request[None]) -> Any:
    """List people who are likely one, by a number, an address or a name that they share."""
    return {"duplicates": await request.services.people.duplicates(request.caller)}


@blueprint.route("/v1/people/merge", methods=["POST"])
@endpoint(scope="memory", body=MergeIn, answers={200: PersonOut}, idempotent=True)
async def merge_people(request: Request[MergeIn]) -> Any:
    """Make two people one; the id of the one leads to the other from then on."""
    return await request.services.people.merge(
        request.caller, source=request.body.source, target=request.body.into, once=request.once
    )


@blueprint.route("/v1/people/{person_id}", methods=["GET"])
@endpoint(scope="memory", answers={200: PersonOut})
async def get_person(request: Request[None]) -> Any:
    """Read a person, also by the id of one who was merged into them."""
    return await request.services.people.get(request.caller, request.call.params["person_id"])


@blueprint.route("/v1/people/{person_id}/handles", methods=["POST"])
@endpoint(scope="memory", body=HandleIn, answers={201: PersonOut}, idempotent=True)
async def add_handle(request: Request[HandleIn]) -> Any:
    """Give a person one more handle."""
    body = request.body
    return await request.services.people.add_handle(
        request.caller,
        request.call.params["person_id"],
        handle_at("handle", body.channel, body.handle),
        once=request.once,
    )


def handles_of(given: Sequence[HandleIn]) -> list[Handle]:
    """These handles, normalised; raises InvalidField naming the first that is none."""
    return [
        handle_at(f"handles.{place}.handle", one.channel, one.handle)
        for place, one in enumerate(given)
    ]


def handle_at(field: str, channel: str, given: str) -> Handle:
    """The handle of a text, normalised; raises InvalidField for this field."""
    try:
        return read_handle(channel, given)
    except InvalidHandle as exc:
        raise InvalidField.of(field, str(exc)) from exc
