"""Distillates: what has been distilled, how it came to be, forgetting it, and a pass on demand.

Distillation is off unless `PAL_MEMORY_DISTILL` says otherwise; then lists are empty and no pass
runs. What is known can be looked into and forgotten in any case.
"""

from datetime import datetime
from typing import Any, Final

from chalice.app import Blueprint

from chalicelib.api.call import PAGE_SIZE_AT_MOST, Answer
from chalicelib.api.distillate_schemas import DistillatesOut, DistillOut, HistoryOut
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory import limit_of
from chalicelib.api.memory_schemas import read_moment
from chalicelib.api.paging import PAGING, bad_token, next_page, read_token
from chalicelib.ids import is_id

blueprint = Blueprint(__name__)

_OFF: Final[dict[str, Any]] = {"enabled": False}


@blueprint.route("/v1/memory/distillates", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: DistillatesOut},
    query={
        "personId": "Only what is known of this person.",
        "topic": "Only what is known under this topic, whatever its case; `_` is a space.",
        "q": "Only what has this in its topic or content.",
        "limit": f"The same as pageSize, from 1 to {PAGE_SIZE_AT_MOST}.",
        **PAGING,
    },
)
async def list_distillates(request: Request[None]) -> Any:
    """List the facts that hold, the latest first; none while distillation is off."""
    call, ready = request.call, request.services
    if not ready.settings.memory_distill:
        return {**_OFF, "distillates": []}
    size = limit_of(call, most=PAGE_SIZE_AT_MOST) or call.page_size()
    before = _before(call.query.get("pageToken"))
    found = await ready.distillates.list(
        request.caller,
        person_id=call.text_query("personId"),
        topic=call.text_query("topic"),
        text=call.text_query("q"),
        before=before,
        most=size + 1,
    )
    headers = {}
    if len(found) > size:
        last = found[size - 1]
        headers = next_page([last["updated_at"], last["id"]])
    return Answer(body={"enabled": True, "distillates": found[:size]}, headers=headers)


@blueprint.route("/v1/memory/distillates/{distillate_id}/history", methods=["GET"])
@endpoint(scope="memory", answers={200: HistoryOut})
async def get_history(request: Request[None]) -> Any:
    """Read how a fact came to be what it is: the chain of those that superseded one another."""
    chain = await request.services.distillates.history(
        request.caller, request.call.params["distillate_id"]
    )
    return {"distillates": chain}


@blueprint.route("/v1/memory/distillates/{distillate_id}", methods=["DELETE"])
@endpoint(scope="memory", answers={204: None})
async def forget_distillate(request: Request[None]) -> Any:
    """Forget a fact with its whole chain; what was said before now does not bring it back."""
    await request.services.distillates.forget(request.caller, request.call.params["distillate_id"])
    return None


@endpoint(scope="memory", answers={200: DistillOut})
async def distill(request: Request[None]) -> Any:
    """Run a slice of distillation now; finds nothing while distillation is off."""
    ready = request.services
    if not ready.settings.memory_distill:
        return {**_OFF, "found": 0}
    done = await ready.distill(request.caller.tenant_id)
    return {"enabled": True, "found": done.found, "more": done.more}


def _before(token: str | None) -> tuple[datetime, str] | None:
    place = read_token(token, 2)
    if place is None:
        return None
    if not is_id(str(place[1]), "mem"):
        raise bad_token()
    try:
        return read_moment(place[0]), place[1]
    except ValueError as exc:
        raise bad_token() from exc
