"""A session's state: its pins and its execution tree, its end, and going on after a crash."""

from typing import Any

from chalice.app import Blueprint

from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.session_state_schemas import (
    ContextIn,
    ContextOut,
    EndedOut,
    PinsIn,
    PinsOut,
    ResumedOut,
    TreeOut,
)
from chalicelib.sessions.naming import require_session_id
from chalicelib.sessions.standing import read_standing
from chalicelib.texts import rfc3339

blueprint = Blueprint(__name__)


@blueprint.route("/v1/sessions/{session_id}/end", methods=["POST"])
@endpoint(scope="sessions", answers={200: EndedOut}, idempotent=True)
async def end_session(request: Request[None]) -> Any:
    """End a session for good: its state is sealed, and what came of it becomes memory."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.closing.end(request.caller, session_id, once=request.once)


@blueprint.route("/v1/sessions/{session_id}/resume", methods=["POST"])
@endpoint(scope="sessions", answers={200: ResumedOut}, idempotent=True)
async def resume_session(request: Request[None]) -> Any:
    """Take the turn of an interrupted session up again; not to go on with an old conversation."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.closing.resume(request.caller, session_id, once=request.once)


@blueprint.route("/v1/sessions/{session_id}/pins", methods=["GET"])
@endpoint(scope="sessions", answers={200: PinsOut})
async def get_pins(request: Request[None]) -> Any:
    """Read what is pinned in a session."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.pins.read(request.caller, session_id)


@blueprint.route("/v1/sessions/{session_id}/pins", methods=["PUT"])
@endpoint(scope="sessions", body=PinsIn, answers={200: PinsOut})
async def put_pins(request: Request[PinsIn]) -> Any:
    """Pin texts or messages of a session, in place of what was pinned before."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.pins.write(request.caller, session_id, request.body.pins)


@blueprint.route("/v1/sessions/{session_id}/tree", methods=["GET"])
@endpoint(scope="sessions", answers={200: TreeOut})
async def get_tree(request: Request[None]) -> Any:
    """Read a session's execution tree, with the messages that each node came from."""
    session_id = require_session_id(request.call.params["session_id"])
    tree = await read_standing(request.services.db, request.caller, session_id)
    for node in tree["nodes"]:
        node |= {name: rfc3339(node[name]) for name in ("openedAt", "closedAt") if name in node}
    return tree


@blueprint.route("/v1/sessions/{session_id}/context", methods=["POST"])
@endpoint(scope="sessions", body=ContextIn, answers={200: ContextOut})
async def compile_context(request: Request[ContextIn]) -> Any:
    """Compile what a model would be told now, section by section; no model is asked."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.contexts.show(
        request.caller,
        session_id,
        query=request.body.query,
        budget=request.body.token_budget,
    )
