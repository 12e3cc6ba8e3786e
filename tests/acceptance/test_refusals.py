"""What is wrong is refused, with a reason; what is right survives to the byte. Every way in."""

import base64
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from chalicelib.api.schemas import Attachment, MessageIn, SessionIn
from chalicelib.ids import new_id
from tests.conftest import open_door
from tests.fakes.notes import said
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import new_session, refused
from tests.support.doors import Door, HttpDoor, StreamDoor
from tests.support.http import PATIENCE, text_of
from tests.support.http import Reply as Answered
from tests.support.postgres import Cluster
from tests.support.stack import Stack

MB = 1 << 20
LONE = "\ud800"
NUL = "\x00"
UNKNOWN = "sess_00000000000000000000000000"


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeOpenAI]:
    """The provider of the one system."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(scope="module")
def stack(postgres: Cluster, provider: FakeOpenAI) -> Iterator[Stack]:
    """One system for all of these tests: each has a tenant of its own in it."""
    database = postgres.create()
    made = Stack(database, provider.base_url)
    yield made
    made.close()
    postgres.drop(database)


@pytest.fixture
def tenant(stack: Stack) -> str:
    """The key of a tenant that has nothing yet."""
    return stack.make_tenant(new_id("ten"))[1]


@pytest.fixture(params=["http", "chalice", "function-url", "rest-api"])
def door(request: pytest.FixtureRequest, stack: Stack, tenant: str) -> Door:
    """Each way in, in turn, with a new tenant's key."""
    return open_door(request.param, stack, tenant)


# ── paths, methods, media types, keys ────────────────────────────────────────────────────────
def test_unknown_paths_are_404(door: Door) -> None:
    """Lost if red: a typo in a URL is told as one, and not as an outage."""
    session = new_session(door)
    for path in (
        "/",
        "/v1",
        "/v1/nothing",
        f"/v1/sessions/{session}/nothing",
        f"/v1/sessions/{session}/messages/x",
        "/v1//sessions",
        "/v1/memory/distill/x",
        "/v2/sessions",
    ):
        for method in ("GET", "POST"):
            refused(door.call(method, path), 404, "not_found")


def test_wrong_methods_are_405_and_say_what_is_allowed(door: Door) -> None:
    """Lost if red: a client that used the wrong verb learns the right one."""
    session = new_session(door)
    cases = [
        ("PUT", f"/v1/sessions/{session}/events", {"GET"}),
        ("POST", f"/v1/sessions/{session}/events", {"GET"}),
        ("GET", "/v1/memory/distill", {"POST"}),
        ("DELETE", f"/v1/sessions/{session}/messages", {"GET", "POST"}),
    ]
    if not isinstance(door, StreamDoor):
        cases += [("PATCH", "/v1/sessions", {"GET", "POST"}), ("POST", "/healthz", {"GET"})]
    for method, path, allowed in cases:
        reply = door.call(method, path)
        refused(reply, 405, "method_not_allowed")
        told = {word.strip() for word in reply.headers["allow"].split(",")}
        # the streaming function serves of a path what it streams, and speaks for that
        assert told == allowed or (isinstance(door, StreamDoor) and told == {"POST"}), (path, told)


def test_a_trailing_slash_is_the_same_path(stack: Stack) -> None:
    """Lost if red: the gateway's threads, which a stream taken for no stream would hold."""
    door = HttpDoor(stack, stack.key)
    session = new_session(door)
    stream = door.stream("GET", f"/v1/sessions/{session}/events/")
    assert stream.read_until("connected")
    stream.close()
    assert door.call("GET", f"/v1/sessions/{session}/").json["id"] == session


def test_bodies_of_another_media_type_are_415(door: Door, stack: Stack) -> None:
    """Lost if red: a form's or an XML client's mistake, told as what it is."""
    session = new_session(door)
    body = b'{"content": "hello"}'
    for kind in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "json", ";"):
        for path in ("/v1/sessions", f"/v1/sessions/{session}/messages", "/v1/stream-tokens"):
            reply = door.call("POST", path, raw=body, headers={"Content-Type": kind})
            refused(reply, 415, "unsupported_media_type")
    for kind in (
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json ;x=y",
        "",
    ):
        made = door.call(
            "POST", "/v1/sessions", raw=b'{"agentName":"guide"}', headers={"Content-Type": kind}
        )
        assert made.status == 201, (kind, made.body)
    assert stored(door, stack, session) == []


def test_requests_without_a_good_key_are_401(door: Door, stack: Stack) -> None:
    """Lost if red: the lock on the door, and that one sees it is the key that is wrong."""
    session = new_session(door)
    for value in ("", "Bearer pal_wrong", "Bearer", "Basic dXNlcjpwYXNz", "Bearer \xe9\xff"):
        for method, path in (
            ("GET", "/v1/sessions"),
            ("GET", f"/v1/sessions/{session}/events"),
            ("POST", f"/v1/sessions/{session}/messages"),
            ("POST", "/v1/memory/distill"),
        ):
            reply = door.call(method, path, headers={"Authorization": value})
            refused(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
    for path in ("/v1/sessions", f"/v1/sessions/{session}/events"):
        reply = door.call("GET", f"{path}?token={stack.key}", headers={"Authorization": ""})
        refused(reply, 401, "unauthorized")


# ── bodies ───────────────────────────────────────────────────────────────────────────────────
MALFORMED = {
    "empty": b"",
    "open": b"{",
    "truncated": b'{"agentName":"gui',
    "NaN": b'{"agentName": NaN, "content": NaN, "sessionId": NaN}',
    "Infinity": b'{"agentName": "x", "metadata": {"a": -Infinity}}',
    "two values": b'{"agentName": "x"}{}',
    "single quotes": b"{'agentName': 'x', 'content': 'x'}",
    "invalid UTF-8": b'{"agentName": "\xc3\x28", "content": "\xc3\x28"}',
    "a surrogate in UTF-8": b'{"agentName": "\xed\xa0\x80", "content": "\xed\xa0\x80"}',
    "no text": b"\xff\xfe\xfd",
    "UTF-16": '{"agentName": "x"}'.encode("utf-16"),
    "UTF-32": '{"content": "x"}'.encode("utf-32"),
    "a raw newline in a string": b'{"agentName": "a\nb", "content": "a\nb"}',
    "a number of 10,000 digits": b"1" * 10_000,
    "deep arrays": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"metadata":' * 50_000 + b"1" + b"}" * 50_000,
}
NO_OBJECT = {
    "array": b"[]",
    "array of text": b'["content"]',
    "text": b'"content"',
    "null": b"null",
    "number": b"17",
    "too large a number": b'{"agentName": "x", "metadata": {"a": 1e999}}',
}


def test_bodies_that_are_no_json_object_are_refused(door: Door, stack: Stack) -> None:
    """Lost if red: a broken client gets a reason in place of an outage, and writes nothing."""
    session = new_session(door)
    for path in ("/v1/sessions", f"/v1/sessions/{session}/messages", "/v1/stream-tokens"):
        for bodies, status, code in (
            (MALFORMED, 400, "invalid_request"),
            (NO_OBJECT, 422, "invalid_field"),
        ):
            for name, body in bodies.items():
                reply = door.call("POST", path, raw=body)
                assert reply.status == status, (name, path, reply.status, reply.body[:300])
                refused(reply, status, code)
    assert stored(door, stack, session) == []
    assert len(door.call("GET", "/v1/sessions").json) == 1


def test_a_byte_order_mark_is_no_mistake(door: Door) -> None:
    """Lost if red: clients on Windows that put one before their JSON."""
    made = door.call("POST", "/v1/sessions", raw=b'\xef\xbb\xbf{"agentName": "guide"}')
    assert made.status == 201, made.body


def test_bodies_over_a_megabyte_are_413(door: Door) -> None:
    """Lost if red: the process's memory, to whoever sends the most."""
    session = new_session(door)
    filler = b" " * MB
    for method, path in (
        ("POST", "/v1/sessions"),
        ("POST", f"/v1/sessions/{session}/messages"),
        ("POST", f"/v1/sessions/{session}/stop"),
        ("POST", "/v1/stream-tokens"),
        ("POST", "/v1/memory/distill"),
        ("DELETE", f"/v1/sessions/{session}"),
    ):
        reply = door.call(method, path, raw=b'{"agentName":"guide","content":"x"}' + filler)
        refused(reply, 413, "too_large")
    body = b'{"agentName": "guide"}'
    made = door.call("POST", "/v1/sessions", raw=body + b" " * (MB - len(body)))
    assert made.status == 201, made.body[:300]
    assert door.call("GET", f"/v1/sessions/{session}").json["status"] == "active"


def test_content_may_have_200_000_characters_and_no_more(door: Door, stack: Stack) -> None:
    """Lost if red: long documents, in whatever script, or the bound on them."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    for letter in ("a", "é", "漢", "😀"):
        raw = json.dumps({"content": letter * 200_000}, ensure_ascii=False).encode()
        assert door.call("POST", path, raw=raw).status == 202
        raw = json.dumps({"content": letter * 200_001}, ensure_ascii=False).encode()
        refused(door.call("POST", path, raw=raw), 422, "invalid_field", "content")
    users = [one["content"] for one in stored(door, stack, session) if one["role"] == "user"]
    assert users == [letter * 200_000 for letter in ("a", "é", "漢", "😀")]


class Wire:
    """A bare socket to the gateway, for what an HTTP client would not send."""

    def __init__(self, stack: Stack) -> None:
        base = urlsplit(stack.http().base)
        self.sock = socket.create_connection((base.hostname or "", base.port or 0), PATIENCE)
        self.key = stack.key

    def head(self, method: str, path: str, *lines: str) -> None:
        told = ["Host: x", f"Authorization: Bearer {self.key}", "Content-Type: application/json"]
        self.sock.sendall(
            "\r\n".join([f"{method} {path} HTTP/1.1", *told, *lines, "", ""]).encode()
        )

    def reply(self) -> Answered:
        response = http.client.HTTPResponse(self.sock)
        response.begin()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answered(status=response.status, headers=found, body=response.read())


def test_a_length_over_the_limit_is_refused_before_the_body_is_sent(stack: Stack) -> None:
    """Lost if red: minutes of upload, only to hear that it was too much."""
    for path in ("/v1/sessions", f"/v1/sessions/{UNKNOWN}/messages"):
        wire = Wire(stack)
        with wire.sock:
            wire.head("POST", path, f"Content-Length: {MB + 1}")
            refused(wire.reply(), 413, "too_large")


def test_a_chunked_body_is_counted_as_it_comes(stack: Stack) -> None:
    """Lost if red: the limit, for anyone who leaves out Content-Length."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for path in ("/v1/sessions", f"/v1/sessions/{UNKNOWN}/messages"):
        wire = Wire(stack)
        with wire.sock:
            wire.head("POST", path, "Transfer-Encoding: chunked")
            for _ in range(17):
                wire.sock.sendall(chunk)
            # the body has not ended, and the answer is there
            refused(wire.reply(), 413, "too_large")
    wire = Wire(stack)
    with wire.sock:
        wire.head("POST", "/v1/sessions", "Transfer-Encoding: chunked")
        wire.sock.sendall(chunk * 15 + b'15\r\n{"agentName":"guide"}\r\n0\r\n\r\n')
        assert wire.reply().status == 201


# ── fields ───────────────────────────────────────────────────────────────────────────────────
def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


SESSION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "agentName"),
    ({"agent_name": "guide"}, "agent_name"),
    ({"agentName": ""}, "agentName"),
    ({"agentName": None}, "agentName"),
    ({"agentName": 5}, "agentName"),
    ({"agentName": ["guide"]}, "agentName"),
    ({"agentName": "a" * 201}, "agentName"),
    ({"agentName": "gu" + NUL}, "agentName"),
    ({"agentName": LONE}, "agentName"),
    ({"agentName": "guide", "nope": 1}, "nope"),
    ({"agentName": "guide", "id": UNKNOWN}, "id"),
    ({"agentName": "guide", "tenantId": "ten_x"}, "tenantId"),
    ({"agentName": "guide", NUL: 1}, NUL),
    ({"agentName": "guide", "a" + LONE: 1}, "a\\ud800"),
    ({"agentName": "guide", "environment": NUL}, "environment"),
    ({"agentName": "guide", "userId": "u" + LONE}, "userId"),
    ({"agentName": "guide", "groupId": True}, "groupId"),
    ({"agentName": "guide", "metadata": []}, "metadata"),
    ({"agentName": "guide", "metadata": "{}"}, "metadata"),
    ({"agentName": "guide", "metadata": {"a" + NUL: 1}}, "metadata.a" + NUL),
    ({"agentName": "guide", "metadata": {"a": {LONE: 1}}}, "metadata.a.\\ud800"),
    ({"agentName": "guide", "metadata": {"a": [1, {"b": "x" + LONE}]}}, "metadata.a.1.b"),
    ({"agentName": "guide", "metadata": {"a": [[NUL]]}}, "metadata.a.0.0"),
    ({"agentName": "guide", "metadata": nested(100)}, "metadata"),
]

MESSAGE_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "content"),
    ({"content": ""}, "content"),
    ({"content": None}, "content"),
    ({"content": 5}, "content"),
    ({"content": ["hello"]}, "content"),
    ({"content": "a" + NUL + "b"}, "content"),
    ({"content": LONE}, "content"),
    ({"content": "\udc00\ud800"}, "content"),
    ({"content": "x", "role": "system"}, "role"),
    ({"content": "x", "systemHint": NUL}, "systemHint"),
    ({"content": "x", "systemHint": LONE}, "systemHint"),
    ({"content": "x", "systemHint": "a" * 20_001}, "systemHint"),
    ({"content": "x", "turnHint": "a" + NUL}, "turnHint"),
    ({"content": "x", "turnHint": 5}, "turnHint"),
    ({"content": "x", "noTools": "yes"}, "noTools"),
    ({"content": "x", "readOnlyTools": 1}, "readOnlyTools"),
    ({"content": "x", "attachments": {}}, "attachments"),
    ({"content": "x", "attachments": [{"type": "video", "data": "aa"}]}, "attachments.0.type"),
    ({"content": "x", "attachments": [{"type": "image"}]}, "attachments.0"),
    (
        {"content": "x", "attachments": [{"type": "image", "data": "aa", "url": "https://x"}]},
        "attachments.0",
    ),
    ({"content": "x", "attachments": [{"type": "image", "data": "a\n"}]}, "attachments.0.data"),
    ({"content": "x", "attachments": [{"type": "image", "url": "ftp://x"}]}, "attachments.0.url"),
    (
        {"content": "x", "attachments": [{"type": "image", "url": "https://x" + NUL}]},
        "attachments.0.url",
    ),
    ({"content": "x", "attachments": [{"type": "image", "data": "aa"}] * 11}, "attachments"),
]

TOKEN_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "sessionId"),
    ({"sessionId": 5}, "sessionId"),
    ({"sessionId": UNKNOWN, "scope": "write"}, "scope"),
]


def test_a_wrong_field_is_named(door: Door, stack: Stack) -> None:
    """Lost if red: which of twenty fields it was, and that none of it was stored."""
    session = new_session(door)
    for path, cases in (
        ("/v1/sessions", SESSION_FIELDS),
        (f"/v1/sessions/{session}/messages", MESSAGE_FIELDS),
        ("/v1/stream-tokens", TOKEN_FIELDS),
    ):
        for body, field in cases:
            refused(door.call("POST", path, body), 422, "invalid_field", field)
    accept = {"Accept": "text/event-stream"}
    for body, field in MESSAGE_FIELDS:
        reply = door.call("POST", f"/v1/sessions/{session}/messages", body, headers=accept)
        refused(reply, 422, "invalid_field", field)
    assert stored(door, stack, session) == []
    assert len(door.call("GET", "/v1/sessions").json) == 1


def test_the_list_of_wrong_fields_is_bounded(door: Door) -> None:
    """Lost if red: an answer thirty times as large as the request that asked for it."""
    body = {"agentName": "guide", **{f"f{n}": 1 for n in range(20_000)}}
    reply = door.call("POST", "/v1/sessions", body)
    refused(reply, 422, "invalid_field", "f0")
    long = {"agentName": "guide", "f" * 500_000: 1}
    for answer in (reply, door.call("POST", "/v1/sessions", long)):
        refused(answer, 422, "invalid_field")
        assert len(answer.body) < 20_000


def test_query_parameters_are_checked(door: Door) -> None:
    """Lost if red: lists that answer a mistake with an outage or with somebody's whole table."""
    session = new_session(door)
    pages = f"/v1/sessions/{session}/messages"
    for path, field in (
        ("/v1/sessions?agent=%00", "agent"),
        ("/v1/sessions?groupId=a%00", "groupId"),
        ("/v1/sessions?status=%00", "status"),
        ("/v1/sessions?status=asleep", "status"),
        *[
            (f"{listing}?pageSize={quote(size)}", "pageSize")
            for listing in ("/v1/sessions", pages)
            for size in ("0", "-1", "x", "1.5", "1e2", "²", "٣", "9" * 30, " 1", "%00")
        ],
    ):
        refused(door.call("GET", path), 422, "invalid_field", field)
    for path in (
        "/v1/sessions?agent=%FF%FE",
        "/v1/sessions?agent=nobody",
        "/v1/sessions?agent=guide&agent=nobody",
    ):
        assert door.call("GET", path).json == []
    for path in (
        "/v1/sessions?pageSize=1000",
        "/v1/sessions?pageSize=&pageToken=&agent=&status=&groupId=",
        "/v1/sessions?nonsense=1",
    ):
        assert [one["id"] for one in door.call("GET", path).json] == [session]


def test_page_tokens_are_checked(door: Door, stack: Stack) -> None:
    """Lost if red: a made-up token that breaks a list, or opens somebody else's."""
    mine = [new_session(door) for _ in range(3)]
    other = HttpDoor(stack, stack.make_tenant(new_id("ten"))[1])
    theirs = [new_session(other) for _ in range(3)]
    for word in ("one", "two"):
        path = f"/v1/sessions/{mine[0]}/messages"
        door.stream("POST", path, {"content": word}).rest()
    pages = f"/v1/sessions/{mine[0]}/messages"
    of_sessions = door.call("GET", "/v1/sessions?pageSize=1").headers["x-next-page-token"]
    of_messages = door.call("GET", f"{pages}?pageSize=1").headers["x-next-page-token"]
    of_theirs = other.call("GET", "/v1/sessions?pageSize=1").headers["x-next-page-token"]
    for token in (
        "x",
        "!!!!",
        "é",
        NUL,
        "=",
        *map(forged, ({}, [], None, 17, [17], [None], [["x"]], ["sess_x"], [mine[0], mine[0]])),
        *map(
            forged,
            (
                [True, 5],
                [1.5, 5],
                ["1", 5],
                [None, 5],
                [[1], 5],
                [1, "msg_x"],
                [1, None],
                [1, [5]],
                [1, False],
                [1, -1],
                [-(2**60), 5],
                [2**31, 5],
                [1, 2**63],
                [10**25, 5],
            ),
        ),
        forged(json.loads("[" * 400 + "]" * 400)),
    ):
        for listing in ("/v1/sessions", pages):
            reply = door.call("GET", f"{listing}?pageToken={quote(token)}")
            refused(reply, 422, "invalid_field", "pageToken")
    refused(door.call("GET", f"/v1/sessions?pageToken={of_messages}"), 422)
    refused(door.call("GET", f"{pages}?pageToken={of_sessions}"), 422)
    for token in (forged([0, 0]), forged([2**31 - 1, 2**63 - 1])):
        assert door.call("GET", f"{pages}?pageToken={token}").status == 200
    # another tenant's place in time is no way into what it has
    seen = door.call("GET", f"/v1/sessions?pageToken={of_theirs}").json
    assert {one["id"] for one in seen} <= set(mine)
    seen = other.call("GET", f"/v1/sessions?pageToken={of_sessions}").json
    assert {one["id"] for one in seen} <= set(theirs)


def forged(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_ids_that_cannot_be_are_told_as_ids_that_are_not(door: Door) -> None:
    """Lost if red: nothing to learn from the shape of an id, and no outage from a strange one."""
    calls: list[Callable[[str], Any]] = [
        lambda one: door.call("GET", f"/v1/sessions/{one}"),
        lambda one: door.call("DELETE", f"/v1/sessions/{one}"),
        lambda one: door.call("GET", f"/v1/sessions/{one}/messages"),
        lambda one: door.call("POST", f"/v1/sessions/{one}/messages", {"content": "x"}),
        lambda one: door.call(
            "POST",
            f"/v1/sessions/{one}/messages",
            {"content": "x"},
            headers={"Accept": "text/event-stream"},
        ),
        lambda one: door.call("GET", f"/v1/sessions/{one}/events"),
        lambda one: door.call("POST", f"/v1/sessions/{one}/stop"),
        lambda one: door.call("POST", f"/v1/sessions/{one}/cancel"),
        lambda one: door.call("POST", "/v1/stream-tokens", {"sessionId": one}),
    ]
    for call in calls:
        unknown = refused(call(UNKNOWN), 404, "not_found")
        for one in (
            "x",
            "sess_",
            UNKNOWN.upper(),
            UNKNOWN + "0",
            UNKNOWN[:-1] + "u",
            UNKNOWN + "%0A",
            "%00",
            "%2e%2e",
            "a%2Fb",
            "%ED%A0%80",
            "sess_" + "7" * 3000,
            new_id("tur"),
        ):
            body = refused(call(one), 404, "not_found")
            assert {**body, "requestId": ""} == {**unknown, "requestId": ""}, one


def test_a_percent_sign_hides_no_slash(stack: Stack) -> None:
    """Lost if red: a path that is one thing to a proxy's rules and another to the gateway."""
    door = HttpDoor(stack, stack.key)
    session = new_session(door)
    assert door.call("GET", "/v1/%73essions").status == 200
    assert door.call("GET", f"/v1/sessions/{session.replace('_', '%5F')}").json["id"] == session
    refused(door.call("GET", f"/v1/sessions/{session}%2Fmessages"), 404)
    refused(door.call("POST", f"/v1/sessions/{session}%2Fstop"), 405)
    refused(door.call("GET", f"/v1/sessions%2F{session}"), 404)


def test_event_ids_are_checked(door: Door) -> None:
    """Lost if red: a reader that is told its id is wrong, and not left with an empty stream."""
    session = new_session(door)
    events = f"/v1/sessions/{session}/events"
    turn = new_id("tur")
    for one in ("x", "-1", "1-2-3", "9" * 30, f"1-{turn}-0-0", "1-tur_x-0-0-0", f"1-{turn}-0--1-0"):
        reply = door.call("GET", events, headers={"Last-Event-ID": one})
        refused(reply, 422, "invalid_field", "Last-Event-ID")
        refused(door.call("GET", f"{events}?after={one}"), 422, "invalid_field", "after")
    refused(door.call("GET", f"{events}?after=%00"), 422, "invalid_field", "after")
    refused(door.call("GET", f"{events}?after="), 422, "invalid_field", "after")


# ── what every answer has ────────────────────────────────────────────────────────────────────
def test_every_answer_has_a_request_id(door: Door) -> None:
    """Lost if red: the one thing a user can send along when something went wrong."""
    session = new_session(door)
    seen = []
    for method, path, body in (
        ("POST", "/v1/sessions", {"agentName": "guide"}),
        ("GET", "/v1/sessions", None),
        ("GET", f"/v1/sessions/{session}", None),
        ("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}),
        ("GET", f"/v1/sessions/{session}/messages", None),
        ("POST", f"/v1/sessions/{session}/cancel", None),
        ("POST", "/v1/stream-tokens", {"sessionId": session}),
        ("GET", "/v1/memory/distillates", None),
        ("GET", "/v1/memory/episodes", None),
        ("POST", "/v1/memory/distill", None),
        ("GET", "/healthz", None),
        ("OPTIONS", "/v1/sessions", None),
        ("POST", f"/v1/sessions/{session}/stop", None),
        ("DELETE", f"/v1/sessions/{session}", None),
        ("GET", "/v1/nothing", None),
    ):
        reply = door.call(method, path, body)
        assert reply.status < 300 or reply.status == 404, (method, path, reply.body)
        seen.append(reply.headers["x-request-id"])
    session = new_session(door)
    posted = door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    posted.rest()
    events = door.stream("GET", f"/v1/sessions/{session}/events?after=0")
    events.read_until("message_completed")
    events.close()
    seen += [posted.headers["x-request-id"], events.headers["x-request-id"]]
    assert all(seen)
    if isinstance(door, HttpDoor):
        assert len(set(seen)) == len(seen)


# ── what is right survives ───────────────────────────────────────────────────────────────────
TEXTS = [
    pytest.param("e\u0301 ≠ \u00e9, a\u0308\u0323", id="combining"),
    pytest.param(
        "\u202eabc\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627", id="rtl"
    ),
    pytest.param("👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 \U0001f9d1\U0001f3fd \U0010fffd", id="astral"),
    pytest.param("a\u2028b\u2029c\u0085d\x0be\x0cf", id="line-separators"),
    pytest.param("\uffff\ufffe\ufdd0\U0001ffff\ufeffx\ufffd", id="noncharacters"),
    pytest.param("one\r\ntwo\rthree\nfour\n\nfive\r\r\n", id="line-ends"),
    pytest.param("\x01\x02\x1b[31m\x7f\x80\x9f", id="control"),
    pytest.param("  leading and trailing \t ", id="spaces"),
    pytest.param("%turn% %(x)s {0} $1 \\u0041 \\n \\ \" ' ; -- /* */", id="templates"),
    pytest.param('"turnId":"" {"turnId":"","sessionId":""} \\"turnId\\":\\"\\"', id="turn-id"),
    pytest.param("data: x\n\nevent: y\nid: 1\ndata: {}\n\n: ping\n\nretry: 1\n\n", id="sse"),
    pytest.param("[DONE]\n\ndata: [DONE]\n\n", id="done"),
    pytest.param("</script><script>alert(1)</script>&amp;\u003c", id="html"),
]


def test_every_text_survives_to_the_byte(door: Door, stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the user's own words, in whatever script they write."""
    session = new_session(door)
    path = f"/v1/sessions/{session}/messages"
    texts = [str(case.values[0]) for case in TEXTS]
    for text in texts:
        events = door.stream("POST", path, {"content": text}).rest()
        told = {event.name: event.data for event in events}
        assert told["user_message"]["content"] == text
        assert told["user_message"]["turnId"] == told["message_completed"]["turnId"] != ""
        assert text_of(events) == told["message_completed"]["text"] == f"echo: {text}"
        sent = [said(one.body["messages"][-1]["content"]) for one in provider.requests]
        assert text in sent
    raw = json.dumps({"content": texts[2]}, ensure_ascii=False).encode()
    assert door.call("POST", path, raw=raw).status == 202
    texts.append(texts[2])
    spoken = [text for one in texts for text in (one, f"echo: {one}")]
    replay = door.stream("GET", f"/v1/sessions/{session}/events?after=0")
    events = []
    for _ in texts:
        events += replay.read_until("message_completed")
    replay.close()
    assert [one.data["content"] for one in events if one.name == "user_message"] == texts
    assert text_of(events) == "".join(spoken[1::2])
    assert [one["content"] for one in stored(door, stack, session)] == spoken
    assert [
        one["content"] for one in door.call("GET", f"{path}?pageSize=200").json["messages"]
    ] == spoken


def test_names_and_metadata_come_back_as_they_were_sent(door: Door) -> None:
    """Lost if red: what a client keeps with its sessions, and finding them by it."""
    name = "gu\u00efde 👩\u200d🚀 %00 \u2028"
    metadata = {
        "": None,
        "k\u2028é\uffff👩\u200d🚀": ["\r\n", {"a.b": True, "c": []}],
        "numbers": [0, -1, 0.1, 1e-7, 2**53 + 1, 2**63, -(2**64), 10**40],
        "text": "😀 \x7f %s {0}",
    }
    session = new_session(door, agentName=name, groupId=name, userId=name, metadata=metadata)
    new_session(door)
    got = door.call("GET", f"/v1/sessions/{session}")
    assert got.status == 200, got.body
    assert (got.json["agentName"], got.json["groupId"], got.json["userId"]) == (name, name, name)
    assert got.json["metadata"] == metadata
    for query in (f"agent={quote(name)}", f"groupId={quote(name)}"):
        found = door.call("GET", f"/v1/sessions?{query}")
        assert [one["id"] for one in found.json] == [session]
        assert found.json[0]["metadata"] == metadata
    huge = new_session(door, metadata={"huge": [1e300, -1e19, 5e-324, 1.7976931348623157e308]})
    numbers = door.call("GET", f"/v1/sessions/{huge}").json["metadata"]["huge"]
    assert [float(one) for one in numbers] == [1e300, -1e19, 5e-324, 1.7976931348623157e308]


# ── trouble that is ours ─────────────────────────────────────────────────────────────────────
def test_a_view_that_breaks_tells_nothing_and_leaves_nothing(door: Door, stack: Stack) -> None:
    """Lost if red: what an error's text gives away, and all requests after a broken one (DB-5)."""
    session = new_session(door)
    paths = [
        ("GET", f"/v1/sessions/{session}", None),
        ("POST", f"/v1/sessions/{session}/messages", {"content": "secret"}),
        ("GET", f"/v1/sessions/{session}/events", None),
        ("POST", f"/v1/sessions/{session}/stop", None),
    ]
    stack.database.rows("ALTER TABLE pal.session_heads RENAME TO gone")
    try:
        replies = [door.call(method, path, body) for method, path, body in paths * 5]
    finally:
        stack.database.rows("ALTER TABLE pal.gone RENAME TO session_heads")
    for reply in replies:
        assert refused(reply, 500, "internal")["error"] == "Something went wrong on our side."
    assert door.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    other = HttpDoor(stack, stack.other_key)
    new_session(other)
    events = door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "on"}).rest()
    assert events[-1].data["text"] == "echo: on"


def test_no_connection_is_held_while_the_model_thinks(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the database, as soon as a few dozen turns wait for their model (DB-5)."""
    door = HttpDoor(stack, stack.key)
    held = Reply(pieces=["one ", "two"], hold_at=1)
    provider.script(held)
    stream = door.stream("POST", f"/v1/sessions/{new_session(door)}/messages", {"content": "x"})
    stream.read_until("message_delta")
    assert held.held.wait(PATIENCE)
    idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state ~ 'in transaction'"
    ends = time.monotonic() + PATIENCE
    while stack.database.one(idle, stack.database.name):  # a heartbeat's is over in a moment
        assert time.monotonic() < ends, "a transaction is open for as long as the model thinks"
    held.gate.set()
    assert text_of(stream.rest()) == "two"


# ── anything at all ──────────────────────────────────────────────────────────────────────────
_texts = st.text(st.characters(exclude_categories=()), max_size=20)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    [*SessionIn.model_fields, *MessageIn.model_fields, *Attachment.model_fields]
).map(to_camel)
_bodies = st.one_of(
    _values,
    st.dictionaries(_names, _values, max_size=5),
    st.builds(lambda more: {**more, "agentName": "guide"}, st.dictionaries(_names, _values)),
    st.builds(
        lambda metadata: {"agentName": "guide", "metadata": metadata},
        st.dictionaries(_texts, _values, max_size=4),
    ),
    st.builds(lambda text: {"content": text}, _texts),
)


@pytest.mark.parametrize("kind", ["http", "function-url"])
def test_no_body_breaks_a_route(kind: str, stack: Stack) -> None:
    """Lost if red: an outage for the asking, or a session that was made and can't be read."""
    door = open_door(kind, stack, stack.key)
    session = new_session(door)
    paths = [
        "/v1/sessions",
        f"/v1/sessions/{session}/messages",
        f"/v1/sessions/{session}/cancel",
        f"/v1/sessions/{new_session(door)}/stop",
        "/v1/stream-tokens",
        "/v1/memory/distill",
    ]

    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=_bodies, path=st.sampled_from(paths))
    def fuzz(body: Any, path: str) -> None:
        reply = door.call("POST", path, raw=json.dumps(body).encode())
        assert reply.status < 500, reply.body
        if reply.status >= 400:
            refused(reply, reply.status)
        elif path == "/v1/sessions":
            read = door.call("GET", f"/v1/sessions/{reply.json['id']}")
            assert read.status == 200, read.body

    fuzz()
    for path in ("/v1/sessions?pageSize=200", f"/v1/sessions/{session}"):
        assert door.call("GET", path).status == 200


def stored(door: Door, stack: Stack, session: str) -> list[dict[str, Any]]:
    """The session's messages, once no turn runs."""
    stack.node.run(stack.node.services.engine.wait_idle())
    found: list[dict[str, Any]] = door.call("GET", f"/v1/sessions/{session}").json["messages"]
    return found
