"""What the API says of itself in /openapi.json is what it answers, body for body."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from chalicelib.config import Secret
from tests.conftest import open_door
from tests.fakes.machines import Cloud
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.openai_server import Reply as Scripted
from tests.support.answers import new_session
from tests.support.doors import Door
from tests.support.http import Event, Reply
from tests.support.sealing import plant
from tests.support.stack import Stack

UNKNOWN = "sess_00000000000000000000000000"
VAULT_KEY = Secret("a2V5IG9mIDMyIGJ5dGVzLCBmb3IgdGhlIHRlc3RzISE=")
BODIES = {
    ("POST", "/v1/sessions/{session_id}/messages"): {"content": "x"},
    ("POST", "/v1/approvals/{approval_id}"): {"decision": "deny"},
    ("PUT", "/v1/sessions/{session_id}/pins"): {"pins": ["x"]},
    ("POST", "/v1/sessions/{session_id}/context"): {},
    ("PUT", "/v1/agents/{name}"): {},
    ("POST", "/v1/people/{person_id}/handles"): {"channel": "user", "handle": "x"},
}
"""What a call needs to be heard at all."""
AGENT: dict[str, Any] = {
    "name": "guide",
    "description": "Knows the way.",
    "systemPrompt": "You are a guide.",
    "models": {"primary": ["openai:x"], "fast": ["bedrock:y:z"]},
    "tools": [
        {"kind": "builtin", "name": "current_time", "approval": "always", "readOnly": True},
        {
            "kind": "http",
            "name": "lookup",
            "description": "Looks up.",
            "method": "POST",
            "url": "https://tools.example/{what}",
            "headers": {"Authorization": "Bearer {{secret:guide}}"},
            "body": {"a": ["{what}", None, 1.5]},
            "parameters": {
                "type": "object",
                "properties": {"what": {"type": ["string", "null"], "default": None}},
            },
            "timeout": 2.5,
            "idempotent": True,
        },
        {"kind": "mcp", "name": "maps", "url": "https://maps.example", "tools": ["find"]},
        {"kind": "lambda", "name": "run", "function": "pal-tool-run"},
        {"kind": "microvm", "name": "run_code", "approval": "always", "timeout": 60},
    ],
    "isolation": "microvm",
    "context": "compact",
    "memory": {"inject": False, "tokenBudget": 100},
    "maxToolRounds": 2,
    "labels": {"a": "b"},
}
IMAGE = {"type": "image", "mediaType": "image/png", "data": "aGk="}


class Document:
    """The API's description as it is served, and the checks against it."""

    def __init__(self, door: Door) -> None:
        reply = door.call("GET", "/openapi.json", headers={"Authorization": ""})
        assert reply.status == 200
        self.whole: dict[str, Any] = reply.json
        self.routes = {(method.upper(), path) for path, one in self.paths for method in one}
        self.checked: dict[tuple[str, str], set[int]] = {}
        strict = copy.deepcopy(self.whole["components"])
        for schema in strict["schemas"].values():
            # a field that the document does not know of is one that it forgot
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        self._components = strict

    @property
    def paths(self) -> Any:
        return self.whole["paths"].items()

    def matches(self, schema: dict[str, Any], value: Any) -> list[str]:
        """What is wrong with the value; nothing if it is as the schema says."""
        whole = {**schema, "components": self._components}
        check = Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER)
        return [f"{one.json_path}: {one.message}" for one in check.iter_errors(value)]

    def answer(self, method: str, path: str, status: int) -> dict[str, Any]:
        """What the document says of this status of this route."""
        responses = self.whole["paths"][path][method.lower()]["responses"]
        found: dict[str, Any] = responses.get(str(status)) or responses["default"]
        if "$ref" in found:
            found = self.whole["components"]["responses"][found["$ref"].rsplit("/", 1)[1]]
        self.checked.setdefault((method, path), set()).add(status)
        return found

    def check(self, method: str, path: str, reply: Reply) -> None:
        """Check an answer: its type, its headers and its body."""
        told = self.answer(method, path, reply.status)
        known = {name.lower() for name in told["headers"]}
        for header in ("x-request-id", "x-next-page-token", "retry-after"):
            assert header in known or header not in reply.headers, (method, path, header)
        assert reply.headers["x-request-id"]
        if not told.get("content"):
            assert reply.body == b"", (method, path, reply.body)
            assert "content-type" not in reply.headers
            return
        kind = reply.headers["content-type"].partition(";")[0]
        wrong = self.matches(told["content"][kind]["schema"], reply.json)
        assert wrong == [], (method, path, reply.status, reply.body)

    def check_events(self, method: str, path: str, stream: Any, events: list[Event]) -> None:
        """Check a stream's events against what the document says of each."""
        told = self.answer(method, path, stream.status)
        assert stream.headers["content-type"].partition(";")[0] in told["content"]
        kinds = self.whole["components"]["schemas"]["EventStream"]["items"]["oneOf"]
        known = {
            one["properties"]["event"]["const"]: one["properties"]["data"]["contentSchema"]
            for one in kinds
            if "const" in one["properties"]["event"]
        }
        assert set(known) & {event.name for event in events}
        for event in events:
            if event.name in known:
                wrong = self.matches(known[event.name], event.data)
                assert wrong == [], (event, wrong)


@pytest.mark.parametrize("kind", ["http", "chalice", "rest-api"])
def test_every_answer_is_as_the_document_says(
    kind: str, make_stack: Callable[..., Stack], provider: FakeOpenAI, cloud: Cloud
) -> None:
    """Lost if red: clients made from the document, which cannot read what the API sends."""
    stack = make_stack(vault_key=VAULT_KEY, memory_distill=True, isolation="scripted")
    door = open_door(kind, stack, stack.key)
    nobody = open_door(kind, stack, "")
    _, weak_key = stack.make_key("chats")
    weak = open_door(kind, stack, weak_key)
    document = Document(door)

    session = new_session(door)
    ids = {"session_id": session, "name": "guide", "call_id": "x", "approval_id": "x"}

    def ask(
        method: str,
        path: str,
        body: Any = None,
        *,
        by: Door = door,
        query: str = "",
        of: str | None = None,
        episode: str = "x",
        **more: Any,
    ) -> Reply:
        known = {**ids, "session_id": of or ids["session_id"], "episode_id": episode}
        reply = by.call(method, path.format_map(known) + query, body, **more)
        document.check(method, path, reply)
        return reply

    everything = {
        "agentName": "guide",
        "environment": "test",
        "userId": "u",
        "groupId": "g",
        "metadata": {"a": [1, 10**30, None]},
    }
    key = {"Idempotency-Key": "k"}
    assert ask("POST", "/v1/sessions", everything, headers=key).status == 201
    assert ask("POST", "/v1/sessions", everything, headers=key).status == 201
    assert ask("POST", "/v1/sessions", {"agentName": "x"}, headers=key).status == 409
    assert ask("POST", "/v1/sessions", {}).status == 422
    assert ask("POST", "/v1/sessions", raw=b"{").status == 400
    assert ask("POST", "/v1/sessions", raw=b"x", headers={"Content-Type": "x/y"}).status == 415
    assert ask("POST", "/v1/sessions", raw=b" " * (1 << 21)).status == 413
    assert ask("POST", "/v1/sessions", everything, by=weak).status == 403

    one = "/v1/sessions/{session_id}"
    messages = f"{one}/messages"
    events = f"{one}/events"
    content = {"content": "hello", "attachments": [IMAGE], "systemHint": "x", "noTools": True}
    posting = door.stream("POST", messages.format(session_id=session), content)
    document.check_events("POST", messages, posting, posting.rest())
    provider.script(Scripted(status=500))
    failing = door.stream("POST", messages.format(session_id=session), {"content": "x"})
    document.check_events("POST", messages, failing, failing.rest())
    reading = door.stream("GET", events.format(session_id=session) + "?after=0")
    document.check_events("GET", events, reading, reading.read_until("message_error"))
    reading.close()
    assert ask("POST", messages, {"content": "x"}).status == 202
    stack.node.run(stack.node.services.engine.wait_idle())
    assert ask("POST", messages, {"content": ""}).status == 422
    assert ask("GET", one).status == 200
    assert ask("GET", messages).status == 200
    assert ask("POST", f"{one}/cancel").status == 200
    assert ask("POST", "/v1/stream-tokens", {"sessionId": session}).status == 201
    assert ask("POST", "/v1/stream-tokens", {"sessionId": UNKNOWN}).status == 404
    agent = "/v1/agents/{name}"
    taken = document.whole["paths"]["/v1/agents"]["post"]["requestBody"]["content"]
    assert document.matches(taken["application/json"]["schema"], AGENT) == []
    assert ask("POST", "/v1/agents", AGENT, headers=key).status == 201
    assert ask("POST", "/v1/agents", AGENT, headers=key).status == 201
    assert ask("POST", "/v1/agents", {**AGENT, "name": "x"}, headers=key).status == 409
    assert ask("POST", "/v1/agents", AGENT).status == 409
    assert ask("POST", "/v1/agents", {"name": "x", "tools": [{}]}).status == 422
    assert ask("POST", "/v1/agents", {"name": "small"}).status == 201
    assert ask("GET", agent).status == 200
    assert ask("GET", "/v1/agents").status == 200
    assert ask("PUT", agent, {**AGENT, "description": "x"}).status == 200
    assert ask("PUT", agent, {"isolation": "docker"}).status == 422
    keys = {"openai@own": {"apiKey": "a-key-of-its-own", "baseUrl": "https://x.example"}}
    providers, secret = "/v1/admin/providers", "/v1/admin/secrets/{name}"
    assert ask("PUT", providers, {"providers": {**keys, "openai": {"apiKey": "k"}}}).status == 200
    assert ask("PUT", providers, {"providers": {"x": None}}).status == 422
    assert ask("GET", providers).status == 200
    assert ask("PUT", secret, {"value": "hunter2"}).status == 200
    assert ask("PUT", secret, {"value": ""}).status == 422
    assert ask("GET", "/v1/admin/secrets").status == 200

    for _ in range(2):
        provider.script(Scripted(tool_calls=[Call("current_time", {})]))
        gated = new_session(door)
        url = f"/v1/sessions/{gated}/messages"
        told = door.stream("POST", url, {"content": "x"}).rest()
    asked = next(one.data for one in told if one.name == "approval_required")
    ids |= {"session_id": gated, "call_id": asked["callId"], "approval_id": asked["approvalId"]}
    decision = "/v1/approvals/{approval_id}"
    assert ask("GET", "/v1/approvals").status == 200
    assert ask("GET", "/v1/approvals", query="?status=x").status == 422
    assert ask("GET", one + "/tool-calls/{call_id}").status == 200
    assert ask("POST", decision, {"decision": "perhaps"}).status == 422
    assert ask("POST", decision, {"decision": "deny"}).status == 200
    assert ask("POST", decision, {"decision": "deny"}).status == 409
    stack.node.run(stack.node.services.engine.wait_idle())
    assert ask("GET", "/v1/approvals").status == 200
    assert ask("GET", one).status == 200
    assert ask("GET", one + "/tool-calls/{call_id}").status == 200
    ids |= {"session_id": session, "call_id": "x", "approval_id": "x"}

    ask_about_state(ask, stack, door)
    ids["person_id"] = ask_about_people(ask, session)
    assert ask("GET", "/v1/people/{person_id}").status == 200
    more = {"channel": "email", "handle": "Ann@Example.com"}
    assert ask("POST", "/v1/people/{person_id}/handles", more).status == 201
    assert ask("POST", "/v1/people/{person_id}/handles", {**more, "handle": "x"}).status == 422
    ask_about_facts(ask, provider, ids)
    ids |= {"person_id": "x", "distillate_id": "x"}

    assert ask("DELETE", agent).status == 204
    assert ask("DELETE", secret).status == 204
    assert ask("GET", "/healthz").status == 200
    assert ask("GET", "/openapi.json").status == 200
    assert ask("POST", "/v1/agents", {"name": "guard"}).status == 201
    paged = ("/v1/agents", "/v1/approvals", "/v1/people", "/v1/memory/distillates")
    for path in ("/v1/sessions", messages, *paged):
        assert ask("GET", path, query="?pageSize=1").headers["x-next-page-token"]
        assert ask("GET", path, query="?pageSize=0").status == 422
    assert ask("GET", events, query="?after=x").status == 422
    assert ask("POST", f"{one}/stop").status == 200
    assert ask("POST", messages, {"content": "x"}).status == 409
    assert ask("DELETE", one).status == 204
    for method, path in sorted(document.routes):
        # a secret of any name can be set, and what is not there is made
        if "{" in path and (method, path) != ("PUT", secret):
            body = BODIES.get((method, path))
            assert ask(method, path, body).status == 404, path
        if "/v1/" in path:
            assert ask(method, path, by=nobody).status == 401
            assert ask(method, path, by=weak).status == 403
    assert set(document.checked) == document.routes
    for route, statuses in document.checked.items():
        assert {one for one in statuses if one < 300}, route
        assert {one for one in statuses if one >= 400} or "/v1/" not in route[1], route


def ask_about_state(ask: Callable[..., Reply], stack: Stack, door: Door) -> None:
    """Every answer about the state of a session; the session has ended then."""
    session = new_session(door)
    plant(stack, session)

    def of(method: str, path: str, body: Any = None) -> Reply:
        return ask(method, path, body, of=session)

    one = "/v1/sessions/{session_id}"
    assert of("PUT", f"{one}/pins", {"pins": ["x"]}).status == 200
    assert of("PUT", f"{one}/pins", {"pins": [""]}).status == 422
    assert of("GET", f"{one}/pins").json["pins"]
    assert of("GET", f"{one}/tree").json["nodes"]
    assert of("POST", f"{one}/context", {"query": "What was it?"}).json["sections"]
    assert of("POST", f"{one}/context", {"tokenBudget": 10}).status == 413
    assert of("POST", f"{one}/resume").status == 409
    assert of("POST", f"{one}/end").json["promoted"]
    episodes = "/v1/memory/episodes"
    left = ask("GET", episodes).json["episodes"]
    assert ask("GET", episodes, query="?pageSize=1").headers["x-next-page-token"]
    assert ask("GET", episodes, query="?kind=x").status == 422
    made = left[0]["id"]
    assert ask("DELETE", episodes + "/{episode_id}", episode=made).status == 204
    assert of("PUT", f"{one}/pins", {"pins": ["x"]}).status == 409
    # as a second crash in a row leaves it
    stack.database.rows(
        "UPDATE pal.session_heads SET status = 'interrupted' WHERE session_id = %s", session
    )
    assert of("POST", f"{one}/resume").status == 200
    stack.node.run(stack.node.services.engine.wait_idle())


def ask_about_people(ask: Callable[..., Reply], session: str) -> str:
    """Every answer about people and the timeline but those of one person; that person's id."""
    people, events = "/v1/people", "/v1/memory/events"
    ann = {"name": "Ann", "handles": [{"channel": "phone", "handle": "+62 812 3456 7890"}]}
    first = ask("POST", people, {**ann, "metadata": {"a": 10**30}})
    assert first.status == 201
    assert ask("POST", people, ann).status == 409
    assert ask("POST", people, {}).status == 422
    second = ask("POST", people, {"name": "ANN"})
    assert ask("GET", people + "/duplicates").json["duplicates"]
    both = {"from": first.json["id"], "into": second.json["id"]}
    assert ask("POST", people + "/merge", both).status == 200
    assert ask("POST", people + "/merge", {**both, "into": both["from"]}).status == 422
    assert ask("POST", people + "/merge", {**both, "into": "x"}).status == 404
    assert ask("POST", people, {"name": "Ben"}).status == 201
    assert ask("GET", people, query="?q=an&channel=phone").status == 200
    event = {"channel": "sms", "kind": "message", "content": "x", "metadata": {"in": session}}
    event |= {"occurredAt": "2026-01-01T00:00:00+01:00", "direction": "in", "externalId": "1"}
    event |= {"person": {"channel": "phone", "handle": "+6281234567890"}}
    assert ask("POST", events, {"events": [event]}).status == 200
    assert ask("POST", events, {"events": [{**event, "content": ""}]}).status == 422
    # who has a session, too, of which an export tells
    assert ask("POST", "/v1/sessions", {"agentName": "guide", "userId": "ann"}).status == 201
    user = ask("GET", people, query="?channel=user&handle=ann").json["people"][0]["id"]
    assert ask("POST", people + "/merge", {"from": both["from"], "into": user}).status == 200
    return str(both["from"])


def ask_about_facts(ask: Callable[..., Reply], provider: FakeOpenAI, ids: dict[str, str]) -> None:
    """Every answer about what is known of the person whose id is known; they are deleted."""
    facts, remember, search = (f"/v1/memory/{one}" for one in ("distillates", "remember", "search"))
    distill = "/v1/memory/distill"
    once = {"Idempotency-Key": "k"}
    seat = {"content": "Likes the window.", "topic": "seat", "personId": ids["person_id"]}
    assert ask("POST", remember, seat, headers=once).status == 201
    assert ask("POST", remember, {**seat, "topic": "x"}, headers=once).status == 409
    assert ask("POST", remember, {**seat, "content": ""}).status == 422
    assert ask("POST", remember, {**seat, "personId": "x"}).status == 404
    made = ask("POST", remember, {**seat, "content": "Likes the aisle."})
    for content in ("Closed on Fridays.", "Open on Mondays."):
        assert ask("POST", remember, {"content": content, "groupId": "g"}).status == 201
    provider.default(Scripted(status=500))
    assert ask("POST", distill).status == 502
    provider.default(Scripted(pieces=['{"distillates": []}']))
    assert ask("POST", distill).json["more"] is False
    ids["distillate_id"] = made.json["id"]
    one = facts + "/{distillate_id}"
    assert ask("GET", facts).json["distillates"]
    assert ask("GET", facts, query="?limit=0").status == 422
    assert len(ask("GET", f"{one}/history").json["distillates"]) == 2
    found = ask("GET", search, query="?q=likes+the+aisle+x").json["results"]
    assert {hit["tier"] for hit in found} == {"episodic", "semantic"}
    assert ask("GET", search).status == 422
    assert ask("GET", search, query="?q=x&personId=x").status == 404
    assert ask("GET", "/v1/memory/index").status == 200
    assert ask("DELETE", one).status == 204
    ask_about_policy(ask, provider)
    assert ask("POST", remember, seat).status == 201
    person = "/v1/people/{person_id}"
    page = ask("GET", person + "/export", query="?pageSize=1")
    assert page.headers["x-next-page-token"]
    whole = ask("GET", person + "/export").json
    assert whole["distillates"]
    assert whole["person"]["forgotten"]
    assert whole["sessions"]
    assert whole["events"]
    assert ask("GET", person + "/export", query="?pageSize=0").status == 422
    assert ask("DELETE", person).status == 204
    provider.default(None)


def ask_about_policy(ask: Callable[..., Reply], provider: FakeOpenAI) -> None:
    """Every answer about the policy and about what waits for approval, some of which stays."""
    policy, candidates = "/v1/memory/policy", "/v1/memory/candidates"
    assert ask("GET", policy).status == 200
    assert ask("PUT", policy, {"keep_days": {"audit": 0}}).status == 422
    asking = {"form": {"stated": "approve"}, "keep_days": {"audit": 30, "sealed": None}}
    assert ask("PUT", policy, {**asking, "timezone": "asia/jakarta"}).status == 200
    said = [
        {"channel": "sms", "kind": "message", "content": f"I like {one}.", "occurredAt": at}
        for at in ("2026-01-01T00:00:00Z",)
        for one in ("tea", "rye", "figs", "oats")
    ]
    person = {"channel": "phone", "handle": "+6281234567890"}
    events = {"events": [{**one, "person": person} for one in said]}
    assert ask("POST", "/v1/memory/events", events).status == 200
    read = [{"topic": one["content"], "content": one["content"], "confidence": 0.9} for one in said]
    provider.default(Scripted(pieces=[json.dumps({"distillates": read})]))
    assert ask("POST", "/v1/memory/distill").status == 200
    provider.default(Scripted(pieces=['{"distillates": []}']))
    waiting = ask("GET", candidates, query="?status=pending").json["candidates"]
    yes, no, *_ = [one["id"] for one in waiting]
    assert ask("GET", candidates, query="?status=x").status == 422
    assert ask("GET", candidates, query="?pageSize=1").headers["x-next-page-token"]
    assert ask("POST", candidates, {"ids": [], "decision": "deny"}).status == 422
    assert ask("POST", candidates, {"ids": ["x"], "decision": "deny"}).status == 404
    assert ask("POST", candidates, {"ids": [yes], "decision": "approve"}).status == 200
    assert ask("POST", candidates, {"ids": [yes], "decision": "deny"}).status == 409
    assert ask("POST", candidates, {"ids": [no], "decision": "deny"}).status == 200
    told = ask("GET", candidates).json["candidates"]
    assert {one["status"] for one in told} == {"pending", "approved", "denied"}
    assert ask("PUT", policy, {}).status == 200


def test_trouble_is_as_the_document_says(make_stack: Callable[..., Stack]) -> None:
    """Lost if red: clients that can tell an outage from an answer."""
    stack = make_stack(streams_per_key=1, memory_distill=True)
    door = open_door("http", stack, stack.key)
    document = Document(door)
    session = new_session(door)
    path = f"/v1/sessions/{session}/events"
    held = door.stream("GET", path)
    held.read_until("connected")
    reply = door.call("GET", path)
    held.close()
    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (429, True)
    document.check("GET", "/v1/sessions/{session_id}/events", reply)
    reply = door.call("PUT", "/v1/admin/secrets/x", {"value": "x"})
    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (503, True)
    document.check("PUT", "/v1/admin/secrets/{name}", reply)
    stack.database.rows(
        "INSERT INTO pal.memory_passes (tenant_id, lease, lease_until)"
        " VALUES (%s, 'x', now() + interval '1 minute')",
        stack.tenant,
    )
    reply = door.call("POST", "/v1/memory/distill")
    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (409, True)
    document.check("POST", "/v1/memory/distill", reply)
    stack.node.services.engine.draining = True
    reply = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "x"})
    assert (reply.status, int(reply.headers["retry-after"]) > 0) == (503, True)
    document.check("POST", "/v1/sessions/{session_id}/messages", reply)
    stack.database.rows("ALTER TABLE pal.session_heads RENAME TO gone")
    reply = door.call("GET", f"/v1/sessions/{session}")
    assert reply.status == 500
    document.check("GET", "/v1/sessions/{session_id}", reply)


@pytest.mark.parametrize("kind", ["http", "chalice"])
def test_health_without_a_database_is_as_the_document_says(
    kind: str, make_stack: Callable[..., Stack]
) -> None:
    """Lost if red: a load balancer that keeps sending calls to a process that cannot serve them."""
    stack = make_stack()
    door = open_door(kind, stack, "")
    document = Document(door)
    stack.node.run(stack.node.services.db.close())
    reply = door.call("GET", "/healthz")
    assert (reply.status, reply.json["status"]) == (503, "unavailable")
    document.check("GET", "/healthz", reply)
