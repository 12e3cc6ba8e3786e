"""A small blocking HTTP client for tests: whole answers, and server-sent events as they come."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE = 15.0
"""Seconds a test waits for the next byte before it fails."""


class Event(NamedTuple):
    """One server-sent event; a heartbeat has no name."""

    id: str
    name: str
    data: Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A whole answer; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class SseParser:
    """Lines in, events out; knows comments and `retry`."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self.retry: int | None = None

    def line(self, line: str) -> Event | None:
        """The event that this line completes."""
        if line.startswith(":"):
            return Event("", "", None)
        if line:
            name, _, value = line.partition(": ")
            self._fields[name] = value
            if name == "retry":
                self.retry = int(value)
                self._fields = {}
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))


class Events:
    """What can be asked of any stream of events, however it comes."""

    def __iter__(self) -> Iterator[Event]:
        raise NotImplementedError

    def read_until(self, *names: str) -> list[Event]:
        """Events up to and with the first of one of these names, heartbeats left out."""
        seen: list[Event] = []
        for event in self:
            if event.name:
                seen.append(event)
            if event.name in names:
                return seen
        raise AssertionError(f"the stream ended without {names}: {seen}")

    def rest(self) -> list[Event]:
        """All events until the server ends the stream, heartbeats left out."""
        return [event for event in self if event.name]


class EventStream(Events):
    """An open stream of events. Iterate it; `close` hangs up."""

    def __init__(self, connection: http.client.HTTPConnection, response: Any) -> None:
        self._connection, self._response = connection, response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._parser = SseParser()

    def __iter__(self) -> Iterator[Event]:
        """Events until the server ends the stream."""
        while line := self._response.readline():
            if event := self._parser.line(line.decode().rstrip("\n")):
                yield event
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._connection.close()


class HttpClient:
    """Calls one origin with one key."""

    def __init__(self, base: str, key: str) -> None:
        self._netloc = urlsplit(base).netloc
        self.base, self.key = base, key

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """One request, its whole answer. `headers` replace the usual ones by name; "" removes."""
        connection, response = self._send(method, path, body, headers or {}, raw)
        try:
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(status=response.status, headers=found, body=response.read())
        finally:
            connection.close()

    def stream(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> EventStream:
        """One request whose answer is a stream of events."""
        accept = {"Accept": "text/event-stream", **(headers or {})}
        return EventStream(*self._send(method, path, body, accept, None))

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str], raw: bytes | None
    ) -> tuple[http.client.HTTPConnection, Any]:
        connection = http.client.HTTPConnection(self._netloc, timeout=PATIENCE)
        usual = {"Authorization": f"Bearer {self.key}"}
        if body is not None or raw is not None:
            usual["Content-Type"] = "application/json"
        sent = {name: value for name, value in {**usual, **headers}.items() if value}
        payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection.request(method, path, payload, sent)
        return connection, connection.getresponse()


def text_of(events: list[Event]) -> str:
    """The deltas' text, put together."""
    return "".join(event.data["delta"] for event in events if event.name == "message_delta")
