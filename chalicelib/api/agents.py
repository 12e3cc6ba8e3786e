"""Agents: define, replace, read, list, delete."""

from typing import Any
from urllib.parse import unquote

from chalice.app import Blueprint

from chalicelib.api.agent_schemas import AgentIn, AgentOut, AgentReplacementIn
from chalicelib.api.call import Answer, Call
from chalicelib.api.endpoint import Request, endpoint
from chalicelib.api.paging import PAGING, bad_token, next_page, read_token
from chalicelib.errors import InvalidField
from chalicelib.texts import is_storable

blueprint = Blueprint(__name__)


@blueprint.route("/v1/agents", methods=["POST"])
@endpoint(scope="admin", body=AgentIn, answers={201: AgentOut}, idempotent=True)
async def create_agent(request: Request[AgentIn]) -> Any:
    """Define an agent."""
    body = request.body
    return await request.services.agents.create(
        request.caller, name=body.name, definition=body, once=request.once
    )


@blueprint.route("/v1/agents", methods=["GET"])
@endpoint(
    scope="admin",
    answers={200: list[AgentOut]},
    query=PAGING,
)
async def list_agents(request: Request[None]) -> Any:
    """List the agents that are defined, by name."""
    call = request.call
    place = read_token(call.query.get("pageToken"), 1)
    after = None if place is None else place[0]
    if after is not None and not (isinstance(after, str) and is_storable(after)):
        raise bad_token()
    size = call.page_size()
    found = await request.services.agents.find(request.caller, after=after, most=size + 1)
    headers = next_page([found[size - 1]["name"]]) if len(found) > size else {}
    return Answer(body=found[:size], headers=headers)


@blueprint.route("/v1/agents/{name}", methods=["GET"])
@endpoint(scope="admin", answers={200: AgentOut})
async def get_agent(request: Request[None]) -> Any:
    """Read an agent as it was defined."""
    return await request.services.agents.get(request.caller, name_in_path(request.call))


@blueprint.route("/v1/agents/{name}", methods=["PUT"])
@endpoint(scope="admin", body=AgentReplacementIn, answers={200: AgentOut})
async def replace_agent(request: Request[AgentReplacementIn]) -> Any:
    """Replace an agent's whole definition, from each session's next turn on."""
    body, name = request.body, name_in_path(request.call)
    if body.name not in (None, name):
        raise InvalidField.of("name", "must be the one in the path")
    return await request.services.agents.replace(request.caller, name=name, definition=body)


@blueprint.route("/v1/agents/{name}", methods=["DELETE"])
@endpoint(scope="admin", answers={204: None})
async def delete_agent(request: Request[None]) -> Any:
    """Delete an agent; its sessions go on with a plain assistant of that name."""
    await request.services.agents.delete(request.caller, name_in_path(request.call))
    return None


def name_in_path(call: Call) -> str:
    """The name that a path ends with.

    Not the route's parameter: that comes decoded from the gateway and encoded from API Gateway,
    while the path is encoded whichever way it came.
    """
    return unquote(call.path.removesuffix("/").rpartition("/")[2])
