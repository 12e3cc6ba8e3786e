"""Sessions: create, list, read, post, stop, cancel, delete, and tokens for the event stream."""

from typing import Any, Final, get_args

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.paging import PAGING, bad_token, next_page, read_id_token, read_token
from chalicelib.api.schemas import (
    MessageAccepted,
    MessageIn,
    MessagesPage,
    SessionCreated,
    SessionIn,
    SessionListed,
    SessionOut,
    SessionStatus,
    StatusOut,
    StreamTokenIn,
    StreamTokenOut,
)
from chalicelib.auth import issue_stream_token
from chalicelib.sessions.lifecycle import NewMessage
from chalicelib.sessions.naming import require_session_id
from chalicelib.sessions.rows import Message, Session
from chalicelib.texts import rfc3339

blueprint = Blueprint(__name__)

_STATUSES: Final[list[str]] = sorted(get_args(SessionStatus))


@blueprint.route("/v1/sessions", methods=["POST"])
@endpoint(scope="sessions", body=SessionIn, answers={201: SessionCreated}, idempotent=True)
async def create_session(request: Request[SessionIn]) -> Any:
    """Start a session with an agent."""
    body = request.body
    return await request.services.sessions.create(
        request.caller,
        agent_name=body.agent_name,
        environment=body.environment,
        user_id=body.user_id,
        group_id=body.group_id,
        metadata=body.metadata,
        once=request.once,
    )


@blueprint.route("/v1/sessions", methods=["GET"])
@endpoint(
    scope="sessions",
    answers={200: list[SessionListed]},
    query={
        "agent": "Only sessions with this agent.",
        "status": "Only sessions in this state.",
        "groupId": "Only sessions of this group.",
        **PAGING,
    },
)
async def list_sessions(request: Request[None]) -> Any:
    """List sessions, newest first, without their messages."""
    call = request.call
    size = call.page_size()
    found = await request.services.sessions.find(
        request.caller,
        before=read_id_token(call.query.get("pageToken"), "sess"),
        agent=call.text_query("agent"),
        status=call.choice_query("status", _STATUSES),
        group_id=call.text_query("groupId"),
        most=size + 1,
    )
    body = [session_body(one) for one in found[:size]]
    more = len(found) > size
    return Answer(body=body, headers=next_page([found[size - 1].id]) if more else {})


@blueprint.route("/v1/sessions/{session_id}", methods=["GET"])
@endpoint(scope="sessions", answers={200: SessionOut})
async def get_session(request: Request[None]) -> Any:
    """Read a session with its newest messages."""
    session_id = require_session_id(request.call.params["session_id"])
    session, messages, truncated = await request.services.sessions.get(request.caller, session_id)
    body = session_body(session)
    body["messages"] = [message_body(one) for one in messages]
    if truncated:
        body["messagesTruncated"] = True
    return body


@blueprint.route("/v1/sessions/{session_id}", methods=["DELETE"])
@endpoint(scope="sessions", answers={204: None})
async def delete_session(request: Request[None]) -> Any:
    """Delete a session with its messages and events."""
    session_id = require_session_id(request.call.params["session_id"])
    await request.services.sessions.delete(request.caller, session_id)
    return None


@blueprint.route("/v1/sessions/{session_id}/messages", methods=["GET"])
@endpoint(scope="sessions", answers={200: MessagesPage}, query=PAGING)
async def list_messages(request: Request[None]) -> Any:
    """Page through all of a session's messages, oldest first."""
    call = request.call
    session_id = require_session_id(call.params["session_id"])
    token = read_token(call.query.get("pageToken"), 2)
    after = (0, 0)
    if token is not None:
        whole = all(type(part) is int for part in token)
        if not (whole and 0 <= token[0] < 2**31 and 0 <= token[1] < 2**63):
            raise bad_token()
        after = (token[0], token[1])
    found, more = await request.services.sessions.page(
        request.caller, session_id, after=after, most=call.page_size()
    )
    headers = next_page([found[-1].turn_ordinal, found[-1].seq]) if more else {}
    return Answer(body={"messages": [message_body(one) for one in found]}, headers=headers)


@blueprint.route("/v1/sessions/{session_id}/stop", methods=["POST"])
@endpoint(scope="sessions", answers={200: StatusOut}, idempotent=True)
async def stop_session(request: Request[None]) -> Any:
    """Stop a session: what was accepted is still answered, later messages are refused."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.sessions.stop(request.caller, session_id, once=request.once)


@blueprint.route("/v1/sessions/{session_id}/cancel", methods=["POST"])
@endpoint(scope="sessions", answers={200: StatusOut}, idempotent=True)
async def cancel_turn(request: Request[None]) -> Any:
    """Cancel the running turn; the session goes on."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.sessions.cancel(request.caller, session_id, once=request.once)


@blueprint.route("/v1/stream-tokens", methods=["POST"])
@endpoint(scope="sessions", body=StreamTokenIn, answers={201: StreamTokenOut})
async def create_stream_token(request: Request[StreamTokenIn]) -> Any:
    """Make a short-lived token with which a browser's EventSource reads one session."""
    session_id = require_session_id(request.body.session_id)
    token, expires_at = await issue_stream_token(
        request.services.db, request.caller, session_id=session_id
    )
    return {"token": token, "expiresAt": rfc3339(expires_at)}


@endpoint(scope="sessions", body=MessageIn, answers={202: MessageAccepted}, idempotent=True)
async def post_message(request: Request[MessageIn]) -> Any:
    """Post a message; the reply comes on the event stream, or here as one if accepted."""
    session_id = require_session_id(request.call.params["session_id"])
    return await request.services.sessions.post(
        request.caller, session_id, new_message(request.body), once=request.once
    )


def new_message(body: MessageIn) -> NewMessage:
    """The domain's message of a request body."""
    hints = body.model_dump(
        by_alias=True,
        exclude_none=True,
        include={"system_hint", "turn_hint", "no_tools", "read_only_tools"},
    )
    attachments = None
    if body.attachments:
        attachments = [one.model_dump(by_alias=True, exclude_none=True) for one in body.attachments]
    return NewMessage(content=body.content, attachments=attachments, hints=hints or None)


def session_body(session: Session) -> dict[str, Any]:
    """A session as answers show it, without its messages."""
    body = {
        "id": session.id,
        "tenantId": session.tenant_id,
        "agentName": session.agent_name,
        "status": session.status,
        "createdAt": rfc3339(session.created_at),
        "updatedAt": rfc3339(session.updated_at),
        "summary": session.summary,
        "userId": session.user_id,
        "groupId": session.group_id,
        "metadata": session.metadata,
    }
    return {name: value for name, value in body.items() if value is not None}


def message_body(message: Message) -> dict[str, Any]:
    """A message as answers show it."""
    body: dict[str, Any] = {
        "id": message.id,
        "role": message.role,
        "content": message.content,
        "timestamp": rfc3339(message.created_at),
        "turnId": message.turn_id,
    }
    if message.attachments:
        body["attachments"] = message.attachments
    if message.tool_calls:
        body["toolCalls"] = message.tool_calls
    return body
