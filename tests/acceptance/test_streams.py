"""The event stream at its edges: silence, slow readers, limits, revoked keys."""

import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from chalicelib.gateway import asgi
from chalicelib.sessions import follow
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import Event, HttpClient, SseParser, text_of
from tests.support.process import GatewayProcess
from tests.support.stack import Stack


def start_session(stack: Stack) -> tuple[HttpClient, str]:
    http = stack.http()
    return http, http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]


def test_silence_is_filled_with_pings(
    stack: Stack, provider: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STR-4. Lost if red: every stream behind a proxy that closes what is silent."""
    monkeypatch.setattr(follow, "PING_SECONDS", 1.0)  # 15 s is long for a test
    http, session = start_session(stack)
    slow = Reply(pieces=["late"], hold_at=0)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert slow.held.wait(10)
    seen: list[Event] = []
    for event in stream:
        seen.append(event)
        if event.name == "":
            slow.gate.set()
        if event.name == "message_completed":
            break
    assert "" in [event.name for event in seen]
    assert text_of(seen) == "late"
    assert stream.rest() == []  # the stream of a turn ends with the turn


def test_headers_of_a_stream(stack: Stack) -> None:
    """Lost if red: streaming through proxies that buffer or cache."""
    http, session = start_session(stack)
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-request-id"]
    stream.read_until("connected")
    assert stream._parser.retry == 1500
    stream.close()


class RawReader:
    """Someone who opens a stream and then reads nothing, until told to read it all."""

    def __init__(self, http: HttpClient, path: str, *, window: int = 0) -> None:
        host, port = urlsplit(http.base).hostname or "", urlsplit(http.base).port or 0
        self._socket = socket.socket()
        if window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._socket.settimeout(15)
        self._socket.connect((host, port))
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {http.key}\r\n\r\n".encode()
        )
        self._raw = bytearray(self._socket.recv(200))

    def rest(self) -> list[Event]:
        """What the server sent before it hung up, or up to the end of the turn."""
        at_end = False
        while piece := self._socket.recv(1 << 18):
            before = len(self._raw)
            self._raw += piece
            at_end = at_end or b"event: message_completed" in self._raw[max(0, before - 50) :]
            if at_end and piece.endswith(b"}\n\n\r\n"):
                break
        self._socket.close()
        head, _, body = self._raw.partition(b"\r\n\r\n")
        assert b" 200 " in head
        text, at = bytearray(), 0
        while (line_end := body.find(b"\r\n", at)) >= 0:
            size = int(body[at:line_end], 16)
            text += body[line_end + 2 : line_end + 2 + size]
            at = line_end + 2 + size + 2
        parser = SseParser()
        lines = text.decode(errors="ignore").split("\n")
        return [event for line in lines if (event := parser.line(line)) and event.name]


def test_slow_reader_is_dropped_and_resumes_without_loss(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: the process's memory to a reader that stalls, or that reader's place."""
    stack = make_stack(stream_buffer=1 << 20)
    http, session = start_session(stack)
    # more than the sockets' own buffers hold, and no faster than a client of this test reads
    pieces = [f"{n:06}" + "x" * 40_000 for n in range(200)]
    slow = Reply(pieces=pieces, hold_at=1, inter_ms=5)
    provider.script(slow)
    stalled = RawReader(http, f"/v1/sessions/{session}/events", window=200_000)
    quick = RawReader(http, f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert slow.held.wait(10)
    slow.gate.set()
    whole = quick.rest()
    assert text_of(whole) == "".join(pieces)  # the quick one is not held up
    seen = stalled.rest()
    assert seen[-1].name != "message_completed"
    resumed = RawReader(http, f"/v1/sessions/{session}/events?after={seen[-1].id}")
    assert text_of(seen) + text_of(resumed.rest()) == "".join(pieces)


def test_key_has_a_limit_of_open_streams(make_stack: Callable[..., Stack]) -> None:
    """Lost if red: all of a Lambda account's concurrency, to one key."""
    stack = make_stack(streams_per_key=2)
    http, session = start_session(stack)
    open_streams = [http.stream("GET", f"/v1/sessions/{session}/events") for _ in range(2)]
    for stream in open_streams:
        stream.read_until("connected")
    refused = http.call("GET", f"/v1/sessions/{session}/events")
    assert refused.status == 429
    assert refused.headers["retry-after"]
    assert refused.json["code"] == "too_many_requests"
    other = stack.http(stack.make_key("sessions")[1])
    open_streams.append(other.stream("GET", f"/v1/sessions/{session}/events"))
    assert open_streams[-1].status == 200  # another key has a limit of its own
    open_streams.pop(0).close()
    for _ in range(100):  # the server hears of the hang-up in its own time
        open_streams.append(http.stream("GET", f"/v1/sessions/{session}/events"))
        if open_streams[-1].status == 200:
            break
        open_streams.pop().rest()
    assert open_streams[-1].status == 200
    for stream in open_streams:
        stream.close()


def test_stream_ends_on_lambda_after_idling_and_resumes(
    make_stack: Callable[..., Stack],
) -> None:
    """Lost if red: the bill for readers that left, which a Lambda never hears of."""
    stack = make_stack(on_lambda=True, stream_idle=1.0)
    http, session = start_session(stack)
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "one"})
    seen = stream.rest()  # ends by itself
    assert seen[-1].name == "message_completed"
    assert stream._parser.retry == 1500
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "two"})
    resumed = http.stream(
        "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": seen[-1].id}
    )
    assert text_of(resumed.rest()) == "echo: two"


def test_stream_ends_on_lambda_after_its_longest_time_even_in_a_turn(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: a clean end before Lambda's own, hard one."""
    stack = make_stack(on_lambda=True, stream_idle=5.0, stream_max=1.0)
    http, session = start_session(stack)
    slow = Reply(pieces=["one ", "two"], hold_at=1)
    provider.script(slow)
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    seen = stream.rest()
    assert text_of(seen) == "one "
    slow.gate.set()
    stack.node.run(stack.node.services.engine.wait_idle())
    resumed = http.stream(
        "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": seen[-1].id}
    )
    rest = resumed.read_until("message_completed")
    assert text_of(seen) + text_of(rest) == "one two"
    resumed.close()


def test_revoked_key_loses_its_open_streams(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost if red: a revocation that leaves the thief's stream open."""
    http, session = start_session(stack)
    key_id, key = stack.make_key("sessions")
    stream = stack.http(key).stream("GET", f"/v1/sessions/{session}/events")
    other = http.stream("GET", f"/v1/sessions/{session}/events")
    stream.read_until("connected")
    other.read_until("connected")
    stack.database.rows("UPDATE pal.api_keys SET revoked_at = now() WHERE id = %s", key_id)
    services = stack.node.services
    checking = stack.node.on.start(follow.check_keys(services.auth, services.hub, every=0.05))
    assert stream.rest() == []
    checking.cancel()
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "still here"})
    assert text_of(other.read_until("message_completed")) == "echo: still here"
    other.close()


def test_half_a_request_is_given_up(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost if red: every connection of the process, to callers who never finish."""
    monkeypatch.setattr(asgi, "BODY_SECONDS", 0.3)
    http, _ = start_session(stack)
    with socket.create_connection((urlsplit(http.base).hostname, urlsplit(http.base).port)) as half:
        half.settimeout(15)
        half.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        said = b""
        while piece := half.recv(65536):
            said += piece
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in said


def test_what_is_no_http_is_refused_in_the_same_shape(
    stack: Stack, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: the request id by which a strange caller is found in the logs."""
    base = urlsplit(make_gateway().base)
    with socket.create_connection((base.hostname, base.port)) as odd:
        odd.settimeout(15)
        odd.sendall(b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n")
        said = b""
        while piece := odd.recv(65536):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"X-Request-Id: " + json.loads(body)["requestId"].encode() in head
