"""The ways in, behind one face, so that one journey can be walked through each of them."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from chalice.local import RouteMatcher
from chalice.test import Client

import app as application
from chalicelib.stream.handler import streams
from chalicelib.stream.lambda_entry import handler
from chalicelib.stream.response import LambdaContext, Streamed
from tests.support.http import PATIENCE, Event, Events, Reply, SseParser
from tests.support.stack import Stack


class Stream(Protocol):
    """An open stream of events."""

    status: int
    headers: dict[str, str]

    def __iter__(self) -> Iterator[Event]: ...

    def read_until(self, *names: str) -> list[Event]: ...

    def rest(self) -> list[Event]: ...

    def close(self) -> None: ...


class Door(Protocol):
    """One way in, with one key."""

    live: bool
    """Whether events come while they happen, and not in one piece at the end."""

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply: ...

    def stream(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Stream: ...


class HttpDoor:
    """The gateway over real HTTP."""

    live = True

    def __init__(self, stack: Stack, key: str) -> None:
        client = stack.http(key)
        self.call = client.call
        self.stream = client.stream


class ChaliceDoor:
    """Chalice's own test client: what an API Lambda answers."""

    live = False

    def __init__(self, stack: Stack, key: str) -> None:
        self._key = key
        self._client = Client(application.app)
        # it swaps os.environ for a copy during each call, and calls that overlap leave the copy
        self._client.http._patched_env_vars = lambda _: nullcontext()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """One request; `raw` is a body as it is, in place of JSON."""
        payload = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        usual = {"Authorization": f"Bearer {self._key}"}
        if body is not None or raw is not None:
            usual["Content-Type"] = "application/json"
        sent = {k: v for k, v in {**usual, **(headers or {})}.items() if v}
        if method == "OPTIONS" or pattern_of(path) is None:
            return self._unrouted(method, path, sent, payload)
        answer = self._client.http.request(method, path, headers=sent, body=payload)
        found = {name.lower(): str(value) for name, value in answer.headers.items()}
        whole = answer.body if isinstance(answer.body, bytes) else str(answer.body or "").encode()
        return Reply(status=answer.status_code, headers=found, body=whole)

    def _unrouted(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        # API Gateway, and the test client as well, answers these itself unless it has a route for
        # them; where one leads to the function, this is the function's answer
        lower = {name.lower(): value for name, value in headers.items()}
        event = proxy_event("1.0", method, path, lower, body)
        event["requestContext"]["resourcePath"] = pattern_of(path) or "/{proxy+}"
        answer = application.app(event, None)
        found = {name.lower(): str(value) for name, value in answer["headers"].items()}
        return Reply(status=answer["statusCode"], headers=found, body=answer["body"].encode())

    def stream(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> "CollectedStream":
        """One request whose answer is all its events."""
        accept = {"Accept": "text/event-stream", **(headers or {})}
        return CollectedStream(self.call(method, path, body, headers=accept))


class CollectedStream(Events):
    """A stream that came whole."""

    def __init__(self, reply: Reply) -> None:
        self.status, self.headers = reply.status, reply.headers
        parser = SseParser()
        lines = reply.body.decode().split("\n")
        self._events = iter([event for line in lines if (event := parser.line(line))])

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def close(self) -> None:
        """Nothing to hang up."""


class StreamDoor:
    """The streaming Lambda's handler for its routes, Chalice for the others."""

    live = True

    def __init__(self, stack: Stack, key: str, *, version: str) -> None:
        self._stack, self._key, self._version = stack, key, version
        self._chalice = ChaliceDoor(stack, key)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """One request; `raw` is a body as it is, in place of JSON."""
        # what Chalice has no view for goes to the handler, which must refuse it as well
        views = application.app.routes.get(pattern_of(path) or "", {})
        if method in views and not streams(method, urlsplit(path).path):
            return self._chalice.call(method, path, body, headers=headers, raw=raw)
        answer = self._answer(method, path, body, headers or {}, raw)

        async def whole() -> bytes:
            return b"".join([piece async for piece in answer.body])

        raw = self._stack.node.run(whole())
        found = {name.lower(): value for name, value in answer.headers}
        return Reply(status=answer.status, headers=found, body=raw)

    def stream(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> "HandlerStream":
        """One request whose answer is a stream."""
        accept = {"Accept": "text/event-stream", **(headers or {})}
        return HandlerStream(self._stack, self._answer(method, path, body, accept))

    def _answer(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        raw: bytes | None = None,
    ) -> Streamed:
        payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
        usual = {"authorization": f"Bearer {self._key}"}
        if payload is not None:
            usual["content-type"] = "application/json"
        lower = {**usual, **{name.lower(): value for name, value in headers.items()}}
        sent = {name: value for name, value in lower.items() if value}
        event = proxy_event(self._version, method, path, sent, payload)
        context = LambdaContext(aws_request_id="r", deadline_ms=0)
        return self._stack.node.run(handler(event, context))


def pattern_of(path: str) -> str | None:
    """The route that this path has, None if it has none."""
    try:
        return RouteMatcher(list(application.app.routes)).match_route(path).route
    except ValueError:
        return None


def proxy_event(
    version: str, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> dict[str, Any]:
    """What AWS would send: a function URL's event ("2.0") or a REST API's ("1.0")."""
    parts = urlsplit(path)
    # AWS hands a body over as text where it is text
    text: str | None = None
    encoded = False
    if body is not None:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text, encoded = base64.b64encode(body).decode(), True
    if version == "2.0":
        return {
            "version": "2.0",
            "rawPath": parts.path,
            "rawQueryString": parts.query,
            "headers": headers,
            "requestContext": {
                "requestId": "req-2",
                "http": {"method": method, "path": parts.path},
            },
            "body": text,
            "isBase64Encoded": encoded,
        }
    return {
        "httpMethod": method,
        "path": parts.path,
        "headers": headers,
        "multiValueQueryStringParameters": parse_qs(parts.query, keep_blank_values=True) or None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {"requestId": "req-1", "httpMethod": method},
        "body": text,
        "isBase64Encoded": encoded,
    }


class HandlerStream(Events):
    """The handler's body, read piece by piece."""

    def __init__(self, stack: Stack, answer: Streamed) -> None:
        self._stack, self._answer = stack, answer
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.headers}
        self._parser = SseParser()
        self._lines: list[str] = []
        self._body = answer.body.__aiter__()

    def __iter__(self) -> Iterator[Event]:
        while True:
            while self._lines:
                if event := self._parser.line(self._lines.pop(0)):
                    yield event
            piece = self._stack.node.run(self._next(), PATIENCE)
            if not piece:
                return
            # the handler never splits an event over two pieces
            self._lines = piece.decode().split("\n")[:-1]

    async def _next(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._body.__anext__()
            except StopAsyncIteration:
                return b""

    def close(self) -> None:
        """Close the body, as the runtime loop does when its reader is gone."""
        self._stack.node.run(self._answer.body.aclose())
