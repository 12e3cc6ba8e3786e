"""What a tenant decides on its memory: its policy, and what waits for a person's word."""

from typing import Any, Final, get_args

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_policy_schemas import (
    CandidatesIn,
    CandidatesOut,
    DecisionsOut,
    PolicyIn,
    PolicyOut,
)
from chalicelib.api.paging import bad_token, next_page, read_token
from chalicelib.errors import InvalidField, NotFound
from chalicelib.ids import is_id
from chalicelib.memory.approval import Candidates
from chalicelib.memory.candidates import Status
from chalicelib.memory.policy import Policies

blueprint = Blueprint(__name__)

_STATUSES: Final[tuple[Status, ...]] = get_args(Status)


@blueprint.route("/v1/memory/policy", methods=["GET"])
@endpoint(scope="admin", answers={200: PolicyOut})
async def get_policy(request: Request[None]) -> Any:
    """Read what becomes memory, what is asked about first, and how long each tier is kept."""
    return await Policies(request.services.db).get(request.caller)


@blueprint.route("/v1/memory/policy", methods=["PUT"])
@endpoint(scope="admin", body=PolicyIn, answers={200: PolicyOut})
async def put_policy(request: Request[PolicyIn]) -> Any:
    """Replace the policy; what is left out is as it is by default."""
    body = request.body
    return await Policies(request.services.db).put(
        request.caller,
        timezone=body.timezone,
        promote=body.promote.model_dump(),
        form=body.form.model_dump(),
        keep_days=body.keep_days.model_dump(exclude_none=True),
    )


@blueprint.route("/v1/memory/candidates", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: CandidatesOut},
    query={
        "status": "Only candidates in this state.",
        "personId": "Only what would be this person's.",
        "pageSize": "How many, 50 if absent, at most 200.",
        "pageToken": "Where to go on: `X-Next-Page-Token` of the page before.",
    },
)
async def list_candidates(request: Request[None]) -> Any:
    """List what waits for approval, and what has been decided on, newest first."""
    call = request.call
    size = call.page_size()
    found = await Candidates(request.services.db).list(
        request.caller,
        status=_status(call.text_query("status")),
        person_id=call.text_query("personId"),
        before=_before(call.query.get("pageToken")),
        most=size + 1,
    )
    return Answer(
        body={"candidates": found[:size]},
        headers=next_page([found[size - 1]["id"]]) if len(found) > size else {},
    )


@blueprint.route("/v1/memory/candidates", methods=["POST"])
@endpoint(scope="memory", body=CandidatesIn, answers={200: DecisionsOut}, idempotent=True)
async def decide_candidates(request: Request[CandidatesIn]) -> Any:
    """Approve or deny candidates, all of those that are named or none."""
    body = request.body
    if not all(is_id(one, "cand") for one in body.ids):
        raise NotFound("There is no such candidate.")
    return await Candidates(request.services.db).decide(
        request.caller, ids=body.ids, decision=body.decision, once=request.once
    )


def _status(text: str | None) -> Status | None:
    if text is None:
        return None
    for one in _STATUSES:
        if text == one:
            return one
    raise InvalidField.of("status", f"must be one of {', '.join(_STATUSES)}")


def _before(token: str | None) -> str | None:
    place = read_token(token, 1)
    if place is None:
        return None
    if not is_id(str(place[0]), "cand"):
        raise bad_token()
    return str(place[0])
