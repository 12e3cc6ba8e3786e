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
from chalicelib.api.paging import PAGING, next_page, read_id_token
from chalicelib.errors import NotFound
from chalicelib.ids import is_id
from chalicelib.memory.candidates import Status

blueprint = Blueprint(__name__)

_STATUSES: Final[tuple[Status, ...]] = get_args(Status)


@blueprint.route("/v1/memory/policy", methods=["GET"])
@endpoint(scope="admin", answers={200: PolicyOut})
async def get_policy(request: Request[None]) -> Any:
    """Read what becomes memory, what is asked about first, and how long each tier is kept."""
    return await request.services.policies.get(request.caller)


@blueprint.route("/v1/memory/policy", methods=["PUT"])
@endpoint(scope="admin", body=PolicyIn, answers={200: PolicyOut})
async def put_policy(request: Request[PolicyIn]) -> Any:
    """Replace the policy; what is left out is as it is by default."""
    body = request.body
    return await request.services.policies.put(
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
        **PAGING,
    },
)
async def list_candidates(request: Request[None]) -> Any:
    """List what waits for approval, and what has been decided on, newest first."""
    call = request.call
    size = call.page_size()
    found = await request.services.candidates.list(
        request.caller,
        status=call.choice_query("status", _STATUSES),
        person_id=call.text_query("personId"),
        before=read_id_token(call.query.get("pageToken"), "cand"),
        most=size + 1,
    )
    headers = next_page([found[size - 1]["id"]]) if len(found) > size else {}
    return Answer(body={"candidates": found[:size]}, headers=headers)


@blueprint.route("/v1/memory/candidates", methods=["POST"])
@endpoint(scope="memory", body=CandidatesIn, answers={200: DecisionsOut}, idempotent=True)
async def decide_candidates(request: Request[CandidatesIn]) -> Any:
    """Approve or deny candidates, all of those that are named or none."""
    body = request.body
    if not all(is_id(one, "cand") for one in body.ids):
        raise NotFound("There is no such candidate.")
    return await request.services.candidates.decide(
        request.caller, ids=body.ids, decision=body.decision, once=request.once
    )
