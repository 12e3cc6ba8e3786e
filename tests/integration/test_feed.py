"""The event feed over a real log: two processes, readers that come and go, a turn that streams."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.errors import Unavailable
from chalicelib.ids import new_id
from chalicelib.sessions import store
from chalicelib.sessions.lifecycle import NewMessage
from chalicelib.sessions.reader import FeedEvent, Reader
from chalicelib.sessions.resume import open_events
from chalicelib.sessions.rows import PendingText
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import HttpClient, text_of
from tests.support.process import GatewayProcess
from tests.support.scripted import FixedModels, ScriptedProvider
from tests.support.stack import Node, Stack

PIECES = st.text(alphabet='ab \n"\\é你🌍', min_size=1, max_size=6)


class Visitor:
    """A reader on one node that reads, leaves and resumes by its last id."""

    def __init__(self, stack: Stack, node: Node, session: str) -> None:
        self.node = node
        self._caller = stack.caller
        self._session = session
        self.last_id: str | None = None
        self.text = ""
        self.seqs: list[int] = []
        self.ends: list[dict[str, Any]] = []
        self._opened: tuple[Reader, Any] | None = None

    def open(self) -> None:
        async def begin() -> tuple[Reader, Any]:
            services = self.node.services
            reader, _ = await open_events(
                services.db, services.hub, self._caller, self._session, after=self.last_id
            )
            return reader, services.hub.events(reader)

        self._opened = self.node.run(begin())

    def leave(self, taken: int) -> None:
        """Be given what is there, of which only some events arrive, and hang up."""
        reader, _ = self._opened or (None, None)
        if reader is not None:
            self._take(reader.drain()[:taken])
        self.close()

    def close(self) -> None:
        if self._opened is not None:
            self.node.run(self._close(*self._opened))
            self._opened = None

    async def _close(self, reader: Reader, events: Any) -> None:
        await events.aclose()
        self.node.services.hub.drop(reader)

    def read(self) -> None:
        """Take what is there, without waiting for more."""

        async def batch() -> list[FeedEvent]:
            assert self._opened is not None
            hub, reader = self.node.services.hub, self._opened[0]
            if not reader.attached:
                await hub._pull(hub.feeds[self._session], reader)
            return reader.drain()

        if self._opened is not None:
            self._take(self.node.run(batch()))

    def finish(self) -> None:
        """Read to the turn's end."""
        if self._opened is None:
            self.open()

        async def rest() -> None:
            assert self._opened is not None
            async with asyncio.timeout(10):
                while not self.ends:
                    self._take(await anext(self._opened[1]))

        if not self.ends:
            self.node.run(rest())
        self.close()

    def _take(self, events: list[FeedEvent]) -> None:
        for event in events:
            if not event.name:
                continue
            self.last_id = event.id
            data = json.loads(event.data)
            if event.name == "message_delta":
                self.text += data["delta"]
                self.seqs.append(data["seq"])
            elif event.name in ("message_completed", "message_error"):
                self.ends.append(data)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_every_reader_of_every_process_gets_exactly_the_text(
    stack: Stack, data: st.DataObject
) -> None:
    """Lost if red: characters, wherever a reader is not in the process that runs the turn."""
    provider = ScriptedProvider()
    engine = stack.node.services.engine
    engine._producer._models = FixedModels(provider)  # type: ignore[assignment]
    if len(stack._nodes) == 1:
        stack.another_node()
    nodes = stack._nodes[:2]
    http = stack.http()
    session = http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
    first = Visitor(stack, data.draw(st.sampled_from(nodes)), session)
    first.open()
    visitors = [first]
    posted = stack.node.run(
        stack.node.services.sessions.post(stack.caller, session, NewMessage(content="hello"))
    )
    said = ""
    try:
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["say", "say", "flush", "open", "read", "leave"]))
            if step == "say":
                piece = data.draw(PIECES)
                stack.node.run(provider.say(piece))
                said += piece
            elif step == "flush":
                running = list(engine.keeper.running.values())
                stack.node.run(engine.keeper._write(stack.tenant, running))
            elif step == "open":
                visitors.append(Visitor(stack, data.draw(st.sampled_from(nodes)), session))
                visitors[-1].open()
            else:
                visitor = data.draw(st.sampled_from(visitors))
                if step == "read":
                    visitor.read()
                else:
                    visitor.leave(data.draw(st.integers(0, 3)))
                    visitor.open()
    finally:  # an example may be given up in any of its draws
        stack.node.run(provider.finish())
        stack.node.run(engine.wait_idle())
        given_up = sys.exc_info()[0] is not None
        for visitor in visitors if given_up else ():
            visitor.close()
    for visitor in visitors:
        visitor.finish()
        assert visitor.text == said
        assert visitor.seqs == list(range(1, len(visitor.seqs) + 1))
        assert [end["turnId"] for end in visitor.ends] == [posted["turnId"]]
        assert visitor.ends[0]["text"] == said
    assert stack.node.services.hub.feeds == {}  # nothing is kept of readers that have left
    assert stack.node.services.hub.live == {}


def start_session(stack: Stack) -> tuple[HttpClient, str]:
    http = stack.http()
    return http, http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]


def test_message_posted_to_one_gateway_streams_from_another(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: streaming, as soon as there is a second process."""
    http, session = start_session(stack)
    other = HttpClient(make_gateway().base, stack.key)
    slow = Reply(pieces=["one ", "two ", "three"], hold_at=2)
    provider.script(slow)
    early = other.stream("GET", f"/v1/sessions/{session}/events")
    early.read_until("connected")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert slow.held.wait(10)
    late = other.stream("GET", f"/v1/sessions/{session}/events")
    for stream in (early, late):  # while the turn still runs, its text is there
        seen = stream.read_until("message_delta")
        assert text_of(seen) in ("one ", "one two ")
    slow.gate.set()
    for stream in (early, late):
        end = stream.read_until("message_completed")[-1]
        assert end.data["text"] == "one two three"
        stream.close()


def test_reader_in_mid_turn_gets_the_turn_from_its_start(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the first half of an answer, for whoever opens the page late."""
    http, session = start_session(stack)
    http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "before"}).rest()
    slow = Reply(pieces=["one ", "two ", "three"], hold_at=2)
    provider.script(slow)
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert slow.held.wait(10)
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    seen = stream.read_until("message_delta")
    assert [event.name for event in seen] == ["connected", "turn_started", "message_delta"]
    slow.gate.set()
    seen += stream.read_until("message_completed")
    assert text_of(seen) == "one two three"
    stream.close()


def test_stream_stays_open_across_turns(stack: Stack) -> None:
    """Lost if red: the second answer."""
    http, session = start_session(stack)
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    for n in range(3):
        http.call("POST", f"/v1/sessions/{session}/messages", {"content": f"m{n}"})
        events = stream.read_until("message_completed")
        assert text_of(events) == f"echo: m{n}"
        deltas = [event.data["seq"] for event in events if event.name == "message_delta"]
        assert deltas == list(range(1, len(deltas) + 1))
    stream.close()


def test_expired_id_gets_the_finished_message(stack: Stack) -> None:
    """Lost if red: an error, or nothing, for who comes back after the log has forgotten."""
    http, session = start_session(stack)
    whole = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "a b"}).rest()
    http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "c d"}).rest()
    delta = next(event for event in whole if event.name == "message_delta")
    stack.database.rows("UPDATE pal.session_events SET created_at = now() - interval '1 day'")
    stack.database.rows("UPDATE pal.turns SET ended_at = now() - interval '1 day'")
    assert stack.node.run(stack.node.services.purge()) > 0
    assert stack.database.one("SELECT count(*) FROM pal.session_events") == 0
    for last_id, text in ((delta.id, "echo: a b"), (whole[0].id, "echo: e f")):
        stream = http.stream(
            "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": last_id}
        )
        end = stream.read_until("message_completed")[-1]
        assert end.data["text"] == text
        http.call("POST", f"/v1/sessions/{session}/messages", {"content": "e f"})
        assert text_of(stream.read_until("message_completed")) == "echo: e f"
        stream.close()
        resumed = http.stream(
            "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": end.id}
        )
        assert text_of(resumed.read_until("message_completed")) == "echo: e f"
        resumed.close()


def test_purge_spares_what_can_still_be_resumed(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a long turn's beginning, while it still runs, or a turn that just ended."""
    http, session = start_session(stack)
    slow = Reply(pieces=["one ", "two"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    stack.database.rows("UPDATE pal.session_events SET created_at = now() - interval '1 day'")
    stack.node.run(stack.node.services.purge())
    late = http.stream("GET", f"/v1/sessions/{session}/events")
    late.read_until("turn_started")
    slow.gate.set()
    assert text_of(late.read_until("message_completed")) == "one two"
    late.close()
    stream.rest()
    stack.database.rows("UPDATE pal.session_events SET created_at = now() - interval '1 day'")
    kept = stack.database.one(
        "SELECT count(*) FROM pal.session_events WHERE kind <> 'user_message'"
    )
    stack.node.run(stack.node.services.purge())
    assert (
        stack.database.one("SELECT count(*) FROM pal.session_events WHERE kind <> 'user_message'")
        == kept
    )


def test_id_from_another_log_starts_at_the_end(stack: Stack) -> None:
    """Lost if red: a client that waits for ever because its database was restored."""
    http, session = start_session(stack)
    stream = http.stream(
        "GET", f"/v1/sessions/{session}/events", headers={"Last-Event-ID": "999999"}
    )
    stream.read_until("connected")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert text_of(stream.read_until("message_completed")) == "echo: hello"
    stream.close()


def test_provider_attempt_failed_is_told_and_the_next_one_answers(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: every answer while the first vendor of the chain is down."""
    stack = make_stack(providers=(("openai", "first"), ("openai", "second")))
    http, session = start_session(stack)
    provider.script(Reply(status=503))
    events = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}).rest()
    failed = next(event for event in events if event.name == "provider_attempt_failed")
    assert failed.data["model"] == "first"
    assert text_of(events) == "echo: hello"
    assert events[-1].name == "message_completed"


def test_news_that_comes_while_the_log_is_read_is_read_too(stack: Stack) -> None:
    """Lost if red: an event, until the next one comes, whenever two are written at once."""
    _, session = start_session(stack)
    other, hub = stack.another_node(), stack.node.services.hub

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    other.services.sessions.dispatch = nowhere
    caller = stack.caller
    visitor = Visitor(stack, stack.node, session)
    visitor.open()
    visitor.read()
    reading, go_on = asyncio.Event(), asyncio.Event()
    real = hub._read

    async def slow(feed: Any, *, after: int) -> Any:
        rows = await real(feed, after=after)
        if rows:
            reading.set()
            await go_on.wait()
        return rows

    hub._read = slow  # type: ignore[method-assign]

    def post(content: str) -> None:
        other.run(other.services.sessions.post(caller, session, NewMessage(content=content)))

    async def woken(seq: int) -> None:
        async with asyncio.timeout(10):
            await reading.wait()
            while hub.feeds[session].woken < seq:
                await asyncio.sleep(0.01)
            go_on.set()

    async def both() -> list[str]:
        assert visitor._opened is not None
        seen: list[str] = []
        async with asyncio.timeout(10):
            while len(seen) < 2:
                batch = await anext(visitor._opened[1])
                seen += [json.loads(one.data)["content"] for one in batch if one.name]
        return seen

    post("first")
    post("second")
    stack.node.run(woken(2))
    assert stack.node.run(both()) == ["first", "second"]
    visitor.close()


def test_reading_the_log_is_tried_again_after_a_fault(stack: Stack) -> None:
    """Lost if red: the end of a turn, for good, when the database was away for a moment."""
    http, session = start_session(stack)
    hub = stack.node.services.hub
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    stream.read_until("connected")
    real, faults = hub._read, [Unavailable("away"), Unavailable("away")]

    async def flaky(feed: Any, *, after: int) -> Any:
        if faults:
            raise faults.pop()
        return await real(feed, after=after)

    hub._read = flaky  # type: ignore[method-assign]
    other, caller = stack.another_node(), stack.caller

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    other.services.sessions.dispatch = nowhere
    other.run(other.services.sessions.post(caller, session, NewMessage(content="hello")))
    assert stream.read_until("user_message")[-1].data["content"] == "hello"
    assert not faults
    stream.close()


def test_two_turns_of_one_session_in_one_keeper_are_told_apart(stack: Stack) -> None:
    """Lost if red: the fence, where a turn was cut and taken up again in the same process."""
    _, session = start_session(stack)
    services, caller = stack.node.services, stack.caller

    async def claim_twice() -> list[tuple[str, bool, bool]]:
        claimed = []
        for _ in range(2):
            services.engine.draining = True
            async with services.db.tenant(caller.tenant_id) as tx:
                await store.lock_head(tx, session)
                if claimed:
                    cut = await store.cut_turn(
                        tx, session_id=session, new_turn=new_id("tur"), error="cut"
                    )
                    assert cut is not None
                else:
                    await store.accept_message(
                        tx,
                        session_id=session,
                        message_id=new_id("msg"),
                        new_turn=new_id("tur"),
                        content="hello",
                        attachments=None,
                        hints=None,
                        event='{"turnId":""}',
                    )
            async with services.db.tenant(caller.tenant_id) as tx:
                await store.lock_head(tx, session)
                turn = await store.claim_turn(
                    tx, tenant_id=caller.tenant_id, session_id=session, lease=0.0
                )
                assert turn is not None
                claimed.append(turn)
        given = [
            PendingText(
                session_id=session,
                turn_id=turn.turn_id,
                generation=turn.generation,
                start=0,
                text="x",
            )
            for turn in claimed
        ]
        async with services.db.tenant(caller.tenant_id) as tx:
            written = await store.write_deltas(tx, given, lease=60)
        told = {one.turn_id: one for one in written}
        return [
            (turn.turn_id, told[turn.turn_id].written, told[turn.turn_id].stale) for turn in claimed
        ]

    told = stack.node.run(claim_twice())
    assert [(written, stale) for _, written, stale in told] == [(False, True), (True, False)]
