"""People: who is who across channels."""

from collections.abc import Sequence
from typing import Any, Final

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.distillate_schemas import ExportOut
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_schemas import (
    DuplicatesOut,
    HandleIn,
    MergeIn,
    PeopleOut,
    PersonIn,
    PersonOut,
)
from chalicelib.api.paging import PAGING, bad_token, next_page, read_id_token, read_token
from chalicelib.api.sessions import message_body, session_body
from chalicelib.errors import InvalidField
from chalicelib.ids import Prefix, is_id
from chalicelib.memory import export
from chalicelib.memory.handles import Handle, InvalidHandle, read_handle

blueprint = Blueprint(__name__)

_PREFIXES: Final[dict[int, Prefix]] = {
    export.FACTS: "mem",
    export.EVENTS: "evt",
    export.SESSIONS: "sess",
    export.EPISODES: "epi",
    export.NARRATIVES: "nar",
    export.CANDIDATES: "cand",
    export.STATES: "sess",
}


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
        **PAGING,
    },
)
async def list_people(request: Request[None]) -> Any:
    """List people, newest first."""
    call = request.call
    before = read_id_token(call.query.get("pageToken"), "per")
    channel, given = call.text_query("channel"), call.text_query("handle")
    if given is not None and channel is None:
        raise InvalidField.of("channel", "must be given with a handle")
    size = call.page_size()
    found = await request.services.people.find(
        request.caller,
        before=before,
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


@blueprint.route("/v1/people/{person_id}", methods=["DELETE"])
@endpoint(scope="memory", answers={204: None})
async def delete_person(request: Request[None]) -> Any:
    """Delete a person with all that is held on them; a call that was cut off can be made again."""
    await request.services.erasure.erase(request.caller, request.call.params["person_id"])
    return None


@blueprint.route("/v1/people/{person_id}/export", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: ExportOut},
    query={
        **PAGING,
        "pageSize": "How many things of all kinds, 50 if absent, at most 200.",
    },
)
async def export_person(request: Request[None]) -> Any:
    """Read all that is held on a person, page by page: what was said, and what is remembered."""
    call = request.call
    page = await request.services.export.page(
        request.caller,
        call.params["person_id"],
        place=_place(call.query.get("pageToken")),
        most=call.page_size(),
        size=export.BYTES_AT_MOST,
    )
    sessions = [
        {**session_body(one), "messages": [message_body(message) for message in messages]}
        for one, messages in page.sessions
    ]
    body = {
        "person": page.person,
        "distillates": page.facts,
        "events": page.events,
        "sessions": sessions,
        "episodes": page.episodes,
        "narratives": page.narratives,
        "candidates": page.candidates,
        "states": page.states,
    }
    return Answer(body=body, headers={} if page.next is None else next_page(list(page.next)))


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


def _place(token: str | None) -> export.Place:
    parts = read_token(token, 4)
    if parts is None:
        return export.Place()
    section, behind, ordinal, seq = parts
    if not (type(section) is type(ordinal) is type(seq) is int and section in _PREFIXES):
        raise bad_token()
    if not (0 <= ordinal < 2**31 and 0 <= seq < 2**63):
        raise bad_token()
    if behind != "" and not is_id(str(behind), _PREFIXES[section]):
        raise bad_token()
    return export.Place(section, behind, ordinal, seq)


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
