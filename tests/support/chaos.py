"""Talking to a system whose vendors fail at random, and writing down all that it said.

Blocking clients on threads, one session each at a time; what is right or wrong about what they saw
is `tests.support.verdict`'s to say.
"""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from tests.fakes.chaos import Chaos
from tests.support.http import Event, HttpClient

_TALKERS: Final = 8
_TURNS_PER_SESSION: Final = 20
_ENDS: Final = ("message_completed", "message_error")


@dataclass(kw_only=True)
class SeenTurn:
    """A turn as its readers saw it. `tags` are its messages', in the order they were posted."""

    id: str
    tools: bool
    tags: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> Event | None:
        """Its last event, None if that is no end."""
        return self.events[-1] if self.events and self.events[-1].name in _ENDS else None

    @property
    def completed(self) -> bool:
        """Whether it ended in an answer."""
        return self.end is not None and self.end.name == "message_completed"

    def data(self, name: str) -> list[dict[str, Any]]:
        """The data of all of its events of this name."""
        return [one.data for one in self.events if one.name == name]


@dataclass(kw_only=True)
class SeenSession:
    """A session after all its turns."""

    id: str
    turns: dict[str, SeenTurn] = field(default_factory=dict)
    status: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Note an event of the session's stream."""
        if event.name and "turnId" in event.data and event.name != "user_message":
            if turn := self.turns.get(event.data["turnId"]):
                turn.events.append(event)
            else:
                self.strays.append(f"{event.name} of a turn without a message")


def run_chaos(chaos: Chaos, http: HttpClient, turns: int) -> tuple[list[SeenSession], list[str]]:
    """Have this many turns, on several sessions at once: the sessions, and what broke a talker."""
    tools = [_tool(chaos, name, method) for name, method in chaos.tool_methods.items()]
    made = http.call("POST", "/v1/agents", {"name": "clerk", "tools": tools})
    assert made.status == 201, made.body
    shares = list(_shares(turns))
    sessions: list[SeenSession] = []
    broken: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not shares:
                    return
                number, share = len(shares), shares.pop()
            talk = _Talk(chaos, http, number)
            try:
                talk.run(share)
            except Exception as exc:
                broken.append(f"session {number}: {type(exc).__name__}: {exc}"[:500])
            with lock:
                sessions.append(talk.seen)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(_TALKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sessions, broken


def _shares(turns: int) -> Iterator[int]:
    """How many turns each session has: no more than it may, and enough sessions for all talkers."""
    most = max(1, min(_TURNS_PER_SESSION, -(-turns // _TALKERS)))
    while turns > 0:
        yield min(most, turns)
        turns -= most


def _tool(chaos: Chaos, name: str, method: str) -> dict[str, Any]:
    return {
        "kind": "http",
        "name": name,
        "method": method,
        "url": chaos.tools.url(f"/{name}"),
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "string"}},
            "required": ["id"],
        },
    }


class _Talk:
    """One session from its first message to its last, and a look at what is stored of it."""

    def __init__(self, chaos: Chaos, http: HttpClient, number: int) -> None:
        self._http, self._number = http, number
        self._dice = random.Random(f"{chaos.seed}/talk/{number}")
        self._sent = 0
        self._tools = number % 2 == 0
        made = http.call(
            "POST", "/v1/sessions", {"agentName": "clerk" if self._tools else "scribe"}
        )
        assert made.status == 201, made.body
        self.seen = SeenSession(id=made.json["id"])
        self._path = f"/v1/sessions/{self.seen.id}"

    def run(self, turns: int) -> None:
        """Have so many turns, one after the other."""
        events = self._http.stream("GET", f"{self._path}/events")
        try:
            events.read_until("connected")
            while len(self.seen.turns) < turns:
                way = self._dice.random()
                if way < 0.5:
                    waited = self._inline()
                else:
                    waited = {self._post()}
                    # a second message, into the running turn or the next one
                    if way > 0.9 and len(self.seen.turns) < turns:
                        waited.add(self._post())
                while waited:
                    event = events.read_until(*_ENDS)
                    for one in event:
                        self.seen.take(one)
                    waited.discard(event[-1].data["turnId"])
        finally:
            events.close()
            self._look()

    def _body(self) -> tuple[str, dict[str, str]]:
        self._sent += 1
        tag = f"<m{self._number}-{self._sent}>"
        return tag, {"content": f"{tag} what is written there?"}

    def _know(self, turn_id: str, tag: str) -> str:
        turn = self.seen.turns.setdefault(turn_id, SeenTurn(id=turn_id, tools=self._tools))
        turn.tags.append(tag)
        return turn_id

    def _post(self) -> str:
        tag, body = self._body()
        posted = self._http.call("POST", f"{self._path}/messages", body)
        assert posted.status == 202, posted.body
        return self._know(posted.json["turnId"], tag)

    def _inline(self) -> set[str]:
        tag, body = self._body()
        told = self._http.stream("POST", f"{self._path}/messages", body)
        assert told.status == 200, told.status
        events = told.rest()
        turn_id = self._know(events[-1].data["turnId"], tag)
        ends = [one for one in events if one.name in _ENDS]
        if len(ends) != 1 or ends[0] is not events[-1]:
            self.seen.strays.append(f"the stream of {tag} ended with {events[-1].name}")
        return {turn_id}

    def _look(self) -> None:
        self.seen.status = self._http.call("GET", self._path).json["status"]
        token = ""
        while True:
            page = self._http.call("GET", f"{self._path}/messages?pageSize=200{token}")
            self.seen.messages += page.json["messages"]
            if not (more := page.headers.get("x-next-page-token")):
                return
            token = f"&pageToken={quote(more, safe='')}"
