"""Episodes: what came of sessions and was promoted into the memory, and forgetting it."""

from datetime import datetime
from typing import Any, Final, get_args

from chalice.app import Blueprint

from chalicelib.api.call import Answer
from chalicelib.api.distillate_schemas import EpisodesOut
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.memory_schemas import read_moment
from chalicelib.api.paging import PAGING, bad_token, next_page, read_token
from chalicelib.ids import is_id
from chalicelib.memory.episodes import EpisodeKind

blueprint = Blueprint(__name__)

_KINDS: Final[tuple[EpisodeKind, ...]] = get_args(EpisodeKind)


@blueprint.route("/v1/memory/episodes", methods=["GET"])
@endpoint(
    scope="memory",
    answers={200: EpisodesOut},
    query={
        "personId": "Only what came of this person's sessions, also of those in groups.",
        "groupId": "Only what came of this group's sessions.",
        "kind": "Only episodes of this kind.",
        **PAGING,
    },
)
async def list_episodes(request: Request[None]) -> Any:
    """List what came of sessions that have ended, the newest first."""
    call = request.call
    size = call.page_size()
    found = await request.services.episodes.list(
        request.caller,
        person_id=call.text_query("personId"),
        group_id=call.text_query("groupId"),
        kind=call.choice_query("kind", _KINDS),
        before=_before(call.query.get("pageToken")),
        most=size + 1,
    )
    headers = {}
    if len(found) > size:
        last = found[size - 1]
        headers = next_page([last["occurred_at"], last["id"]])
    return Answer(body={"episodes": found[:size]}, headers=headers)


@blueprint.route("/v1/memory/episodes/{episode_id}", methods=["DELETE"])
@endpoint(scope="memory", answers={204: None})
async def forget_episode(request: Request[None]) -> Any:
    """Forget what came of a session; the session itself stays."""
    await request.services.episodes.forget(request.caller, request.call.params["episode_id"])
    return None


def _before(token: str | None) -> tuple[datetime, str] | None:
    place = read_token(token, 2)
    if place is None:
        return None
    if not is_id(str(place[1]), "epi"):
        raise bad_token()
    try:
        return read_moment(place[0]), str(place[1])
    except ValueError as exc:
        raise bad_token() from exc
