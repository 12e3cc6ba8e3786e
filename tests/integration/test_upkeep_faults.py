"""The work behind a reply where something of it fails: nothing is asked twice for it, or left."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.openai_server import Call, FakeOpenAI, Recorded, Reply
from tests.fakes.tool_server import ToolServer
from tests.integration.test_upkeep import Models, settled
from tests.support.agents import make_agent, note_tool, turn
from tests.support.http import HttpClient
from tests.support.stack import Stack
from tests.support.talk import talk


@pytest.fixture
def models(provider: FakeOpenAI) -> Models:
    return Models(provider)


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with ToolServer() as server:
        yield server


@pytest.fixture
def stack(make_stack: Callable[..., Stack], models: Models, tools: ToolServer) -> Stack:
    return make_stack(
        session_tree="model",
        providers_fast=(("openai", "fast"),),
        tool_private_hosts=(tools.host,),
    )


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return stack.http()


def give_history(stack: Stack, session: str, turns: int) -> None:
    """Have the session a past of so many turns, as a `full` one has it."""
    stack.database.rows(
        "UPDATE pal.sessions SET messages = %s::jsonb WHERE id = %s",
        json.dumps(talk(turns)),
        session,
    )


def summaries(models: Models) -> int:
    return sum("operations" not in str(one) for one in models.asked_fast())


def test_a_session_whose_tree_no_model_can_keep_is_compacted_all_the_same(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    """A fast model that refuses schemas would otherwise let the context grow for ever."""
    session = make_agent(http, context="compact")
    give_history(stack, session, 25)
    models.tree = lambda _: Reply(status=400)
    turn(http, session, "and now?")
    settled(stack)
    [(summary,)] = stack.database.rows("SELECT summary FROM pal.sessions WHERE id = %s", session)
    assert summary == "- They plan a trip."
    # and what the tree lacks is read once a model can
    models.tree = lambda _: Reply(pieces=['{"operations": []}'])
    turn(http, session, "go on")
    settled(stack)
    assert "and now?" in str(models.asked_fast()[-1])


def test_a_turn_that_said_nothing_is_no_work_for_ever(
    stack: Stack, http: HttpClient, models: Models, tools: ToolServer, provider: FakeOpenAI
) -> None:
    """A failing summary would be asked, and paid, for five times behind one reply."""
    session = make_agent(
        http, note_tool(tools, "delete_note", approval="always"), context="compact"
    )
    provider.script(Reply(tool_calls=[Call("delete_note", {"id": "7"})]))
    turn(http, session, "delete note 7")
    settled(stack)
    give_history(stack, session, 25)
    models.summary = lambda _: Reply(status=500)
    models.fake.default(_failing(models))
    (approval,) = http.call("GET", "/v1/approvals?status=pending").json["approvals"]
    http.call("POST", f"/v1/approvals/{approval['id']}", {"decision": "deny"})
    settled(stack)
    [(status,)] = stack.database.rows(
        "SELECT status FROM pal.turns WHERE session_id = %s ORDER BY ordinal DESC LIMIT 1", session
    )
    assert status == "failed"
    assert summaries(models) == 1


def _failing(models: Models) -> Callable[[Recorded], Reply]:
    def answer(recorded: Recorded) -> Reply:
        if recorded.body["model"] != "fast":
            return Reply(status=500)
        return models._answer(recorded)

    return answer
