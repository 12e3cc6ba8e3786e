"""Another tenant's things are not there, on any route; and no key does what its scopes leave out.

The routes are the router's own, so one that is added fails here until it has a case.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg import sql

import app as application
from chalicelib.config import Secret
from chalicelib.stream.lambda_entry import handler
from chalicelib.stream.response import LambdaContext
from tests.conftest import open_door
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import new_session, refused
from tests.support.doors import Door, proxy_event
from tests.support.http import Reply as Answered
from tests.support.sealing import DECIDED, ended, plant
from tests.support.stack import Stack
from tests.support.waiting import until

UNKNOWN = "sess_00000000000000000000000000"
NOWHERE = {
    "session": UNKNOWN,
    "call": UNKNOWN.replace("sess", "call"),
    "approval": UNKNOWN.replace("sess", "apr"),
    "name": "nobody",
    "person": UNKNOWN.replace("sess", "per"),
    "distillate": UNKNOWN.replace("sess", "mem"),
    "candidate": UNKNOWN.replace("sess", "cand"),
    "episode": UNKNOWN.replace("sess", "epi"),
}
VAULT_KEY = Secret("a2V5IG9mIDMyIGJ5dGVzLCBmb3IgdGhlIHRlc3RzISE=")
SSE = {"Accept": "text/event-stream"}


@dataclass(frozen=True, kw_only=True)
class Try:
    """A call with somebody else's ids. `{session}` stands for the session's id, wherever it is."""

    path: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    listing: bool = False
    """Whether it is right for it to be answered with 200 and nothing of the other tenant's."""


CASES: dict[tuple[str, str], list[Try]] = {
    ("GET", "/v1/sessions"): [
        Try(listing=True),
        Try(path="/v1/sessions?agent=guide&groupId=family&pageToken={token}", listing=True),
    ],
    # it names no session; what it makes is the caller's own
    ("POST", "/v1/sessions"): [],
    ("GET", "/v1/sessions/{session_id}"): [Try()],
    ("DELETE", "/v1/sessions/{session_id}"): [Try()],
    ("GET", "/v1/sessions/{session_id}/messages"): [
        Try(),
        Try(path="/v1/sessions/{session}/messages?pageToken={token}"),
    ],
    ("POST", "/v1/sessions/{session_id}/messages"): [
        Try(body={"content": "steal"}),
        Try(body={"content": "steal"}, headers=SSE),
        Try(body={"content": "secret"}, headers={"Idempotency-Key": "known"}),
        Try(body={"content": "secret"}, headers={"Idempotency-Key": "known", **SSE}),
    ],
    ("GET", "/v1/sessions/{session_id}/events"): [
        Try(),
        Try(headers={"Last-Event-ID": "{event}"}),
        Try(path="/v1/sessions/{session}/events?after={event}"),
        Try(path="/v1/sessions/{session}/events?after=0"),
        Try(path="/v1/sessions/{session}/events?token={stream_token}"),
    ],
    ("POST", "/v1/sessions/{session_id}/stop"): [
        Try(),
        Try(headers={"Idempotency-Key": "known"}),
    ],
    ("POST", "/v1/sessions/{session_id}/cancel"): [
        Try(),
        Try(headers={"Idempotency-Key": "known"}),
    ],
    ("POST", "/v1/sessions/{session_id}/end"): [
        Try(),
        Try(headers={"Idempotency-Key": "known"}),
    ],
    ("POST", "/v1/sessions/{session_id}/resume"): [
        Try(),
        Try(headers={"Idempotency-Key": "known"}),
    ],
    ("GET", "/v1/sessions/{session_id}/pins"): [Try()],
    ("PUT", "/v1/sessions/{session_id}/pins"): [Try(body={"pins": ["steal"]})],
    ("GET", "/v1/sessions/{session_id}/tree"): [Try()],
    ("POST", "/v1/sessions/{session_id}/context"): [Try(body={"query": "steal"})],
    ("POST", "/v1/stream-tokens"): [Try(body={"sessionId": "{session}"})],
    ("GET", "/v1/sessions/{session_id}/tool-calls/{call_id}"): [
        Try(),
        Try(path="/v1/sessions/{own}/tool-calls/{call}"),
    ],
    ("GET", "/v1/approvals"): [
        Try(listing=True),
        Try(path="/v1/approvals?status=pending&sessionId={session}", listing=True),
        Try(path="/v1/approvals?pageToken={approvals_token}", listing=True),
    ],
    ("POST", "/v1/approvals/{approval_id}"): [
        Try(body={"decision": "approve"}),
        Try(body={"decision": "deny"}, headers={"Idempotency-Key": "known"}),
    ],
    ("GET", "/v1/agents"): [
        Try(listing=True),
        Try(path="/v1/agents?pageToken={agents_token}", listing=True),
    ],
    # a name is each tenant's own: see the test of two agents of one name
    ("POST", "/v1/agents"): [],
    ("GET", "/v1/agents/{name}"): [Try()],
    ("PUT", "/v1/agents/{name}"): [Try(body={"systemPrompt": "steal"})],
    ("DELETE", "/v1/agents/{name}"): [Try()],
    ("GET", "/v1/admin/providers"): [Try(listing=True)],
    ("PUT", "/v1/admin/providers"): [
        Try(body={"providers": {}}, listing=True),
        Try(body={"providers": {"openai": None}}, listing=True),
        Try(body={"providers": {"openai": {"apiKey": "sk-steal"}}}, listing=True),
        Try(body={"providers": {"openai": None}}, listing=True),
    ],
    ("GET", "/v1/admin/secrets"): [Try(listing=True)],
    # what it sets is the caller's own, whatever its name
    ("PUT", "/v1/admin/secrets/{name}"): [
        Try(path="/v1/admin/secrets/mine", body={"value": "steal"}, listing=True),
    ],
    ("DELETE", "/v1/admin/secrets/{name}"): [Try()],
    ("GET", "/v1/memory/distillates"): [
        Try(listing=True),
        Try(path="/v1/memory/distillates?personId={person}&topic=seat", listing=True),
        Try(path="/v1/memory/distillates?q=window&pageToken={distillates_token}", listing=True),
    ],
    ("GET", "/v1/memory/distillates/{distillate_id}/history"): [Try()],
    ("DELETE", "/v1/memory/distillates/{distillate_id}"): [Try()],
    ("POST", "/v1/memory/remember"): [
        Try(body={"content": "steal", "personId": "{person}"}),
        Try(
            body={"content": "Likes the window.", "topic": "seat", "personId": "{person}"},
            headers={"Idempotency-Key": "known"},
        ),
    ],
    ("GET", "/v1/memory/episodes"): [
        Try(listing=True),
        Try(path="/v1/memory/episodes?personId={person}&groupId=family", listing=True),
        Try(path="/v1/memory/episodes?kind=decision&pageToken={episodes_token}", listing=True),
    ],
    ("DELETE", "/v1/memory/episodes/{episode_id}"): [Try()],
    ("GET", "/v1/memory/search"): [
        Try(path="/v1/memory/search?q=window+secret+keeper", listing=True),
        Try(path="/v1/memory/search?q=window&groupId=family", listing=True),
        Try(path="/v1/memory/search?q=window&personId={person}"),
    ],
    ("GET", "/v1/memory/index"): [Try(listing=True)],
    ("GET", "/v1/memory/policy"): [Try(listing=True)],
    # what it sets is the caller's own
    ("PUT", "/v1/memory/policy"): [
        Try(body={"form": {"stated": "never"}, "keep_days": {"semantic": 1}}, listing=True),
    ],
    ("GET", "/v1/memory/candidates"): [
        Try(listing=True),
        Try(path="/v1/memory/candidates?personId={person}&status=pending", listing=True),
        Try(path="/v1/memory/candidates?pageToken={candidates_token}", listing=True),
    ],
    ("POST", "/v1/memory/candidates"): [
        Try(body={"ids": ["{candidate}"], "decision": "approve"}),
        Try(
            body={"ids": ["{candidate}"], "decision": "deny"},
            headers={"Idempotency-Key": "known"},
        ),
    ],
    # a handle is each tenant's own: see the test of two people of one number
    ("POST", "/v1/memory/events"): [],
    ("POST", "/v1/people"): [],
    ("GET", "/v1/people"): [
        Try(listing=True),
        Try(path="/v1/people?q=keeper&pageToken={people_token}", listing=True),
        Try(path="/v1/people?channel=phone&handle=%2B6281234567890", listing=True),
    ],
    ("GET", "/v1/people/duplicates"): [Try(listing=True)],
    ("GET", "/v1/people/{person_id}"): [Try()],
    ("DELETE", "/v1/people/{person_id}"): [Try()],
    ("GET", "/v1/people/{person_id}/export"): [
        Try(),
        Try(path="/v1/people/{person}/export?pageSize=1&pageToken={export_token}"),
        Try(
            path="/v1/people/{own_person}/export?pageSize=200&pageToken={export_token}",
            listing=True,
        ),
    ],
    ("POST", "/v1/people/{person_id}/handles"): [
        Try(body={"channel": "user", "handle": "steal"}),
        Try(body={"channel": "user", "handle": "steal"}, headers={"Idempotency-Key": "known"}),
    ],
    ("POST", "/v1/people/merge"): [
        Try(body={"from": "{person}", "into": "{own_person}"}),
        Try(body={"from": "{own_person}", "into": "{person}"}),
    ],
    # it names nothing; what it distils is the caller's own
    ("POST", "/v1/memory/distill"): [],
    ("GET", "/healthz"): [],
    ("GET", "/openapi.json"): [],
}

OPEN = {("GET", "/healthz"), ("GET", "/openapi.json")}
"""Routes that need no key."""

SCOPES = {
    "/v1/sessions": "sessions",
    "/v1/stream-tokens": "sessions",
    "/v1/approvals": "sessions",
    "/v1/agents": "admin",
    "/v1/admin": "admin",
    "/v1/memory/policy": "admin",
    "/v1/memory": "memory",
    "/v1/people": "memory",
}

PLACES = {
    "session_id": "session",
    "call_id": "call",
    "approval_id": "approval",
    "person_id": "person",
    "distillate_id": "distillate",
    "episode_id": "episode",
    "name": "name",
}
"""Which of the known ids stands for a parameter of a path."""

SHOWN = (
    "/v1/agents",
    "/v1/approvals",
    "/v1/admin/providers",
    "/v1/admin/secrets",
    "/v1/people",
    "/v1/people/duplicates",
    "/v1/memory/distillates",
    "/v1/memory/episodes",
    "/v1/memory/policy",
    "/v1/memory/candidates",
)
"""What a tenant has of its own beside sessions."""

GATED = {"kind": "builtin", "name": "current_time", "approval": "always"}


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system with a key to keep secrets with, and with memory."""
    return make_stack(vault_key=VAULT_KEY, memory_distill=True, embeddings="off")


def routes() -> Iterator[tuple[str, str]]:
    """(method, pattern) of every route there is."""
    for pattern, methods in application.app.routes.items():
        for method in methods:
            yield method, pattern


def test_every_route_has_a_case() -> None:
    """Lost if red: the tests below, for the route that was added."""
    assert set(routes()) == set(CASES)
    with_ids = {route for route in CASES if "{" in route[1]}
    assert all(CASES[route] for route in with_ids)


def filled(value: Any, known: dict[str, str]) -> Any:
    """The case's value with these ids in the places that it leaves open."""
    if isinstance(value, str):
        for name, one in known.items():
            value = value.replace("{" + name + "}", one)
        return value
    if isinstance(value, dict):
        return {name: filled(one, known) for name, one in value.items()}
    return value


def attempt(door: Door, route: tuple[str, str], case: Try, known: dict[str, str]) -> Answered:
    """The answer to a case with these ids."""
    method, pattern = route
    path = case.path
    if not path:
        path = filled(pattern, {name: "{" + place + "}" for name, place in PLACES.items()})
    body, headers = filled(case.body, known), filled(case.headers, known)
    return door.call(method, filled(path, known), body, headers=headers)


def rows_of(stack: Stack, tenant: str) -> dict[str, list[str]]:
    """Everything the database holds of a tenant, table by table."""
    tables = stack.database.rows(
        "SELECT c.table_name FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE c.table_schema = 'pal' AND c.column_name = 'tenant_id'"
        " AND t.table_type = 'BASE TABLE' ORDER BY 1"
    )
    assert len(tables) >= 8
    dump = {}
    for (table,) in tables:
        query = sql.SQL(
            "SELECT (to_jsonb(t) - 'last_used_at')::text FROM pal.{} t WHERE tenant_id = %s"
            " ORDER BY 1"
        ).format(sql.Identifier(table))
        dump[table] = [row[0] for row in stack.database.rows(query, tenant)]
    return dump


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_what_is_anothers_is_not_there(kind: str, stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the wall between two customers (SEC-3)."""
    owner = open_door("http", stack, stack.key)
    session = new_session(owner, groupId="family", metadata={"secret": "hunter2"})
    path = f"/v1/sessions/{session}"
    known = {"Idempotency-Key": "known"}
    said = owner.stream("POST", f"{path}/messages", {"content": "secret"}, headers=known).rest()
    new_session(owner)
    theirs = {
        **define_and_ask(owner, provider),
        **leave_episodes(owner, stack),
        "session": session,
        "event": next(one.id for one in said if one.name == "message_delta"),
        "token": owner.call("GET", "/v1/sessions?pageSize=1").headers["x-next-page-token"],
        # another tenant's token opens no session but its own
        "stream_token": owner.call("POST", "/v1/stream-tokens", {"sessionId": session}).json[
            "token"
        ],
    }
    page = owner.call("GET", f"{path}/messages?pageSize=1").headers["x-next-page-token"]
    intruder = open_door(kind, stack, stack.other_key)
    own = new_session(intruder, agentName="guide", groupId="family")
    own_person = intruder.call("POST", "/v1/people", {"name": "Intruder"}).json["id"]
    before, asked = rows_of(stack, stack.tenant), len(provider.requests)
    has = {url: owner.call("GET", url).json for url in SHOWN}
    assert all(has.values())
    assert before["messages"]
    for route, cases in CASES.items():
        for case in cases:
            token = page if "messages" in case.path else theirs["token"]
            given = {**theirs, "token": token, "own": own, "own_person": own_person}
            if "{stream_token}" in case.path:
                # the token is good, so it is tried on a session that it was not made for
                reply = attempt(intruder, route, case, {**given, "session": own})
                refused(reply, 404, "not_found")
                continue
            reply = attempt(intruder, route, case, given)
            if case.listing:
                assert reply.status == 200, (route, reply.body)
                told = reply.body.decode()
                secrets = (
                    session,
                    *(theirs[one] for one in ("call", "approval", "person", "distillate", "name")),
                    *(theirs[one] for one in ("candidate", "episode", "ended")),
                )
                secrets += ("ter2", "+62", "window", DECIDED)
                assert [one for one in secrets if one in told] == [], route
                continue
            body = refused(reply, 404, "not_found")
            unknown = attempt(intruder, route, case, {**given, **NOWHERE})
            assert {**body, "requestId": ""} == {
                **refused(unknown, 404, "not_found"),
                "requestId": "",
            }, route
            assert set(reply.headers) == set(unknown.headers)
    stack.node.run(stack.node.services.engine.wait_idle())
    assert rows_of(stack, stack.tenant) == before
    assert len(provider.requests) == asked
    assert stack.database.one("SELECT count(*) FROM pal.messages WHERE content = 'steal'") == 0
    # and the owner has it all still
    assert {url: owner.call("GET", url).json for url in SHOWN} == has
    assert [one["content"] for one in owner.call("GET", path).json["messages"]] == [
        "secret",
        "echo: secret",
    ]


def define_and_ask(owner: Door, provider: FakeOpenAI) -> dict[str, str]:
    """Two agents, keys, and a turn that waits for an approval: their names and ids."""
    for name in ("keeper", "keeper's keeper"):
        made = owner.call("POST", "/v1/agents", {"name": name, "tools": [GATED]})
        assert made.status == 201
    provider.script(Reply(tool_calls=[Call("current_time", {})]))
    session = new_session(owner, agentName="keeper")
    url = f"/v1/sessions/{session}/messages"
    events = owner.stream("POST", url, {"content": "what time is it"}).rest()
    asked = next(one.data for one in events if one.name == "approval_required")
    provider.script(Reply(tool_calls=[Call("current_time", {})]))
    session = new_session(owner, agentName="keeper")
    owner.stream("POST", f"/v1/sessions/{session}/messages", {"content": "and now"}).rest()
    keys = {"providers": {"openai": {"apiKey": "a-key-that-ends-in-hunter2"}}}
    assert owner.call("PUT", "/v1/admin/providers", keys).status == 200
    value = {"value": "a-value-that-ends-in-hunter2"}
    assert owner.call("PUT", "/v1/admin/secrets/keeper", value).status == 200
    header = "x-next-page-token"
    for channel in ("phone", "sms"):
        handle = {"channel": channel, "handle": "+6281234567890"}
        person = owner.call("POST", "/v1/people", {"name": "Keeper", "handles": [handle]})
        assert person.status == 201
    about = {"personId": person.json["id"]}
    fact = {"content": "Likes the window.", "topic": "seat", **about}
    once = {"Idempotency-Key": "known"}
    remembered = owner.call("POST", "/v1/memory/remember", fact, headers=once)
    assert remembered.status == 201
    said = {"channel": "sms", "kind": "message", "content": "a window", "groupId": "family"}
    said |= {"occurredAt": "2026-01-01T00:00:00Z", "person": handle}
    assert owner.call("POST", "/v1/memory/events", {"events": [said]}).status == 200
    gone = {**fact, "topic": "more"}
    assert owner.call("POST", "/v1/memory/remember", gone).status == 201
    export = f"/v1/people/{person.json['id']}/export?pageSize=1"
    asking = {"form": {"stated": "approve"}, "timezone": "Asia/Jakarta"}
    assert owner.call("PUT", "/v1/memory/policy", asking).status == 200
    read = [{"topic": one, "content": "A window.", "confidence": 1} for one in ("seat", "view")]
    read[1]["content"] = "Two windows."
    provider.script(Reply(pieces=[json.dumps({"distillates": read})]))
    assert owner.call("POST", "/v1/memory/distill").status == 200
    candidates = owner.call("GET", "/v1/memory/candidates?pageSize=1")
    return {
        "candidate": candidates.json["candidates"][0]["id"],
        "candidates_token": candidates.headers[header],
        "distillate": remembered.json["id"],
        "distillates_token": owner.call("GET", "/v1/memory/distillates?pageSize=1").headers[header],
        "export_token": owner.call("GET", export).headers[header],
        "person": person.json["id"],
        "people_token": owner.call("GET", "/v1/people?pageSize=1").headers[header],
        "call": asked["callId"],
        "approval": asked["approvalId"],
        "name": "keeper",
        "agents_token": owner.call("GET", "/v1/agents?pageSize=1").headers[header],
        "approvals_token": owner.call("GET", "/v1/approvals?pageSize=1").headers[header],
    }


def leave_episodes(owner: Door, stack: Stack) -> dict[str, str]:
    """A session that has ended, and what came of it: their ids."""
    session = new_session(owner, userId="keeper", groupId="family")
    plant(stack, session)
    assert ended(owner, session)
    page = owner.call("GET", "/v1/memory/episodes?pageSize=1")
    return {
        "ended": session,
        "episode": page.json["episodes"][0]["id"],
        "episodes_token": page.headers["x-next-page-token"],
    }


def test_two_tenants_may_give_an_agent_one_name(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a name that is taken by a customer whom one has never heard of."""
    doors = [open_door("http", stack, key) for key in (stack.key, stack.other_key)]
    made = [
        door.call("POST", "/v1/agents", {"name": "guide", "systemPrompt": f"Prompt {n}."})
        for n, door in enumerate(doors)
    ]
    assert [one.status for one in made] == [201, 201]
    assert made[0].json["id"] != made[1].json["id"]
    assert doors[1].call("PUT", "/v1/agents/guide", {"systemPrompt": "Prompt 2."}).status == 200
    for door, prompt in zip(doors, ("Prompt 0.", "Prompt 2."), strict=True):
        assert [one["systemPrompt"] for one in door.call("GET", "/v1/agents").json] == [prompt]
        session = new_session(door)
        door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hi"}).rest()
        assert provider.requests[-1].body["messages"][0]["content"] == prompt
    assert doors[1].call("DELETE", "/v1/agents/guide").status == 204
    assert doors[0].call("GET", "/v1/agents/guide").json == made[0].json


def test_two_tenants_may_know_one_number(stack: Stack) -> None:
    """Lost if red: two customers' knowledge of a person, in one place."""
    doors = [open_door("http", stack, key) for key in (stack.key, stack.other_key)]
    handle = {"channel": "phone", "handle": "+6281234567890"}
    made = [
        door.call("POST", "/v1/people", {"name": f"Ann {n}", "handles": [handle]})
        for n, door in enumerate(doors)
    ]
    assert [one.status for one in made] == [201, 201]
    at = "2026-01-01T00:00:00Z"
    event = {"channel": "sms", "kind": "message", "content": "x", "externalId": "1"}
    batch = {"events": [{**event, "occurredAt": at, "person": handle}]}
    for door, one in zip(doors, made, strict=True):
        assert door.call("POST", "/v1/memory/events", batch).json["inserted"] == 1
        found = door.call("GET", "/v1/people?channel=phone&handle=%2B6281234567890")
        assert found.json["people"] == [one.json]
        assert door.call("GET", "/v1/people/duplicates").json == {"duplicates": []}
    owners = "SELECT tenant_id, person_id FROM pal.memory_events ORDER BY 1"
    expected = zip(
        (stack.tenant, stack.other_tenant), (one.json["id"] for one in made), strict=True
    )
    assert stack.database.rows(owners) == sorted(expected)


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_a_key_without_the_scope_is_refused(kind: str, stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the harm that a leaked key can do, bounded by what it was made for."""
    session = new_session(open_door("http", stack, stack.key))
    before = rows_of(stack, stack.tenant)
    ids = {**NOWHERE, "session": session, "own": session, "event": "1", "stream_token": "x"}
    ids |= {"token": "", "agents_token": "", "approvals_token": "", "people_token": ""}
    ids |= {"distillates_token": "", "candidates_token": "", "export_token": ""}
    ids |= {"own_person": NOWHERE["person"], "episodes_token": ""}
    for method, pattern in routes():
        if (method, pattern) in OPEN:
            assert open_door(kind, stack, "").call(method, pattern).status == 200
            continue
        needed = next(scope for start, scope in SCOPES.items() if pattern.startswith(start))
        others = sorted({"sessions", "memory", "chats"} - {needed})
        _, key = stack.make_key(*others)
        door = open_door(kind, stack, key)
        tries = [one for one in CASES[method, pattern] if "{stream_token}" not in one.path]
        for case in tries or [Try(body={"agentName": "guide"})]:
            reply = attempt(door, (method, pattern), case, ids)
            body = refused(reply, 403, "forbidden")
            assert needed in body["error"], (method, pattern)
        for key_scopes in ((needed,), ("admin",)):
            _, key = stack.make_key(*key_scopes)
            if (method, pattern) in {
                ("GET", "/v1/sessions"),
                ("POST", "/v1/memory/distill"),
                ("GET", "/v1/memory/index"),
                ("GET", "/v1/sessions/{session_id}"),
                *(("GET", url) for url in SHOWN),
            }:
                reply = attempt(open_door(kind, stack, key), (method, pattern), Try(), ids)
                assert reply.status == 200, (method, pattern, reply.body)
    after = rows_of(stack, stack.tenant)
    # a pass that was allowed has left its own row
    apart: dict[str, list[str]] = {"api_keys": [], "memory_passes": []}
    assert {**after, **apart} == {**before, **apart}
    assert provider.requests == []


def test_a_stream_token_reads_one_session_and_nothing_else(stack: Stack) -> None:
    """Lost if red: the reason why a token may stand in a URL."""
    door = open_door("http", stack, stack.key)
    session, second = new_session(door), new_session(door)
    token = door.call("POST", "/v1/stream-tokens", {"sessionId": session}).json["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    for method, pattern in set(routes()) - OPEN:
        path = filled(pattern, {**dict.fromkeys(PLACES, "x"), "session_id": session})
        refused(door.call(method, path, {"content": "x"}, headers=bearer), 401, "unauthorized")
        if pattern.endswith("/events"):
            continue
        asked = door.call(
            method, f"{path}?token={token}", {"content": "x"}, headers={"Authorization": ""}
        )
        refused(asked, 401, "unauthorized")
    nobody = {"Authorization": ""}
    refused(door.call("GET", f"/v1/sessions/{second}/events?token={token}", headers=nobody), 404)
    for wrong in ("", "x", token[:-1], stack.key, token + "%00"):
        url = f"/v1/sessions/{session}/events?token={wrong}"
        refused(door.call("GET", url, headers=nobody), 401, "unauthorized")
    stream = door.stream("GET", f"/v1/sessions/{session}/events?token={token}", headers=nobody)
    assert stream.read_until("connected")[0].data["sessionId"] == session
    stream.close()
    stack.database.rows("UPDATE pal.stream_tokens SET expires_at = now()")
    url = f"/v1/sessions/{session}/events?token={token}"
    refused(door.call("GET", url, headers=nobody), 401, "unauthorized")


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_a_stream_that_is_over_leaves_room_for_the_next(
    kind: str, make_stack: Callable[..., Stack]
) -> None:
    """Lost if red: a key that has used its streams up without having one open."""
    stack = make_stack(streams_per_key=1)
    door = open_door(kind, stack, stack.key)
    session = new_session(door)
    counted = "SELECT count(*) FROM pal.open_streams"
    for _ in range(3):
        stream = door.stream("GET", f"/v1/sessions/{session}/events")
        assert stream.status == 200
        stream.read_until("connected")
        if door.live:
            refused(door.call("GET", f"/v1/sessions/{session}/events"), 429, "too_many_requests")
        stream.close()
        until(lambda: stack.database.one(counted) == 0)
        refused(door.call("GET", f"/v1/sessions/{UNKNOWN}/events"), 404)
        assert stack.database.one(counted) == 0
    until(lambda: not stack.node.services.hub.feeds)


@pytest.mark.parametrize("version", ["2.0", "1.0"])
def test_a_stream_that_no_one_began_to_read_is_let_go(
    version: str, make_stack: Callable[..., Stack]
) -> None:
    """Lost if red: memory and database work, for every caller who left at the wrong moment."""
    stack = make_stack(streams_per_key=1)
    session = new_session(open_door("chalice", stack, stack.key))
    headers = {"authorization": f"Bearer {stack.key}"}
    event = proxy_event(version, "GET", f"/v1/sessions/{session}/events", headers, None)
    context = LambdaContext(aws_request_id="r", deadline_ms=0)
    for _ in range(2):
        answer = stack.node.run(handler(event, context))
        assert answer.status == 200
        stack.node.run(answer.body.aclose())
        until(lambda: not stack.node.services.hub.feeds)
        assert stack.database.one("SELECT count(*) FROM pal.open_streams") == 0
