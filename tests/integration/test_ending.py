"""The end of a session: sealed whole, promoted once, and nothing of it ever runs again."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.context.compaction import Compactor
from chalicelib.context.shapes import Tree
from chalicelib.context.tree_store import write_tree
from chalicelib.context.upkeep import Upkeep
from chalicelib.services import Services
from chalicelib.sessions.closing import Closing
from tests.fakes.openai_replies import Call
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import refused
from tests.support.http import HttpClient
from tests.support.sealing import (
    ANSWER,
    DECIDED,
    GIVEN_UP,
    OPEN_TOPIC,
    PROMOTED,
    TREE,
    Planted,
    end,
    ended,
    episodes,
    interrupt,
    plant,
    start,
)
from tests.support.stack import Stack
from tests.support.waiting import until

GATED = {"kind": "builtin", "name": "current_time", "approval": "always"}
EVENTS = "SELECT count(*) FROM pal.session_events WHERE kind = 'session_ended'"


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return stack.http()


def say(http: HttpClient, session: str, content: str) -> list[Any]:
    url = f"/v1/sessions/{session}/messages"
    return http.stream("POST", url, {"content": content}).rest()


def status(http: HttpClient, session: str) -> str:
    return str(http.call("GET", f"/v1/sessions/{session}").json["status"])


def settled(stack: Stack) -> None:
    stack.node.run(stack.node.services.engine.wait_idle())


def closing(stack: Stack, **changes: Any) -> Closing:
    services = stack.node.services
    return Closing(services.db, services.hub, send=services.sessions.send, **changes)


def test_what_came_of_a_session_outlives_it(stack: Stack, http: HttpClient) -> None:
    """Lost if red: decisions, outcomes, commitments and answers; or what was given up, as such."""
    session = start(http, userId="ann")
    plant(stack, session)
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    events.read_until("connected")
    assert ended(http, session) == len(PROMOTED)
    assert episodes(stack) == PROMOTED
    told = events.read_until("session_ended")[-1].data
    events.close()
    assert told == {"sessionId": session, "status": "ended", "promoted": len(PROMOTED)}
    assert status(http, session) == "ended"
    owner = "SELECT DISTINCT e.person_id = s.person_id, e.group_id FROM pal.memory_episodes e"
    assert stack.database.rows(owner + " JOIN pal.sessions s ON s.id = e.session_id") == [
        (True, None)
    ]


def test_ending_twice_is_ending_once(stack: Stack, http: HttpClient) -> None:
    """Lost if red: a memory that says everything twice, after one retry (no key is needed)."""
    session = start(http, userId="ann")
    plant(stack, session)
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: end(http, session), range(6)))
    expected = {"status": "ended", "promoted": len(PROMOTED)}
    assert [one.json for one in replies] == [expected] * 6
    keyed = [end(http, session, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [one.json for one in keyed] == [expected] * 2
    assert stack.database.one(EVENTS) == 1
    assert episodes(stack) == PROMOTED
    assert stack.database.one("SELECT count(*) FROM pal.memory_episodes") == len(PROMOTED)


def test_session_with_nothing_in_it_ends_as_well(stack: Stack, http: HttpClient) -> None:
    """Lost if red: the end of a session that no one said anything in, or of an older one."""
    fresh, old = start(http), start(http)
    stack.database.rows("DELETE FROM pal.session_states WHERE session_id = %s", old)
    assert [ended(http, fresh), ended(http, old), ended(http, old)] == [0, 0, 0]
    sealed = "SELECT count(*) FROM pal.session_states WHERE sealed_at IS NOT NULL"
    assert stack.database.one(sealed) == 2
    assert stack.database.one("SELECT count(*) FROM pal.memory_narratives") == 0


def test_end_waits_for_no_turn_and_cuts_none(
    stack: Stack, http: HttpClient, provider: FakeOpenAI
) -> None:
    """Lost if red: the answer to the last message, or a call that hangs while a model thinks."""
    session = start(http)
    held = Reply(pieces=["first"], hold_at=0)
    provider.script(held, Reply(pieces=["second"]))
    events = http.stream("GET", f"/v1/sessions/{session}/events")
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "one"})
    assert held.held.wait(10)
    reply = end(http, session)
    assert "cancel" in refused(reply, 409, "turn_running")["error"]
    assert reply.headers["retry-after"] == "1"
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "two"})
    refused(end(http, session), 409, "turn_running")
    held.gate.set()
    events.read_until("message_completed")
    events.read_until("message_completed")
    events.close()
    settled(stack)
    ended(http, session)
    messages = http.call("GET", f"/v1/sessions/{session}").json["messages"]
    assert [one["content"] for one in messages] == ["one", "first", "two", "second"]


def test_queued_turn_that_no_one_has_claimed_is_not_lost_to_an_end(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: a message that had its 202, in the moment before its turn begins."""
    session = start(http)

    async def nowhere(tenant_id: str, session_id: str) -> None:
        return None

    local, stack.node.services.sessions.dispatch = stack.node.services.sessions.dispatch, nowhere
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "one"})
    refused(end(http, session), 409, "turn_running")
    stack.node.services.sessions.dispatch = local
    stack.node.sweep()
    settled(stack)
    ended(http, session)


def test_stopped_session_can_be_ended(stack: Stack, http: HttpClient) -> None:
    """Lost if red: what came of every session that was stopped first."""
    session = start(http)
    plant(stack, session)
    assert http.call("POST", f"/v1/sessions/{session}/stop").status == 200
    assert ended(http, session) == len(PROMOTED)
    assert status(http, session) == "ended"
    refused(http.call("POST", f"/v1/sessions/{session}/stop"), 409, "session_ended")


def test_ending_supersedes_what_waits_for_approval(
    stack: Stack, http: HttpClient, provider: FakeOpenAI
) -> None:
    """Lost if red: a tool that runs in a session that is over."""
    made = http.call("POST", "/v1/agents", {"name": "clerk", "tools": [GATED]})
    assert made.status == 201
    provider.script(Reply(tool_calls=[Call("current_time", {})]))
    session = start(http, agentName="clerk")
    told = say(http, session, "what time is it?")
    asked = next(one.data for one in told if one.name == "approval_required")
    assert status(http, session) == "awaiting_approval"
    settled(stack)
    ended(http, session)
    decision = http.call("POST", f"/v1/approvals/{asked['approvalId']}", {"decision": "approve"})
    refused(decision, 409, "approval_superseded")
    assert status(http, session) == "ended"


def cut_twice(stack: Stack, http: HttpClient, provider: FakeOpenAI, session: str) -> list[Reply]:
    """Have a session interrupted: its message's turn goes silent and lapses, twice."""
    keeper = stack.node.services.engine.keeper
    keeper.add = lambda turn: keeper.running.update({turn.claimed.turn_id: turn})  # type: ignore[method-assign]
    held = [Reply(pieces=["late ", "answer"], hold_at=1) for _ in range(2)]
    provider.script(*held)
    http.call("POST", f"/v1/sessions/{session}/messages", {"content": "hello"})
    provider.wait_requests(1)
    interrupt(stack, session)
    provider.wait_requests(2)
    interrupt(stack, session)
    del keeper.add
    assert status(http, session) == "interrupted"
    return held


def test_interrupted_session_that_has_ended_never_runs_its_cut_turn(
    stack: Stack, http: HttpClient, provider: FakeOpenAI
) -> None:
    """Lost if red: an answer, and its tools, days after everyone has left."""
    session = start(http)
    held = cut_twice(stack, http, provider, session)
    ended(http, session)
    refused(http.call("POST", f"/v1/sessions/{session}/resume"), 409, "session_ended")
    assert stack.node.sweep() == 0
    for reply in held:
        reply.gate.set()
    settled(stack)
    assert len(provider.requests) == 2
    head = "SELECT status, queued_turn, cut_turn, running_turn FROM pal.session_heads"
    assert stack.database.rows(head) == [("ended", None, None, None)]
    left = "SELECT count(*) FROM pal.turns WHERE status IN ('queued', 'running')"
    assert stack.database.one(left) == 0


def state_of(stack: Stack, session: str) -> list[Any]:
    """All that is sealed of a session, and its transcript."""
    return [
        stack.database.rows(query, session)
        for query in (
            "SELECT to_jsonb(t) FROM pal.session_states t WHERE session_id = %s",
            "SELECT to_jsonb(t) FROM pal.session_nodes t WHERE session_id = %s ORDER BY number",
            "SELECT messages, summary FROM pal.sessions WHERE id = %s",
            "SELECT to_jsonb(t) FROM pal.messages t WHERE session_id = %s ORDER BY id",
            "SELECT to_jsonb(t) FROM pal.turns t WHERE session_id = %s ORDER BY ordinal",
            "SELECT to_jsonb(t) FROM pal.session_heads t WHERE session_id = %s",
        )
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        pytest.param("PUT", "pins", {"pins": ["new"]}, "session_ended", id="pins"),
        pytest.param("POST", "messages", {"content": "x"}, "session_ended", id="message"),
        pytest.param("POST", "resume", None, "session_ended", id="resume"),
        pytest.param("POST", "stop", None, "session_ended", id="stop"),
    ],
)
def test_what_has_ended_is_written_to_by_no_call(
    method: str, path: str, body: Any, code: str, stack: Stack, http: HttpClient
) -> None:
    """Lost if red: the seal; an audit that shows what was put there afterwards."""
    session = start(http)
    say(http, session, "hello")
    settled(stack)
    plant_behind_turns(stack, session)
    http.call("PUT", f"/v1/sessions/{session}/pins", {"pins": ["old"]})
    ended(http, session)
    before = state_of(stack, session)
    refused(http.call(method, f"/v1/sessions/{session}/{path}", body), 409, code)
    stack.node.sweep()
    settled(stack)
    assert state_of(stack, session) == before


def plant_behind_turns(stack: Stack, session: str) -> None:
    stack.database.rows("DELETE FROM pal.session_nodes WHERE session_id = %s", session)
    plant(stack, session)


async def write_late_tree(services: Services, tenant: str, session: str) -> object:
    async with services.db.tenant(tenant) as tx:
        return await write_tree(
            tx, session, Tree(), Tree(count=9), rendered="late", ordinal=9, lease="late"
        )


async def compact_late(services: Services, tenant: str, session: str) -> object:
    return await Compactor(services.db, services.hub).run(
        tenant_id=tenant,
        session_id=session,
        lease="late",
        provider=None,
        now=datetime.now(UTC),
        force=True,
    )


async def keep_late(services: Services, tenant: str, session: str) -> object:
    upkeep = Upkeep(
        services.db, services.models, Compactor(services.db, services.hub), by_model=False
    )
    await upkeep.run(tenant, session)
    await upkeep.settle(tenant, session)
    return False


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write_late_tree, id="tree"),
        pytest.param(compact_late, id="summary"),
        pytest.param(keep_late, id="upkeep"),
    ],
)
def test_late_work_behind_a_reply_writes_to_nothing_that_is_sealed(
    write: Callable[[Services, str, str], Coroutine[Any, Any, object]],
    stack: Stack,
    http: HttpClient,
) -> None:
    """Lost if red: a sealed tree or history that a slow model's answer still changes."""
    session = start(http)
    say(http, session, "hello")
    settled(stack)
    plant_behind_turns(stack, session)
    said = [
        {"id": f"msg_{place}", "role": role, "content": "x" * 100, "turnId": f"tur_{place // 2}"}
        for place, role in enumerate(("user", "assistant") * 40)
    ]
    stack.database.rows("UPDATE pal.sessions SET messages = %s::jsonb", json.dumps(said))
    ended(http, session)
    # as if its lease had outlived the end, and a turn had not been read
    stack.database.rows(
        "UPDATE pal.session_states SET tree_ordinal = 0, worker = 'late',"
        " work_until = now() + interval '1 hour'"
    )
    before = state_of(stack, session)
    services = stack.node.services
    assert stack.node.run(write(services, stack.tenant, session)) is False
    assert state_of(stack, session) == before


def test_what_is_sealed_can_be_read(stack: Stack, http: HttpClient) -> None:
    """Lost if red: the audit of a session, for which its state is kept."""
    session = start(http)
    say(http, session, "hello")
    settled(stack)
    plant_behind_turns(stack, session)
    http.call("PUT", f"/v1/sessions/{session}/pins", {"pins": ["old"]})
    ended(http, session)
    url = f"/v1/sessions/{session}"
    assert http.call("GET", f"{url}/pins").json == {"pins": ["old"]}
    tree = http.call("GET", f"{url}/tree").json
    assert [one["text"] for one in tree["nodes"]] == [one.text for one in TREE]
    assert len(http.call("GET", f"{url}/messages").json["messages"]) == 2
    assert http.call("GET", f"{url}/tool-calls/x").status == 404


def test_next_session_knows_what_came_of_it_and_not_how(
    make_stack: Callable[..., Stack], provider: FakeOpenAI
) -> None:
    """Lost if red: the boundary. Yesterday's half-finished plan, taken for today's."""
    stack = make_stack(memory_distill=True, embeddings="off")
    http = stack.http()
    session = start(http, userId="ann")
    http.call("PUT", f"/v1/sessions/{session}/pins", {"pins": ["pinned yesterday"]})
    plant(stack, session)
    stack.database.rows("UPDATE pal.session_states SET tree = %s", f"- {OPEN_TOPIC}")
    assert ended(http, session) == len(PROMOTED)
    again = start(http, userId="ann")
    say(http, again, "Can we continue where we left off?")
    asked = [one for one in provider.requests if b"where we left off" in one.raw]
    prompt = asked[0].raw.decode()
    assert DECIDED in prompt
    assert ANSWER in prompt
    for gone in (OPEN_TOPIC, GIVEN_UP, "Is there parking", "pinned yesterday"):
        assert gone not in prompt, gone
    say(http, start(http, userId="ben"), "Can we continue where we left off?")
    assert DECIDED not in provider.requests[-1].raw.decode()


def make_idle(stack: Stack, *sessions: str) -> None:
    for session in sessions:
        stack.database.rows(
            "UPDATE pal.session_states SET touched_at = now() - interval '2 hours'"
            " WHERE session_id = %s",
            session,
        )
        stack.database.rows(
            "UPDATE pal.sessions SET updated_at = now() - interval '2 hours' WHERE id = %s", session
        )
        stack.database.rows(
            "UPDATE pal.session_heads SET queued_at = now() - interval '2 hours'"
            " WHERE session_id = %s",
            session,
        )


def test_idle_sessions_end_and_others_do_not(stack: Stack, http: HttpClient) -> None:
    """Lost if red: what came of sessions that no one ends; or a session that is being used."""
    idle, stopped, used, late = (start(http, userId="ann") for _ in range(4))
    other = start(stack.http(stack.other_key))
    for session in (idle, used):
        plant(stack, session)
    say(http, late, "hello")
    http.call("POST", f"/v1/sessions/{stopped}/stop")
    settled(stack)
    make_idle(stack, idle, stopped, other)
    # what is kept behind a reply was not, and its message is new
    touched = "SELECT touched_at > now() - interval '1 minute' FROM pal.session_states"
    stack.database.rows(
        "UPDATE pal.session_states SET touched_at = now() - interval '2 hours'"
        " WHERE session_id = %s",
        late,
    )
    assert stack.node.run(stack.node.services.closing.end_idle(3600)) == 3
    assert [status(http, one) for one in (idle, stopped, used, late)] == [
        "ended",
        "ended",
        "active",
        "active",
    ]
    assert status(stack.http(stack.other_key), other) == "ended"
    assert stack.database.one(touched + " WHERE session_id = %s", late) is True
    assert stack.node.run(stack.node.services.closing.end_idle(3600)) == 0
    assert episodes(stack) == PROMOTED


def test_session_that_waits_for_a_person_is_not_idle(stack: Stack, http: HttpClient) -> None:
    """Lost if red: a call that someone was about to approve. Its approval has a time of its own."""
    session = start(http)
    stack.database.rows(
        "UPDATE pal.session_heads SET status = 'awaiting_approval' WHERE session_id = %s", session
    )
    make_idle(stack, session)
    assert stack.node.run(stack.node.services.closing.end_idle(3600)) == 0
    stack.database.rows(
        "UPDATE pal.session_heads SET status = 'active' WHERE session_id = %s", session
    )
    assert stack.node.run(stack.node.services.closing.end_idle(3600)) == 1


def test_message_that_comes_while_an_idle_session_is_looked_at_keeps_it(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: a session that ends under the hands of the one who comes back to it."""
    session = start(http)
    make_idle(stack, session)

    async def settle(tenant_id: str, session_id: str) -> None:
        stack.database.rows(
            "UPDATE pal.session_heads SET queued_at = now() WHERE session_id = %s", session_id
        )

    assert stack.node.run(closing(stack, settle=settle).end_idle(3600)) == 0
    assert status(http, session) == "active"


def test_one_session_that_cannot_end_keeps_no_other_open(stack: Stack, http: HttpClient) -> None:
    """Lost if red: the policy, for everyone, because of one broken session."""
    first, second = start(http), start(http)
    plant(stack, first, Planted(kind="decision", text=DECIDED, status="resolved"))
    make_idle(stack, first, second)
    stack.database.rows("ALTER TABLE pal.memory_episodes RENAME TO gone")
    assert stack.node.run(stack.node.services.closing.end_idle(3600)) == 1
    assert [status(http, one) for one in (first, second)] == ["active", "ended"]


def test_end_that_fails_half_way_has_done_nothing(stack: Stack, http: HttpClient) -> None:
    """Lost if red: a session sealed without its memory, or a memory of one that goes on."""
    session = start(http, userId="ann")
    plant(stack, session)
    before = state_of(stack, session)
    stack.database.rows("ALTER TABLE pal.memory_narratives RENAME TO gone")
    assert end(http, session).status == 500
    after = state_of(stack, session)
    assert episodes(stack) == set()
    assert after[1:] == before[1:]
    assert after[0][0][0]["sealed_at"] is None
    stack.database.rows("ALTER TABLE pal.gone RENAME TO memory_narratives")
    assert ended(http, session) == len(PROMOTED)


def test_tree_is_brought_up_to_date_first_and_a_fault_there_does_not_hinder(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: the decision of the last message; or every end while a provider is down."""
    first, second = start(http), start(http)
    asked = []

    async def settle(tenant_id: str, session_id: str) -> None:
        asked.append(session_id)
        if session_id == second:
            raise RuntimeError("the provider is down")
        plant(stack, session_id)

    working, caller = closing(stack, settle=settle), stack.caller
    for _ in range(2):
        answer = stack.node.run(working.end(caller, first))
        assert answer == {"status": "ended", "promoted": len(PROMOTED)}
    assert stack.node.run(working.end(caller, second)) == {"status": "ended", "promoted": 0}
    assert asked == [first, second]  # what has ended is left alone


@pytest.mark.parametrize("saving", [False, True], ids=["as-usual", "auto-save"])
def test_end_has_what_was_said_read_and_is_not_held_up_by_it(
    saving: bool, stack: Stack, http: HttpClient
) -> None:
    """Lost if red: someone's narrative, or facts that an agent wants at once; or the answer."""
    handed: list[tuple[str, Sequence[str]]] = []

    async def retell(tenants: Sequence[str]) -> None:
        handed.append(("retell", tenants))
        raise RuntimeError("no queue today")

    async def auto_save(tenants: Sequence[str]) -> None:
        handed.append(("auto save", tenants))
        raise RuntimeError("no queue today")

    agent = {"name": "clerk", "memory": {"autoSave": saving}}
    assert http.call("POST", "/v1/agents", agent).status == 201
    session = start(http, agentName="clerk")
    working = closing(stack, retell=retell, auto_save=auto_save)
    for _ in range(2):
        assert stack.node.run(working.end(stack.caller, session))["status"] == "ended"
    assert handed == [("auto save" if saving else "retell", [stack.tenant])]
    stack.node.run(working.close())


def test_pass_that_takes_its_time_ends_with_its_process(stack: Stack, http: HttpClient) -> None:
    """Lost if red: a process that cannot stop, or work that goes on after it has."""
    ends: list[str] = []

    async def retell(tenants: Sequence[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    working = closing(stack, retell=retell)
    session = start(http)
    assert stack.node.run(working.end(stack.caller, session))["status"] == "ended"
    assert ends == []
    stack.node.run(working.close())
    assert ends == ["cancelled"]


@pytest.mark.parametrize(
    ("word", "promoted", "waiting"),
    [
        pytest.param("auto", 4, 0, id="auto"),
        pytest.param("approve", 3, 1, id="approve"),
        pytest.param("never", 3, 0, id="never"),
    ],
)
def test_policy_says_what_is_promoted(
    word: str, promoted: int, waiting: int, stack: Stack, http: HttpClient
) -> None:
    """Lost if red: a tenant's own rule of what becomes memory."""
    stack.database.rows(
        "INSERT INTO pal.tenant_policies (tenant_id, memory) VALUES (%s, %s::jsonb)",
        stack.tenant,
        f'{{"promote": {{"decision": "{word}"}}}}',
    )
    session = start(http, userId="ann")
    plant(stack, session)
    assert ended(http, session) == promoted
    assert stack.database.one("SELECT count(*) FROM pal.memory_candidates") == waiting
    assert (("decision", DECIDED) in episodes(stack)) == (word == "auto")


def test_person_who_was_merged_meanwhile_has_what_came_of_it(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: a memory that hangs on a person no one is any more."""
    session, other = start(http, userId="ann"), start(http, userId="ann2")
    ids = "SELECT person_id FROM pal.sessions WHERE id = %s"
    first, second = (str(stack.database.one(ids, one)) for one in (session, other))
    plant(stack, session)
    both = {"from": first, "into": second}
    assert http.call("POST", "/v1/people/merge", both).status == 200
    ended(http, session)
    assert stack.database.rows("SELECT DISTINCT person_id FROM pal.memory_episodes") == [(second,)]


def test_a_merge_in_the_middle_of_an_end_waits_for_it_or_is_waited_for(
    stack: Stack, http: HttpClient
) -> None:
    """Lost if red: two calls that wait for one another, or episodes that the merge has missed."""
    for number in range(6):
        session = start(http, userId=f"a{number}")
        into = start(http, userId=f"b{number}")
        ids = "SELECT person_id FROM pal.sessions WHERE id = %s"
        first, second = (str(stack.database.one(ids, one)) for one in (session, into))
        plant(stack, session)
        with ThreadPoolExecutor(2) as pool:
            both = {"from": first, "into": second}
            merged = pool.submit(http.call, "POST", "/v1/people/merge", both)
            done = pool.submit(ended, http, session)
            assert merged.result(20).status == 200
            assert done.result(20) == len(PROMOTED)
        owners = "SELECT DISTINCT person_id FROM pal.memory_episodes WHERE session_id = %s"
        assert stack.database.rows(owners, session) == [(second,)]


def test_deleted_session_takes_what_came_of_it_along(stack: Stack, http: HttpClient) -> None:
    """Lost if red: deletion that leaves the conversation's decisions behind."""
    session = start(http, userId="ann")
    plant(stack, session)
    ended(http, session)
    assert http.call("DELETE", f"/v1/sessions/{session}").status == 204
    assert episodes(stack) == set()
    until(lambda: stack.database.one("SELECT count(*) FROM pal.session_nodes") == 0)
    refused(end(http, session), 404, "not_found")
