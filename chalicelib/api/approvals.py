"""Approvals of tool calls, and the calls themselves."""

import json
from typing import Any, Final, get_args

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.paging import PAGING, next_page, read_id_token
from chalicelib.api.schemas import (
    ApprovalDecided,
    ApprovalsPage,
    ApprovalStatus,
    DecisionIn,
    ToolCallOut,
)
from chalicelib.errors import NotFound
from chalicelib.ids import is_id
from chalicelib.sessions.approvals import Approval
from chalicelib.sessions.decisions import require_approval_id
from chalicelib.sessions.naming import require_session_id
from chalicelib.texts import rfc3339

blueprint = Blueprint(__name__)

_STATUSES: Final[list[str]] = sorted(get_args(ApprovalStatus))


@blueprint.route("/v1/approvals", methods=["GET"])
@endpoint(
    scope="sessions",
    answers={200: ApprovalsPage},
    query={
        "status": "Only approvals in this state.",
        "sessionId": "Only approvals of this session.",
        **PAGING,
    },
)
async def list_approvals(request: Request[None]) -> Any:
    """List approvals, newest first."""
    call = request.call
    size = call.page_size()
    found = await request.services.approvals.find(
        request.caller,
        before=read_id_token(call.query.get("pageToken"), "apr"),
        status=call.choice_query("status", _STATUSES),
        session_id=call.text_query("sessionId"),
        most=size + 1,
    )
    more = len(found) > size
    return Answer(
        body={"approvals": [_approval_body(one) for one in found[:size]]},
        headers=next_page([found[size - 1].id]) if more else {},
    )


@blueprint.route("/v1/approvals/{approval_id}", methods=["POST"])
@endpoint(scope="sessions", body=DecisionIn, answers={200: ApprovalDecided}, idempotent=True)
async def decide_approval(request: Request[DecisionIn]) -> Any:
    """Approve or deny a tool call; the turn that goes on from there is queued."""
    approval_id = require_approval_id(request.call.params["approval_id"])
    return await request.services.approvals.decide(
        request.caller, approval_id, request.body.decision, once=request.once
    )


@blueprint.route("/v1/sessions/{session_id}/tool-calls/{call_id}", methods=["GET"])
@endpoint(scope="sessions", answers={200: ToolCallOut})
async def get_tool_call(request: Request[None]) -> Any:
    """Read one tool call, with the whole of its output."""
    params = request.call.params
    session_id, call_id = require_session_id(params["session_id"]), params["call_id"]
    found = None
    if is_id(call_id, "call"):
        found = await request.services.sessions.tool_call(request.caller, session_id, call_id)
    if found is None:
        raise NotFound("There is no such tool call.")
    body = {
        "id": found.id,
        "turnId": found.turn_id,
        "round": found.round,
        "name": found.name,
        "arguments": json.loads(found.arguments),
        "status": found.status,
        "result": found.result,
        "output": found.output if found.output is not None else found.result,
        "startedAt": None if found.started_at is None else rfc3339(found.started_at),
        "endedAt": None if found.ended_at is None else rfc3339(found.ended_at),
    }
    return {name: value for name, value in body.items() if value is not None}


def _approval_body(approval: Approval) -> dict[str, Any]:
    body = {
        "id": approval.id,
        "status": approval.status,
        "sessionId": approval.session_id,
        "turnId": approval.turn_id,
        "callId": approval.call_id,
        "name": approval.tool,
        "arguments": json.loads(approval.arguments),
        "createdAt": rfc3339(approval.created_at),
        "expiresAt": rfc3339(approval.expires_at),
    }
    if approval.decided_at is not None:
        body["decidedAt"] = rfc3339(approval.decided_at)
    return body
