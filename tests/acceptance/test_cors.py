"""Browsers: a page of an allowed origin sees every answer, errors included; others see none."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import open_door
from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.http import Reply
from tests.support.stack import Stack
from tests.support.waiting import until

CONSOLE = "https://console.example.com"
SECOND = "http://localhost:5173"
FOREIGN = [
    "https://evil.example.com",
    "https://console.example.com.evil.com",
    "http://console.example.com",
    "https://console.example.com:8443",
    "https://CONSOLE.example.com",
    "null",
    "*",
]
KINDS = pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
SENT = {"authorization", "content-type", "last-event-id", "idempotency-key"}
SEEN = {"x-request-id", "x-next-page-token", "retry-after", "idempotent-replayed"}


def words(value: str) -> set[str]:
    return {word.strip().lower() for word in value.split(",")}


def allows(headers: dict[str, str], origin: str) -> None:
    """Check that a page of this origin may read this answer and the headers it needs."""
    assert headers["access-control-allow-origin"] == origin
    assert words(headers["access-control-expose-headers"]) >= SEEN
    assert "origin" in words(headers["vary"])
    assert headers["x-request-id"]


def tells_nothing(headers: dict[str, str]) -> None:
    """Check that no page may read this answer, and that no cache takes it for one that may."""
    assert not [name for name in headers if name.startswith("access-control-")], headers
    assert "origin" in words(headers["vary"])


def answers(door: Door, stack: Stack, origin: dict[str, str]) -> dict[str, Reply]:
    """An answer of every kind that a page can meet, by what it is."""
    session = new_session(door)
    path = f"/v1/sessions/{session}"
    over = b" " * ((1 << 20) + 1)

    def call(method: str, url: str, body: Any = None, **more: Any) -> Reply:
        headers = {**origin, **more.pop("headers", {})}
        return door.call(method, url, body, headers=headers, **more)

    found = {
        "listed": call("GET", "/v1/sessions"),
        "created": call("POST", "/v1/sessions", {"agentName": "guide"}),
        "posted": call("POST", f"{path}/messages", {"content": "x"}),
        "token": call("POST", "/v1/stream-tokens", {"sessionId": session}),
        "healthz": call("GET", "/healthz", headers={"Authorization": ""}),
        "stopped": call("POST", f"{path}/stop"),
    }
    assert all(reply.status < 300 for reply in found.values()), found
    for name, url in (("route", "/v1/sessions"), ("stream", f"{path}/events")):
        for value in ("", "Bearer pal_wrong"):
            reply = call("GET", url, headers={"Authorization": value})
            refused(reply, 401)
            found[f"401 {name} {value}"] = reply
    _, weak = stack.make_key("chats")
    for name, method, url, status, body in (
        ("404 route", "GET", "/v1/nothing", 404, None),
        ("404 session", "GET", "/v1/sessions/x", 404, None),
        ("404 stream", "GET", "/v1/sessions/x/events", 404, None),
        ("405", "PUT", f"{path}/events", 405, None),
        ("409", "POST", f"{path}/messages", 409, {"content": "x"}),
        ("422", "POST", "/v1/sessions", 422, {}),
        ("422 stream", "GET", f"{path}/events?after=x", 422, None),
    ):
        found[name] = call(method, url, body)
        refused(found[name], status)
    for name, url in (("route", "/v1/sessions"), ("stream", f"{path}/messages")):
        found[f"400 {name}"] = call("POST", url, raw=b"{")
        refused(found[f"400 {name}"], 400)
        found[f"413 {name}"] = call("POST", url, raw=over)
        refused(found[f"413 {name}"], 413)
        found[f"415 {name}"] = call("POST", url, raw=b"x", headers={"Content-Type": "text/plain"})
        refused(found[f"415 {name}"], 415)
        found[f"403 {name}"] = call("POST", url, {}, headers={"Authorization": f"Bearer {weak}"})
        refused(found[f"403 {name}"], 403)
    return found


@KINDS
def test_an_allowed_page_reads_every_answer(kind: str, make_stack: Callable[..., Stack]) -> None:
    """Lost if red: DEP-1; the real error, in place of the browser's word about CORS."""
    stack = make_stack(cors_origins=(CONSOLE, SECOND))
    door = open_door(kind, stack, stack.key)
    for origin in (CONSOLE, SECOND):
        for name, reply in answers(door, stack, {"Origin": origin}).items():
            try:
                allows(reply.headers, origin)
            except (AssertionError, KeyError) as exc:
                raise AssertionError(f"{name}: {reply}") from exc
    session = new_session(door)
    streams = (
        ("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}),
        ("GET", f"/v1/sessions/{session}/events?after=0", None),
    )
    for method, path, body in streams:
        stream = door.stream(method, path, body, headers={"Origin": CONSOLE})
        assert stream.status == 200
        stream.read_until("message_completed")
        stream.close()
        allows(stream.headers, CONSOLE)


@KINDS
def test_our_own_trouble_is_read_too(kind: str, make_stack: Callable[..., Stack]) -> None:
    """Lost if red: that a page can tell an outage, or a limit, from a network that is down."""
    stack = make_stack(cors_origins=(CONSOLE,), streams_per_key=1)
    door = open_door(kind, stack, stack.key)
    session = new_session(door)
    origin = {"Origin": CONSOLE}
    path = f"/v1/sessions/{session}"

    held = open_door("http", stack, stack.key).stream("GET", f"{path}/events")
    held.read_until("connected")
    limited = door.call("GET", f"{path}/events", headers=origin)
    refused(limited, 429, "too_many_requests")
    held.close()
    until(lambda: stack.database.one("SELECT count(*) FROM pal.open_streams") == 0)

    stack.node.services.engine.draining = True
    unavailable = [
        door.call("POST", f"{path}/messages", {"content": "x"}, headers={**origin, **accept})
        for accept in ({}, {"Accept": "text/event-stream"})
    ]
    for reply in unavailable:
        refused(reply, 503, "unavailable")
    for reply in (limited, *unavailable):
        assert int(reply.headers["retry-after"]) > 0
        allows(reply.headers, CONSOLE)

    stack.database.rows("ALTER TABLE pal.session_heads RENAME TO gone")
    for method, url in (("GET", path), ("GET", f"{path}/events"), ("POST", f"{path}/stop")):
        reply = door.call(method, url, headers=origin)
        refused(reply, 500, "internal")
        allows(reply.headers, CONSOLE)


@KINDS
def test_a_preflight_needs_no_key(kind: str, make_stack: Callable[..., Stack]) -> None:
    """Lost if red: every call of a page that sends a key, which no preflight carries."""
    stack = make_stack(cors_origins=(CONSOLE,))
    door = open_door(kind, stack, "")
    session = new_session(open_door("http", stack, stack.key))
    for path in (
        "/v1/sessions",
        f"/v1/sessions/{session}",
        f"/v1/sessions/{session}/messages",
        f"/v1/sessions/{session}/events",
        "/v1/memory/distill",
        "/v1/stream-tokens",
        "/v1/nothing",
    ):
        for method in ("GET", "POST", "PUT", "DELETE"):
            asked = {
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": "authorization,idempotency-key,last-event-id",
            }
            reply = door.call("OPTIONS", path, headers={"Origin": CONSOLE, **asked})
            assert reply.status in (200, 204), path  # 200 with a body where a stream needs a byte
            allows(reply.headers, CONSOLE)
            assert words(reply.headers["access-control-allow-headers"]) >= SENT
            assert method.lower() in words(reply.headers["access-control-allow-methods"])
            assert int(reply.headers["access-control-max-age"]) > 0
            assert "*" not in "".join(reply.headers.values())
            assert "access-control-allow-credentials" not in reply.headers
            foreign = door.call("OPTIONS", path, headers={"Origin": FOREIGN[0], **asked})
            assert foreign.status in (200, 204)
            tells_nothing(foreign.headers)


@KINDS
def test_a_foreign_page_reads_nothing(kind: str, make_stack: Callable[..., Stack]) -> None:
    """Lost if red: a user's sessions, to any page that the user happens to open."""
    stack = make_stack(cors_origins=(CONSOLE,))
    door = open_door(kind, stack, stack.key)
    for name, reply in answers(door, stack, {"Origin": FOREIGN[0]}).items():
        try:
            tells_nothing(reply.headers)
        except (AssertionError, KeyError) as exc:
            raise AssertionError(f"{name}: {reply}") from exc
    session = new_session(door)
    for origin in FOREIGN:
        tells_nothing(door.call("GET", "/v1/sessions", headers={"Origin": origin}).headers)
        stream = door.stream(
            "POST",
            f"/v1/sessions/{session}/messages",
            {"content": "hello"},
            headers={"Origin": origin},
        )
        stream.rest()
        tells_nothing(stream.headers)
    # one that comes without an origin is no page's; a cache must still tell them apart
    tells_nothing(door.call("GET", "/v1/sessions").headers)


@KINDS
def test_without_the_setting_no_page_reads_anything(kind: str, stack: Stack) -> None:
    """Lost if red: a default that is safe."""
    door = open_door(kind, stack, stack.key)
    for reply in answers(door, stack, {"Origin": CONSOLE}).values():
        assert not [name for name in reply.headers if name.startswith("access-control-")]
