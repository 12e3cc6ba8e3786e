"""Agents over HTTP: defined, replaced, listed, deleted; what is wrong is refused and named."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import app as application
from chalicelib.config import Secret
from chalicelib.ids import is_id, new_id
from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI
from tests.support.answers import new_session, refused
from tests.support.doors import Door, proxy_event
from tests.support.postgres import Cluster
from tests.support.stack import Stack

AGENT_ROWS = "SELECT count(*) FROM pal.agents WHERE tenant_id = %s"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F", None]}},
    "required": ["city"],
}
CLOCK = {"kind": "builtin", "name": "current_time"}
WEATHER = {
    "kind": "http",
    "name": "weather",
    "description": "The weather in a city.",
    "method": "GET",
    "url": "https://weather.example/{city}",
    "headers": {"Authorization": "Bearer {{secret:weather}}"},
    "parameters": CITY,
    "timeout": 2.5,
}
SERVER = {"kind": "mcp", "name": "maps", "url": "https://maps.example/mcp", "tools": ["find"]}
WHOLE = {
    "description": "Knows the way.",
    "systemPrompt": "You are a guide.\nBe brief: „ja“ or „nein“.",
    "models": {"primary": ["openai:gpt-5-mini", "bedrock:eu.model:v1:0"], "fast": ["openai:nano"]},
    "tools": [CLOCK, WEATHER, SERVER],
    "isolation": "none",
    "context": "compact",
    "memory": {"inject": False, "tokenBudget": 0},
    "maxToolRounds": 3,
    "labels": {"team": "field", "Straße": ""},
}
ODD_NAMES = [
    pytest.param("two words", id="space"),
    pytest.param(" padded ", id="spaces-around"),
    pytest.param("50%", id="percent"),
    pytest.param("a%2Fb", id="encoded-slash"),
    pytest.param("%25", id="encoded-percent"),
    pytest.param("a+b", id="plus"),
    pytest.param("a?b#c", id="question-and-hash"),
    pytest.param("a;b=c&d,e", id="semicolon"),
    pytest.param("...", id="three-dots"),
    pytest.param("{name}", id="braces"),
    pytest.param('back\\slash "quotes"', id="backslash"),
    pytest.param("Führerin", id="umlaut"),
    pytest.param("案内人", id="han"),
    pytest.param("\U0001f469\u200d\U0001f680", id="joined-emoji"),
    pytest.param("e\u0301", id="combining"),
    pytest.param("\U0001f469" * 200, id="longest"),
]


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeOpenAI]:
    """The provider of the one system."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(scope="module")
def stack(postgres: Cluster, provider: FakeOpenAI) -> Iterator[Stack]:
    """One system for all of these tests: each has a tenant of its own in it."""
    database = postgres.create()
    made = Stack(
        database,
        provider.base_url,
        vault_key=Secret("a2V5IG9mIDMyIGJ5dGVzLCBmb3IgdGhlIHRlc3RzISE="),
    )
    yield made
    made.close()
    postgres.drop(database)


@pytest.fixture
def tenant(stack: Stack) -> tuple[str, str]:
    """A tenant that has nothing yet: (id, key)."""
    return stack.make_tenant(new_id("ten"))


@pytest.fixture(params=["http", "chalice", "rest-api"])
def door(request: pytest.FixtureRequest, stack: Stack, tenant: tuple[str, str]) -> Door:
    """Each way in, in turn, with a new tenant's key."""
    return open_door(request.param, stack, tenant[1])


@pytest.fixture
def http(stack: Stack, tenant: tuple[str, str]) -> Door:
    """The gateway, with a new tenant's key."""
    return open_door("http", stack, tenant[1])


def path_of(name: str) -> str:
    return f"/v1/agents/{quote(name, safe='')}"


def define(door: Door, name: str = "guide", **definition: Any) -> dict[str, Any]:
    """The answer to a definition."""
    reply = door.call("POST", "/v1/agents", {"name": name, **definition})
    assert reply.status == 201, reply.body
    return dict(reply.json)


def definition_in(body: dict[str, Any]) -> dict[str, Any]:
    """What an answer says beside the name, the id and the times."""
    extra = {"id", "name", "createdAt", "updatedAt"}
    assert extra <= set(body)
    return {name: value for name, value in body.items() if name not in extra}


def test_an_agent_lives_from_definition_to_deletion(door: Door) -> None:
    """Lost if red: agents."""
    made = define(door, **WHOLE)
    assert is_id(made["id"], "agt")
    assert made["name"] == "guide"
    assert definition_in(made) == WHOLE
    assert made["createdAt"] == made["updatedAt"]
    assert door.call("GET", "/v1/agents/guide").json == made
    assert door.call("GET", "/v1/agents").json == [made]

    other = {"systemPrompt": "You are a guard."}
    reply = door.call("PUT", "/v1/agents/guide", other)
    assert reply.status == 200
    assert definition_in(reply.json) == other, "what is not said again is gone"
    assert reply.json["id"] == made["id"]
    assert reply.json["createdAt"] == made["createdAt"]
    assert reply.json["updatedAt"] > made["updatedAt"]
    assert door.call("GET", "/v1/agents/guide").json == reply.json

    gone = door.call("DELETE", "/v1/agents/guide")
    assert (gone.status, gone.body) == (204, b"")
    for method, body in (("GET", None), ("PUT", other), ("DELETE", None)):
        refused(door.call(method, "/v1/agents/guide", body), 404, "not_found")
    assert door.call("GET", "/v1/agents").json == []
    assert define(door)["id"] != made["id"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_every_name_is_found_by_its_path(name: str, door: Door) -> None:
    """Lost if red: an agent that is there and cannot be read, changed or deleted."""
    made = define(door, name)
    assert made["name"] == name
    assert door.call("GET", path_of(name)).json == made
    assert door.call("GET", path_of(name) + "/").json == made
    reply = door.call("PUT", path_of(name), {"name": name, "description": "x"})
    assert (reply.status, reply.json["name"]) == (200, name)
    assert [one["name"] for one in door.call("GET", "/v1/agents").json] == [name]
    assert door.call("DELETE", path_of(name)).status == 204
    refused(door.call("GET", path_of(name)), 404, "not_found")


@pytest.mark.parametrize("path", ["/v1/agents/two%20words%25", "/v1/agents/two%20words%25/"])
def test_api_gateways_event_says_which_agent(
    path: str, http: Door, tenant: tuple[str, str]
) -> None:
    """Lost if red: agents on AWS, where the path's parameters come as they were sent."""
    made = define(http, "two words%")
    event = proxy_event("1.0", "GET", path, {"authorization": f"Bearer {tenant[1]}"}, b"")
    event["requestContext"]["resourcePath"] = "/v1/agents/{name}"
    event["pathParameters"] = {"name": "two%20words%25"}
    answer = application.app(event, None)
    assert (answer["statusCode"], json.loads(answer["body"])) == (200, made)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("  ", id="blank"),
        pytest.param("a/b", id="slash"),
        pytest.param(".", id="dot"),
        pytest.param("..", id="dots"),
        pytest.param("a\nb", id="line-feed"),
        pytest.param("a\x00b", id="nul"),
        pytest.param("a\x7f", id="delete"),
        pytest.param("a\x85b", id="c1-control"),
        pytest.param("a\u2028b", id="line-separator"),
        pytest.param("\ud800", id="lone-surrogate"),
        pytest.param("x" * 201, id="too-long"),
        pytest.param(7, id="number"),
        pytest.param(None, id="null"),
    ],
)
def test_a_name_that_no_path_can_hold_is_refused(name: Any, http: Door) -> None:
    """Lost if red: an agent that can be made and never be reached again."""
    refused(http.call("POST", "/v1/agents", {"name": name}), 422, "invalid_field", "name")
    refused(http.call("POST", "/v1/agents", {}), 422, "invalid_field", "name")
    assert http.call("GET", "/v1/agents").json == []


def test_paths_of_names_that_cannot_be_are_404(door: Door) -> None:
    """Lost if red: a 500 for what a scanner sends."""
    define(door)
    for name in ("%00", "%0A", "%2F", "x" * 201, "%ED%A0%80", "%FF", "Guide", "guide%20", "%252F"):
        for method, body in (("GET", None), ("PUT", {}), ("DELETE", None)):
            refused(door.call(method, f"/v1/agents/{name}", body), 404, "not_found")


def test_null_and_left_out_are_alike(http: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: clients that send null for what they do not set."""
    nulls = {**dict.fromkeys(WHOLE), "models": {"primary": ["openai:x"], "fast": None}}
    made = define(http, **{**nulls, "memory": {"inject": True, "tokenBudget": None}})
    told = {"models": {"primary": ["openai:x"]}, "memory": {"inject": True}}
    assert definition_in(made) == told
    # no default is written down: it may be another one tomorrow
    stored = stack.database.one("SELECT definition FROM pal.agents WHERE tenant_id = %s", tenant[0])
    assert stored == told
    assert definition_in(define(http, "empty")) == {}


WRONG = [
    ({"systemPromt": "x"}, "systemPromt"),
    ({"system_prompt": "x"}, "system_prompt"),
    ({"id": "agt_x"}, "id"),
    ({"systemPrompt": 1}, "systemPrompt"),
    ({"systemPrompt": "x" * 100_001}, "systemPrompt"),
    ({"systemPrompt": "\x00"}, "systemPrompt"),
    ({"systemPrompt": "\ud800"}, "systemPrompt"),
    ({"description": "x" * 2_001}, "description"),
    ({"models": []}, "models"),
    ({"models": {"primary": []}}, "models.primary"),
    ({"models": {"fast": []}}, "models.fast"),
    ({"models": {"primary": ["openai:x"] * 9}}, "models.primary"),
    ({"models": {"primary": "openai:x"}}, "models.primary"),
    ({"models": {"primary": ["openai:x", "openai"]}}, "models.primary.1"),
    ({"models": {"primary": ["openai:"]}}, "models.primary.0"),
    ({"models": {"primary": [":x"]}}, "models.primary.0"),
    ({"models": {"primary": ["openai: x"]}}, "models.primary.0"),
    ({"models": {"primary": ["openai:x\n"]}}, "models.primary.0"),
    ({"models": {"primary": ["openai:" + "x" * 500]}}, "models.primary.0"),
    ({"models": {"primary": ["nobody:x"]}}, "models.primary.0"),
    ({"models": {"primary": ["openai:x"], "fast": ["openai:x", "nobody:x"]}}, "models.fast.1"),
    ({"models": {"primary": ["openai@mine:x"]}}, "models.primary.0"),
    ({"models": {"slow": ["openai:x"]}}, "models.slow"),
    ({"tools": {}}, "tools"),
    ({"tools": [CLOCK] * 33}, "tools"),
    ({"tools": [7]}, "tools.0"),
    ({"tools": [CLOCK, {"name": "x"}]}, "tools.1.kind"),
    ({"tools": [CLOCK, {"kind": "carrier-pigeon", "name": "x"}]}, "tools.1.kind"),
    ({"tools": [{**WEATHER, "name": "no spaces"}]}, "tools.0.name"),
    ({"tools": [{**WEATHER, "approval": "sometimes"}]}, "tools.0.approval"),
    ({"tools": [{**WEATHER, "readonly": True}]}, "tools.0.readonly"),
    ({"tools": [WEATHER, CLOCK, {**CLOCK, "approval": "always"}]}, "tools.2.name"),
    ({"tools": [SERVER, {**WEATHER, "name": "maps__find"}]}, "tools.1.name"),
    ({"tools": [SERVER, WEATHER, {**SERVER, "url": "https://other.example"}]}, "tools.2.name"),
    ({"tools": [{**CLOCK, "name": "clock"}]}, "tools.0.name"),
    ({"tools": [{"kind": "microvm", "name": "run_code"}]}, "tools.0.kind"),
    ({"tools": [CLOCK, {"kind": "microvm", "name": "run"}]}, "tools.1.name"),
    ({"tools": [{**WEATHER, "url": "https://weather.example/{town}"}]}, "tools.0.url"),
    ({"tools": [{**WEATHER, "parameters": {"type": "table"}}]}, "tools.0.parameters.type"),
    ({"isolation": "docker"}, "isolation"),
    ({"isolation": "microvm"}, "isolation"),
    ({"context": "some"}, "context"),
    ({"memory": {"inject": "yes"}}, "memory.inject"),
    ({"memory": {"tokenBudget": -1}}, "memory.tokenBudget"),
    ({"memory": {"tokenBudget": 100_001}}, "memory.tokenBudget"),
    ({"memory": {"tokenBudget": 1.5}}, "memory.tokenBudget"),
    ({"memory": {"depth": 1}}, "memory.depth"),
    ({"maxToolRounds": 0}, "maxToolRounds"),
    ({"maxToolRounds": 6}, "maxToolRounds"),
    ({"maxToolRounds": True}, "maxToolRounds"),
    ({"labels": {"a": 1}}, "labels.a"),
    ({"labels": {"a": "x" * 201}}, "labels.a"),
    ({"labels": {"x" * 51: ""}}, "labels." + "x" * 51),
    ({"labels": {"": ""}}, "labels."),
    ({"labels": {"\ud800": ""}}, "labels.\\ud800"),
    ({"labels": {str(n): "" for n in range(51)}}, "labels"),
]


def test_a_wrong_field_is_named(http: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: which of forty lines to mend."""
    made = define(http, **WHOLE)
    for wrong, field in WRONG:
        reply = http.call("POST", "/v1/agents", {"name": "other", **wrong})
        body = refused(reply, 422, "invalid_field", field)
        assert field[:300] in body["error"], wrong
        refused(http.call("PUT", "/v1/agents/guide", wrong), 422, "invalid_field", field)
    assert stack.database.one(AGENT_ROWS, tenant[0]) == 1
    assert http.call("GET", "/v1/agents/guide").json == made


def test_reasons_tell_what_to_do(http: Door) -> None:
    """Lost if red: who is refused is told what else to set, or to whom to turn."""

    def reason(**wrong: Any) -> str:
        body = refused(http.call("POST", "/v1/agents", {"name": "x", **wrong}), 422)
        return str(body["details"][0]["reason"])

    assert "PAL_ISOLATION is off" in reason(isolation="microvm")
    code = {"kind": "microvm", "name": "run_code"}
    assert 'isolation "microvm"' in reason(tools=[CLOCK, code])
    assert "nobody" in reason(models={"primary": ["nobody:x"]})
    assert "another tool" in reason(tools=[CLOCK, CLOCK])


def test_what_is_allowed_at_most_is_allowed(http: Door) -> None:
    """Lost if red: long prompts, in any script, and long lists of tools."""
    most = {
        "systemPrompt": "案" * 100_000,
        "description": "x" * 2_000,
        "models": {"primary": ["openai:x"] * 8, "fast": ["openai:x"] * 8},
        "tools": [{**WEATHER, "name": f"t{n}"} for n in range(32)],
        "memory": {"tokenBudget": 100_000},
        "maxToolRounds": 5,
        "labels": {f"{n:050}": "x" * 200 for n in range(50)},
    }
    made = define(http, **most)
    assert definition_in(made) == most
    assert http.call("GET", "/v1/agents/guide").json == made


def test_a_taken_name_is_a_conflict(http: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: an agent that a second `POST` would silently replace."""
    made = define(http, **WHOLE)
    body = {"name": "guide", "systemPrompt": "mine now"}
    refused(http.call("POST", "/v1/agents", body), 409, "agent_exists")
    once = {"Idempotency-Key": "k"}
    refused(http.call("POST", "/v1/agents", body, headers=once), 409, "agent_exists")
    assert http.call("GET", "/v1/agents/guide").json == made
    # a refusal is not the key's answer: once the name is free, the same call succeeds
    assert http.call("DELETE", "/v1/agents/guide").status == 204
    assert http.call("POST", "/v1/agents", body, headers=once).status == 201

    with ThreadPoolExecutor(8) as pool:
        replies = list(
            pool.map(lambda _: http.call("POST", "/v1/agents", {"name": "race"}), range(8))
        )
    assert sorted(one.status for one in replies) == [201] + [409] * 7
    assert stack.database.one(AGENT_ROWS, tenant[0]) == 2


def test_a_repeated_definition_is_one(door: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: SDK-3; a deployment script whose first answer was lost fails at its retry."""
    once = {"Idempotency-Key": "k"}
    body = {"name": "guide", **WHOLE}
    first = door.call("POST", "/v1/agents", body, headers=once)
    again = door.call("POST", "/v1/agents", body, headers=once)
    assert (first.status, again.status, again.json) == (201, 201, first.json)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    other = {**body, "name": "other"}
    refused(door.call("POST", "/v1/agents", other, headers=once), 409, "idempotency_conflict")
    assert stack.database.one(AGENT_ROWS, tenant[0]) == 1


def test_a_replacement_keeps_to_the_name_of_its_path(http: Door) -> None:
    """Lost if red: a definition that lands on another agent than it says."""
    made = define(http)
    define(http, "guard")
    for name in ("guard", "Guide", "guide "):
        reply = http.call("PUT", "/v1/agents/guide", {"name": name, "description": "x"})
        refused(reply, 422, "invalid_field", "name")
    refused(http.call("PUT", "/v1/agents/nobody", {"name": "guide"}), 422, "invalid_field", "name")
    assert http.call("GET", "/v1/agents/guide").json == made
    assert http.call("PUT", "/v1/agents/guide", {"name": "guide"}).status == 200


def test_lists_are_by_name_and_in_pages(door: Door) -> None:
    """Lost if red: the agents behind the first fifty."""
    names = ["b", "a", "B", "é", "z", "a b", "案", "%", "a-b"]
    for name in names:
        define(door, name)
    in_order = sorted(names)
    whole = door.call("GET", "/v1/agents")
    assert [one["name"] for one in whole.json] == in_order
    assert "x-next-page-token" not in whole.headers
    found: list[str] = []
    token = ""
    for _ in range(5):
        page = door.call("GET", f"/v1/agents?pageSize=2&pageToken={token}")
        found += [one["name"] for one in page.json]
        token = page.headers.get("x-next-page-token", "")
    assert (found, token) == (in_order, "")
    # a page goes on behind its name, also when that agent has been deleted since
    first = door.call("GET", "/v1/agents?pageSize=2")
    door.call("DELETE", path_of(in_order[1]))
    rest = door.call("GET", f"/v1/agents?pageToken={first.headers['x-next-page-token']}")
    assert [one["name"] for one in rest.json] == in_order[2:]
    full = door.call("GET", "/v1/agents?pageSize=8")
    assert len(full.json) == 8
    assert "x-next-page-token" not in full.headers


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("x", id="no-base64"),
        pytest.param("W10", id="empty-list"),
        pytest.param("WzFd", id="a-number"),
        pytest.param("WyJhIiwiYiJd", id="two-parts"),
        pytest.param("WyJcdTAwMDAiXQ", id="a-nul"),
        pytest.param("bnVsbA", id="null"),
    ],
)
def test_tokens_that_no_list_gave_are_refused(token: str, http: Door) -> None:
    """Lost if red: a 500 for a token that was cut short by a mail program."""
    reply = http.call("GET", f"/v1/agents?pageToken={token}")
    refused(reply, 422, "invalid_field", "pageToken")


def test_a_provider_of_the_tenants_own_may_be_named_at_once(http: Door, stack: Stack) -> None:
    """Lost if red: who brings a model vendor of their own, and cannot put it into an agent."""
    chain = {"models": {"primary": ["openai@mine:m"], "fast": ["openai:x", "openai@mine:m"]}}
    body = refused(http.call("POST", "/v1/agents", {"name": "guide", **chain}), 422)
    assert [one["field"] for one in body["details"]] == ["models.primary.0", "models.fast.1"]
    mine = {"openai@mine": {"apiKey": "sk-mine", "baseUrl": "https://models.example/v1"}}
    assert http.call("PUT", "/v1/admin/providers", {"providers": mine}).status == 200
    made = define(http, **chain)
    other = open_door("http", stack, stack.make_tenant(new_id("ten"))[1])
    refused(other.call("POST", "/v1/agents", {"name": "guide", **chain}), 422)
    # the agent stays when its provider goes, and is told of it at its next change
    gone = {"openai@mine": None}
    assert http.call("PUT", "/v1/admin/providers", {"providers": gone}).status == 200
    assert http.call("GET", "/v1/agents/guide").json == made
    refused(http.call("PUT", "/v1/agents/guide", chain), 422, "invalid_field", "models.primary.0")


def test_sessions_have_no_need_of_a_definition(http: Door) -> None:
    """Lost if red: everyone who talks to an agent that they have not defined, or no longer."""
    session = new_session(http)
    refused(http.call("GET", "/v1/agents/guide"), 404, "not_found")
    define(http)
    assert http.call("DELETE", "/v1/agents/guide").status == 204
    assert http.call("GET", f"/v1/sessions/{session}").json["agentName"] == "guide"
    events = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hi"}).rest()
    assert events[-1].data["text"] == "echo: hi"


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())).map(lambda text: text[:30])
    | st.sampled_from(["\ud800", "\x00", "openai:x", "https://x.example/{city}", "{{secret:x}}"])
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def _parts_of(whole: Any) -> st.SearchStrategy[Any]:
    """This value with some of its parts left out or replaced by anything."""
    if isinstance(whole, dict):
        parts = {name: _parts_of(one) for name, one in whole.items()}
        more = st.dictionaries(st.text(max_size=5), _anything, max_size=1)
        made = st.builds(lambda a, b: {**b, **a}, st.fixed_dictionaries({}, optional=parts), more)
        return st.just(whole) | made | _anything
    if isinstance(whole, list):
        return st.just(whole) | st.lists(st.one_of(*map(_parts_of, whole))) | _anything
    return st.just(whole) | _anything


def test_no_definition_breaks_a_route(http: Door) -> None:
    """Lost if red: an outage for the asking, or an agent that was made and cannot be read."""
    define(http)

    @settings(
        max_examples=250,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=_parts_of({**WHOLE, "name": "other"}))
    def fuzz(body: Any) -> None:
        for method, path in (("POST", "/v1/agents"), ("PUT", "/v1/agents/guide")):
            reply = http.call(method, path, raw=json.dumps(body).encode())
            if reply.status >= 400:
                assert (reply.status, reply.json["code"]) == (422, "invalid_field"), reply.body
                continue
            made = reply.json
            assert http.call("GET", path_of(made["name"])).json == made
            sent = {name: one for name, one in body.items() if one is not None}
            assert set(definition_in(made)) == set(sent) - {"name"}
            assert definition_in(made)["tools"] == sent["tools"] if sent.get("tools") else True
            if method == "POST":
                assert http.call("DELETE", path_of(made["name"])).status == 204

    fuzz()
    assert http.call("GET", "/v1/agents").status == 200
