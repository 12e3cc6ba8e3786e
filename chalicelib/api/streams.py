"""The streaming routes as Chalice routes, for the ways in that cannot stream.

On AWS their integration is overridden to go to the streaming function, and the gateway serves them
on its loop. Here, in an API Lambda without that or in Chalice's test client, the stream is
collected: an answer with all its events, once no turn is queued or running.
"""

from contextlib import aclosing
from typing import Any

from chalice.app import Blueprint, Response

from chalicelib import bridge
from chalicelib.api.app import current_call

blueprint = Blueprint(__name__)


@blueprint.route("/v1/sessions/{session_id}/events", methods=["GET"])
def session_events(session_id: str) -> Any:
    """Read a session's events as server-sent events."""
    return _collect({"session_id": session_id})


@blueprint.route("/v1/sessions/{session_id}/messages", methods=["POST"])
def post_message(session_id: str) -> Any:
    """Post a message; 202, or the turn's event stream with Accept: text/event-stream."""
    return _collect({"session_id": session_id})


@blueprint.route("/v1/memory/distill", methods=["POST"])
def distill() -> Any:
    """Run a slice of distillation now."""
    return _collect({})


def _collect(params: dict[str, str]) -> Response:
    return bridge.run(_collected(params))


async def _collected(params: dict[str, str]) -> Response:
    from chalicelib.stream.handler import respond  # on AWS these routes are not this function's

    answer = await respond(current_call(params), collected=True)
    async with aclosing(answer.body) as pieces:  # type: ignore[type-var]
        body = b"".join([piece async for piece in pieces])
    if answer.after is not None:
        await answer.after
    return Response(body=body.decode(), status_code=answer.status, headers=dict(answer.headers))
