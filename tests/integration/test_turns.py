"""The turn queue: one turn at a time, nothing accepted is lost, a late runner writes nothing."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chalicelib.errors import Conflict
from chalicelib.ids import new_id
from chalicelib.sessions import store
from chalicelib.sessions.journal import append_events
from chalicelib.sessions.keeper import RunningTurn
from chalicelib.sessions.lifecycle import NewMessage
from chalicelib.sessions.rows import PendingText, TurnEnd
from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply
from tests.support.agents import sent
from tests.support.http import HttpClient, text_of
from tests.support.process import GatewayProcess
from tests.support.stack import Node, Stack


def start_session(stack: Stack) -> tuple[HttpClient, str]:
    http = stack.http()
    return http, http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]


def post(http: HttpClient, session: str, content: str, **more: object) -> dict[str, str]:
    reply = http.call("POST", f"/v1/sessions/{session}/messages", {"content": content, **more})
    assert reply.status == 202, reply.body
    answer: dict[str, str] = reply.json
    return answer


def transcript(http: HttpClient, session: str) -> list[tuple[str, str]]:
    body = http.call("GET", f"/v1/sessions/{session}").json
    return [(one["role"], one["content"]) for one in body["messages"]]


def expire_lease(stack: Stack) -> None:
    stack.database.rows(
        "UPDATE pal.session_heads SET lease_until = now() - interval '1 second'"
        " WHERE running_turn IS NOT NULL"
    )


def test_messages_in_mid_turn_are_batched_into_the_next(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: what people say while the agent is talking."""
    http, session = start_session(stack)
    slow = Reply(pieces=["first"], hold_at=0)
    provider.script(slow)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    first = post(http, session, "one")
    assert slow.held.wait(10)
    second, third = post(http, session, "two"), post(http, session, "three", turnHint="be brief")
    assert second["turnId"] == third["turnId"] != first["turnId"]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "processing"
    slow.gate.set()
    events.read_until("message_completed")
    seen = events.read_until("message_completed")
    events.close()
    assert {one.data["turnId"] for one in seen} == {second["turnId"]}
    assert transcript(http, session) == [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("user", "three"),
        ("assistant", "echo: two\n\nthree\n\nbe brief"),
    ]
    assert sent(provider.requests[-1].body) == [
        ("user", "one"),
        ("assistant", "first"),
        # one message to the model, since vendors refuse two of a role in a row (PRV-10)
        ("user", "two\n\nthree\n\nbe brief"),
    ]


def test_two_messages_at_once_run_one_turn_at_a_time(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """SES-1. Lost if red: a reply, or a history in which two answers overwrite each other."""
    running, most = 0, 0
    lock = threading.Lock()

    def answer(recorded: Recorded) -> Reply:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

        def done() -> None:
            nonlocal running
            reply.finished.wait(10)
            with lock:
                running -= 1

        reply = Reply(first_ms=10)
        threading.Thread(target=done, daemon=True).start()
        return reply

    provider.default(answer)
    other_http = HttpClient(make_gateway().base, stack.key)
    http = stack.http()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            session = http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
            most = 0
            streams = pool.map(
                lambda pair, on=session: (
                    pair[0]
                    .stream("POST", f"/v1/sessions/{on}/messages", {"content": pair[1]})
                    .rest()
                ),
                [(http, "A"), (other_http, "B")],
            )
            ends = [events[-1] for events in streams]
            assert [end.name for end in ends] == ["message_completed"] * 2
            assert most == 1
            said = transcript(http, session)
            users = [content for role, content in said if role == "user"]
            assert sorted(users) == ["A", "B"]
            # in one turn of two messages, or in two turns: but never interleaved
            roles = [role for role, _ in said]
            assert roles in (["user", "assistant"] * 2, ["user", "user", "assistant"])


def test_full_history_goes_to_the_model_each_turn(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: what was said two messages ago."""
    http, session = start_session(stack)
    for n in range(4):
        http.stream("POST", f"/v1/sessions/{session}/messages", {"content": f"m{n}"}).rest()
    contents = [content for _, content in sent(provider.requests[-1].body)]
    assert contents == ["m0", "echo: m0", "m1", "echo: m1", "m2", "echo: m2", "m3"]


def test_turn_goes_on_when_its_caller_leaves(stack: Stack, provider: FakeOpenAI) -> None:
    """SES-4, STR-5. Lost if red: the answer to everyone who closes the page too soon."""
    http, session = start_session(stack)
    slow = Reply(pieces=["all ", "of ", "it"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    stream.close()
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    slow.gate.set()
    assert events.read_until("message_completed")[-1].data["text"] == "all of it"
    events.close()
    assert transcript(http, session) == [("user", "hello"), ("assistant", "all of it")]


def test_stopped_session_completes_what_it_had_accepted(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: answers to messages that had been accepted with a 202."""
    http, session = start_session(stack)
    slow = Reply(pieces=["one"], hold_at=0)
    provider.script(slow)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    post(http, session, "first")
    assert slow.held.wait(10)
    post(http, session, "queued")
    assert http.call("POST", f"/v1/sessions/{session}/stop").status == 200
    slow.gate.set()
    events.read_until("message_completed")
    events.read_until("message_completed")
    events.close()
    assert [content for _, content in transcript(http, session)] == [
        "first",
        "one",
        "queued",
        "echo: queued",
    ]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "stopped"


def test_deleted_session_takes_its_running_turn_along(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a deleted conversation that comes back with its last answer."""
    http, session = start_session(stack)
    slow = Reply(pieces=["never"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    assert http.call("DELETE", f"/v1/sessions/{session}").status == 204
    ends = [
        event for event in stream.rest() if event.name in ("message_error", "message_completed")
    ]
    assert [(end.name, end.data["code"]) for end in ends] == [("message_error", "session_deleted")]
    assert slow.gone.wait(10)  # the provider is not left talking to nobody
    slow.gate.set()
    stack.node.run(stack.node.services.engine.wait_idle())
    assert stack.database.one("SELECT count(*) FROM pal.messages") == 0


def test_cancel_ends_the_turn_and_stores_nothing_partial(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the way to stop an answer that goes wrong."""
    http, session = start_session(stack)
    slow = Reply(pieces=["half ", "more"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    answer = http.call("POST", f"/v1/sessions/{session}/cancel")
    assert (answer.status, answer.json["status"]) == (200, "cancelling")
    end = stream.rest()[-1]
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")
    assert transcript(http, session) == [("user", "hello")]
    assert http.call("POST", f"/v1/sessions/{session}/cancel").json == {"status": "active"}
    events = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "next"}).rest()
    assert events[-1].data["text"] == "echo: hello\n\nnext"


def test_cancel_reaches_a_turn_of_another_process(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: cancel, wherever more than one process runs."""
    http, session = start_session(stack)
    slow = Reply(pieces=["half ", "more"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    other = HttpClient(make_gateway().base, stack.key)
    other.call("POST", f"/v1/sessions/{session}/cancel")
    end = stream.rest()[-1]
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")


def test_cancel_at_the_last_moment_holds(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a cancel that was acknowledged, and then the whole answer all the same."""
    http, session = start_session(stack)
    slow = Reply(pieces=["all ", "of it"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    # acknowledged in the database, and not heard of by the runner before its commit
    stack.database.rows("UPDATE pal.session_heads SET cancel_requested = true")
    slow.gate.set()
    end = stream.rest()[-1]
    assert (end.name, end.data["code"]) == ("message_error", "cancelled")
    assert transcript(http, session) == [("user", "hello")]
    events = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "next"}).rest()
    assert events[-1].data["text"] == "echo: hello\n\nnext"


def test_transcript_is_in_the_order_of_the_events(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the order in which people said things."""
    http, session = start_session(stack)
    slow = Reply(pieces=["first"], hold_at=0)
    provider.script(slow)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    post(http, session, "opening")
    assert slow.held.wait(10)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: post(http, session, f"m{n}"), range(24)))
    slow.gate.set()
    seen = events.read_until("message_completed") + events.read_until("message_completed")
    events.close()
    told = [event.data["content"] for event in seen if event.name == "user_message"]
    kept = [content for role, content in transcript(http, session) if role == "user"]
    assert kept == told
    said = [content for role, content in sent(provider.requests[-1].body) if role == "user"]
    assert "\n\n".join(said) == "\n\n".join(told)


def test_cancel_before_the_claim_holds_for_that_turn(stack: Stack) -> None:
    """Lost if red: a cancel that comes a moment after the message it is meant for."""
    http, session = start_session(stack)
    stack.node.services.engine.draining = True  # nothing is claimed
    node = stack.another_node(turns_queue_url="")
    caller = stack.caller

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    node.services.sessions.dispatch = nowhere
    node.run(node.services.sessions.post(caller, session, NewMessage(content="hello")))
    assert http.call("POST", f"/v1/sessions/{session}/cancel").json["status"] == "cancelling"
    stack.node.services.engine.draining = False
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    stack.node.sweep()
    assert events.read_until("message_error")[-1].data["code"] == "cancelled"
    events.close()


def test_lost_dispatch_is_found_by_the_sweep(stack: Stack) -> None:
    """Lost if red: an accepted message, when the process dies between storing and running it."""
    http, session = start_session(stack)

    async def lost(tenant_id: str, session_id: str) -> None:
        raise RuntimeError("no queue today")

    local, stack.node.services.sessions.dispatch = stack.node.services.sessions.dispatch, lost
    post(http, session, "hello")
    assert transcript(http, session) == [("user", "hello")]
    stack.node.services.sessions.dispatch = local
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    assert stack.node.sweep() == 1
    assert events.read_until("message_completed")[-1].data["text"] == "echo: hello"
    events.close()


class Frozen:
    """A node whose turn is at work and whose keeper is held still, as a frozen process's is."""

    def __init__(self, stack: Stack, provider: FakeOpenAI, session: str, content: str) -> None:
        self.node: Node = stack.another_node()
        self.reply = Reply(pieces=["late ", "answer"], hold_at=1)
        provider.script(self.reply)
        keeper = self.node.services.engine.keeper
        keeper.add = lambda turn: keeper.running.update({turn.claimed.turn_id: turn})  # type: ignore[method-assign]
        caller = stack.caller
        self.node.run(
            self.node.services.sessions.post(caller, session, NewMessage(content=content))
        )
        assert self.reply.held.wait(10)

    def wake(self) -> None:
        """Let it go on, to its end."""
        self.reply.gate.set()
        self.node.run(self.node.services.engine.wait_idle())


def retaken_and_silent(stack: Stack, provider: FakeOpenAI, session: str) -> Frozen:
    """A turn that lapsed once and whose second run has gone silent as well: the first runner."""
    first = Frozen(stack, provider, session, "hello")
    expire_lease(stack)
    provider.script(Reply(pieces=["second ", "try"], hold_at=1))
    keeper = stack.node.services.engine.keeper
    add, keeper.add = keeper.add, lambda turn: keeper.running.update({turn.claimed.turn_id: turn})  # type: ignore[method-assign]
    stack.node.sweep()
    provider.wait_requests(2)
    keeper.add = add  # type: ignore[method-assign]
    return first


def test_lapsed_turn_is_taken_up_once_and_its_late_runner_writes_nothing(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """SES-2. Lost if red: every message after a killed worker, or two answers to one message."""
    http, session = start_session(stack)
    frozen = Frozen(stack, provider, session, "hello")
    cut = stack.database.one("SELECT running_turn FROM pal.session_heads")
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    assert (
        http.call("POST", f"/v1/sessions/{session}/messages", {"content": "still there?"}).status
        == 202
    )
    expire_lease(stack)
    stack.node.sweep()
    seen = events.read_until("message_error")
    assert (seen[-1].data["turnId"], seen[-1].data["code"]) == (cut, "interrupted")
    seen = events.read_until("message_completed")
    started = next(event for event in seen if event.name == "turn_started")
    assert started.data["resumesTurnId"] == cut
    assert seen[-1].data["turnId"] != cut
    before = stack.database.rows("SELECT * FROM pal.session_heads")
    log = stack.database.one("SELECT count(*) FROM pal.session_events")
    frozen.wake()
    assert stack.database.rows("SELECT * FROM pal.session_heads") == before
    assert stack.database.one("SELECT count(*) FROM pal.session_events") == log
    events.close()
    assert transcript(http, session) == [
        ("user", "hello"),
        ("user", "still there?"),
        ("assistant", "echo: hello\n\nstill there?"),
    ]


def test_second_lapse_interrupts_until_the_next_message(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a poison message that is run for ever, or cut messages no one answers."""
    http, session = start_session(stack)
    first = retaken_and_silent(stack, provider, session)
    expire_lease(stack)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    stack.node.sweep()
    assert events.read_until("message_error")[-1].data["code"] == "interrupted"
    events.close()
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "interrupted"
    assert stack.node.sweep() == 0
    final = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "please"}).rest()
    assert final[-1].data["text"] == "echo: hello\n\nplease"
    assert sent(provider.requests[-1].body) == [("user", "hello\n\nplease")]
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    first.wake()
    assert transcript(http, session) == [
        ("user", "hello"),
        ("user", "please"),
        ("assistant", "echo: hello\n\nplease"),
    ]


def test_every_write_of_a_stale_runner_changes_nothing(stack: Stack) -> None:
    """Lost if red: the fence between a runner that lost its lease and the one that took over."""
    _, session = start_session(stack)
    services, caller = stack.node.services, stack.caller

    async def walk() -> None:
        async with services.db.tenant(caller.tenant_id) as tx:
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
            stale = await store.claim_turn(
                tx, tenant_id=caller.tenant_id, session_id=session, lease=0.0
            )
        assert stale is not None
        async with services.db.tenant(caller.tenant_id) as tx:
            await store.lock_head(tx, session)
            cut = await store.cut_turn(tx, session_id=session, new_turn=new_id("tur"), error="cut")
        assert cut is not None
        async with services.db.tenant(caller.tenant_id) as tx:
            await store.lock_head(tx, session)
            fresh = await store.claim_turn(
                tx, tenant_id=caller.tenant_id, session_id=session, lease=60
            )
        assert fresh is not None
        assert fresh.generation > stale.generation
        text = PendingText(
            session_id=session,
            turn_id=stale.turn_id,
            generation=stale.generation,
            start=0,
            text="late",
        )
        end = TurnEnd(
            status="completed",
            kind="message_completed",
            event="{}",
            appended="[]",
            message_id=new_id("msg"),
            text="late",
        )
        async with services.db.tenant(caller.tenant_id) as tx:
            written = await store.write_deltas(tx, [text], lease=60)
            assert (written[0].written, written[0].stale) == (False, True)
            assert await store.end_turn(tx, stale, end) is None
            assert await append_events(tx, stale, [("x", "{}")], lease=60) is None

    stack.node.run(walk())
    assert stack.database.one("SELECT count(*) FROM pal.messages WHERE content = 'late'") == 0
    assert stack.database.one("SELECT count(*) FROM pal.session_events WHERE text = 'late'") == 0


def test_drain_gives_leases_back_at_once(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: half a minute of silence at every deploy."""
    http, session = start_session(stack)
    slow = Reply(pieces=["never ", "ends"], hold_at=1)
    provider.script(slow)
    other = stack.another_node()
    caller = stack.caller
    other.run(other.services.sessions.post(caller, session, NewMessage(content="hello")))
    assert slow.held.wait(10)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    other.run(other.services.engine.drain(0.0))
    assert events.read_until("message_error")[-1].data["code"] == "interrupted"
    stack.node.sweep()
    assert events.read_until("message_completed")[-1].data["text"] == "echo: hello"
    events.close()
    slow.gate.set()
    stack.node.services.engine.draining = True
    refused = http.call("POST", f"/v1/sessions/{session}/messages", {"content": "more"})
    assert refused.status == 503
    assert refused.headers["retry-after"]


def test_turn_that_takes_too_long_ends(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: a session, whenever its vendor never finishes."""
    stack = make_stack(turn_timeout=0.3)
    http, session = start_session(stack)
    provider.script(Reply(hang=True))
    events = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}).rest()
    assert events[-1].data["code"] == "turn_timeout"
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"


def test_long_turn_keeps_its_lease(make_stack: Callable[..., Stack], provider: FakeOpenAI) -> None:
    """Lost if red: every turn longer than the lease."""
    stack = make_stack(turn_lease=0.6)
    http, session = start_session(stack)
    slow = Reply(pieces=["slow"], hold_at=0)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert slow.held.wait(10)
    first = stack.database.one("SELECT lease_until FROM pal.session_heads")
    keeper = stack.node.services.engine.keeper
    flushed = keeper.flushes
    threading.Event().wait(1.3)  # twice the lease, of silence
    assert keeper.flushes > flushed
    assert stack.database.one("SELECT lease_until FROM pal.session_heads") > first  # type: ignore[operator]
    assert stack.node.sweep() == 0
    slow.gate.set()
    assert text_of(stream.rest()) == "slow"


def test_leases_outlive_a_fault_in_their_keeping(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: every turn of the process, when the logging of one of them broke."""
    stack = make_stack(turn_lease=0.6)
    http, session = start_session(stack)
    slow = Reply(pieces=["slow"], hold_at=0)
    provider.script(slow)
    keeper = stack.node.services.engine.keeper
    real, faults, kept = keeper._write, [RuntimeError("a fault of ours")], threading.Event()

    async def flaky(tenant_id: str, turns: list[RunningTurn]) -> None:
        if faults:
            raise faults.pop()
        await real(tenant_id, turns)
        kept.set()

    keeper._write = flaky  # type: ignore[method-assign]
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    assert kept.wait(10)
    assert not faults
    slow.gate.set()
    assert text_of(stream.rest()) == "slow"


def test_commit_is_tried_again_after_a_lost_connection(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a whole answer, for a database that was away for a second."""
    http, session = start_session(stack)
    slow = Reply(pieces=["kept"], hold_at=1)
    provider.script(slow)
    stream = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    stream.read_until("message_delta")
    database = stack.node.services.db
    real, failures = store.end_turn, [Conflict("x")]

    async def flaky(tx, turn, end):  # type: ignore[no-untyped-def]
        ended = await real(tx, turn, end)
        if failures:
            failures.pop()
            # the server ends the session of this very transaction, before its commit
            await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "end_turn", flaky)
        slow.gate.set()
        events = stream.rest()
    assert events[-1].data["text"] == "kept"
    assert not failures
    assert transcript(http, session) == [("user", "hello"), ("assistant", "kept")]
    assert database.transactions


def test_plain_turn_takes_three_transactions_and_one_behind_its_reply(stack: Stack) -> None:
    """Lost if red: the price of a turn."""
    http, session = start_session(stack)
    http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "warm"}).rest()
    services = stack.node.services
    stack.node.run(services.engine.wait_idle())
    before = services.db.transactions
    http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}).rest()
    stack.node.run(services.engine.wait_idle())
    assert services.db.transactions - before == 4


def test_message_that_came_before_the_second_lapse_takes_the_cut_ones_along(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the answer to a message that was accepted while a retaken turn was dying."""
    http, session = start_session(stack)
    first = retaken_and_silent(stack, provider, session)
    queued = post(http, session, "are you there?")
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    expire_lease(stack)
    stack.node.sweep()
    end = events.read_until("message_completed")[-1]
    events.close()
    assert end.data["turnId"] == queued["turnId"]
    assert transcript(http, session) == [
        ("user", "hello"),
        ("user", "are you there?"),
        ("assistant", "echo: hello\n\nare you there?"),
    ]
    first.wake()


def test_a_cancel_holds_though_its_runner_dies(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: an acknowledged cancel, whose turn would be run again from its start."""
    http, session = start_session(stack)
    hung = Reply(hang=True)
    provider.script(hung)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    post(http, session, "delete everything")
    assert hung.started.wait(10)
    # acknowledged by another process, and this one dies before it hears of it
    stack.database.rows("UPDATE pal.session_heads SET cancel_requested = true")
    other = stack.another_node()
    expire_lease(stack)
    other.sweep()
    events.read_until("message_error")
    (end,) = [one for one in events.read_until("message_error") if one.name == "message_error"]
    events.close()
    assert end.data["code"] == "cancelled"
    assert len(provider.requests) == 1
    assert http.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
    answered = http.stream("POST", f"/v1/sessions/{session}/messages", {"content": "hello"}).rest()
    assert answered[-1].name == "message_completed"
