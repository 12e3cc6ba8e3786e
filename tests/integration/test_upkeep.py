"""The work behind a reply: the tree is kept, long contexts are compacted, no turn waits for it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply
from tests.support.agents import data_of, make_agent, names, sent, turn
from tests.support.answers import new_session
from tests.support.http import HttpClient
from tests.support.stack import Stack

OPEN = {"op": "open", "kind": "topic", "node": 0, "text": "Trip to Bergen", "line": 1}
DECIDE = {
    "op": "decide",
    "kind": None,
    "node": None,
    "text": "They take the night train.",
    "line": 1,
}


def operations(*items: dict[str, Any]) -> Reply:
    return Reply(pieces=[json.dumps({"operations": list(items)})])


class Models:
    """What the fake answers: turns are echoed, the fast role says what a test has it say."""

    def __init__(self, fake: FakeOpenAI) -> None:
        self.fake = fake
        self.tree: Callable[[Recorded], Reply] = lambda _: operations()
        self.summary: Callable[[Recorded], Reply] = lambda _: Reply(pieces=["- They plan a trip."])
        fake.default(self._answer)

    def _answer(self, recorded: Recorded) -> Reply:
        if recorded.body["model"] != "fast":
            return Reply()
        return self.tree(recorded) if "operations" in str(recorded.body) else self.summary(recorded)

    def prompts(self) -> list[dict[str, Any]]:
        return [one.body for one in self.fake.requests if one.body["model"] != "fast"]

    def asked_fast(self) -> list[dict[str, Any]]:
        return [one.body for one in self.fake.requests if one.body["model"] == "fast"]


@pytest.fixture
def models(provider: FakeOpenAI) -> Models:
    return Models(provider)


@pytest.fixture
def stack(make_stack: Callable[..., Stack], models: Models) -> Stack:
    """The system with a fast role that keeps the tree."""
    return make_stack(session_tree="model", providers_fast=(("openai", "fast"),))


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return stack.http()


def settled(stack: Stack) -> None:
    """Once all that is behind the replies is done."""
    stack.node.run(stack.node.services.engine.wait_idle())


def tree_of(http: HttpClient, session: str) -> dict[str, Any]:
    reply = http.call("GET", f"/v1/sessions/{session}/tree")
    assert reply.status == 200, reply.body
    return dict(reply.json)


def asked(body: dict[str, Any]) -> str:
    """The newest message of a prompt, with the notes before it."""
    return str(body["messages"][-1]["content"])


def users(body: dict[str, Any]) -> list[str]:
    """What the user says in a prompt."""
    return [str(content) for role, content in sent(body) if role == "user"]


def test_what_the_fast_role_notes_is_in_the_next_prompt_with_its_messages(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    """Else a long conversation forgets what it was about and what was settled."""
    session = new_session(http)
    models.tree = lambda _: operations(OPEN, DECIDE)
    posted = data_of(turn(http, session, "Let us go to Bergen by night train."), "turn_started")
    assert posted
    settled(stack)
    tree = tree_of(http, session)
    assert [(one["kind"], one["text"]) for one in tree["nodes"]] == [
        ("topic", "Trip to Bergen"),
        ("decision", "They take the night train."),
    ]
    messages = http.call("GET", f"/v1/sessions/{session}").json["messages"]
    assert {one for node in tree["nodes"] for one in node["sources"]} == {messages[0]["id"]}
    models.tree = lambda _: operations()
    turn(http, session, "And back?")
    told = asked(models.prompts()[-1])
    assert "Trip to Bergen" in told
    assert "They take the night train." in told
    # only what is new is told to the fast role
    settled(stack)
    assert "And back?" in str(models.asked_fast()[-1])
    assert "Let us go to Bergen by night train." not in str(models.asked_fast()[-1])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Reply(status=500), id="server-error"),
        pytest.param(Reply(pieces=["I cannot do that."]), id="no-json"),
        pytest.param(operations({**DECIDE, "op": "explode"}), id="unknown-operation"),
        pytest.param(operations({**OPEN, "op": "switch", "node": 77}), id="unknown-node"),
        pytest.param(Reply(pieces=['{"operations": [{"op": "decide"']), id="cut-off"),
    ],
)
def test_a_fast_role_that_fails_changes_nothing_and_fails_no_turn(
    stack: Stack, http: HttpClient, models: Models, answer: Reply
) -> None:
    session = new_session(http)
    models.tree = lambda _: operations(OPEN)
    turn(http, session, "Bergen?")
    settled(stack)
    before = tree_of(http, session)
    models.tree = lambda _: answer
    assert names(turn(http, session, "By train?"))[-1] == "message_completed"
    settled(stack)
    assert tree_of(http, session) == before
    # and the lease is free again
    models.tree = lambda _: operations(DECIDE)
    turn(http, session, "By night train then.")
    settled(stack)
    assert len(tree_of(http, session)["nodes"]) == 2


def test_what_a_failed_try_left_unread_the_next_one_reads(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    session = new_session(http)
    models.tree = lambda _: Reply(status=503)
    turn(http, session, "The code word is heron.")
    settled(stack)
    models.tree = lambda _: operations(OPEN)
    turn(http, session, "Go on.")
    settled(stack)
    assert "heron" in str(models.asked_fast()[-1])


def test_no_turn_waits_for_the_work_behind_the_one_before(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    """A slow fast role would otherwise make each second message slow."""
    session = new_session(http)
    held = Reply(pieces=[json.dumps({"operations": [OPEN]})], hold_at=0)
    models.tree = lambda _: held
    turn(http, session, "one")
    assert held.held.wait(10)
    models.tree = lambda _: operations()
    assert names(turn(http, session, "two"))[-1] == "message_completed"
    held.gate.set()
    settled(stack)
    # whoever held the lease has read the second turn as well
    assert [one["text"] for one in tree_of(http, session)["nodes"]] == ["Trip to Bergen"]
    [(ordinal,)] = stack.database.rows(
        "SELECT tree_ordinal FROM pal.session_states WHERE session_id = %s", session
    )
    assert ordinal == 2


def test_two_turns_at_once_in_two_processes_are_read_once(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    session = new_session(http)
    other = stack.another_node()
    texts = ["alpha", "beta", "gamma", "delta"]
    models.tree = lambda _: operations()
    for text in texts:
        turn(http, session, text)
        other.run(other.services.engine._upkeep.run(stack.tenant, session))
    settled(stack)
    told = [str(one) for one in models.asked_fast()]
    for text in texts:
        assert sum(f'"{text}"' in one or f'\\"{text}\\"' in one for one in told) == 1


def test_with_no_model_but_the_stand_in_the_tree_is_kept_plainly(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack(session_tree="model", providers=())
    http = stack.http()
    session = new_session(http)
    turn(http, session, "I want to plan a trip to Bergen in May.")
    turn(http, session, "We decided to take the night train on 4 May.")
    settled(stack)
    kinds = {one["kind"] for one in tree_of(http, session)["nodes"]}
    assert {"topic", "decision"} <= kinds


def test_a_compact_session_is_compacted_behind_its_reply_and_tells_so(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    session = make_agent(http, context="compact")
    stream = http.stream("GET", f"/v1/sessions/{session}/events")
    for number in range(1, 22):
        turn(http, session, f"message {number}")
        settled(stack)
    assert stream.read_until("compacted")[-1].data["removed"] == 12
    stream.close()
    turn(http, session, "and now?")
    prompt = models.prompts()[-1]
    assert "- They plan a trip." in str(prompt["messages"][:2])
    told = users(prompt)
    assert told[-1] == "and now?"
    assert told[1:-1] == [f"message {number}" for number in range(8, 22)]
    assert told[0].endswith("message 7")
    every = http.call("GET", f"/v1/sessions/{session}/messages?pageSize=200").json["messages"]
    assert len(every) == 44


def test_a_full_session_keeps_all_of_its_history(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    session = make_agent(http, context="full")
    for number in range(1, 23):
        turn(http, session, f"message {number}")
    settled(stack)
    assert users(models.prompts()[-1]) == [f"message {number}" for number in range(1, 23)]


def test_what_the_provider_counts_is_taken_into_account_in_the_next_turn(
    stack: Stack, http: HttpClient, models: Models, provider: FakeOpenAI
) -> None:
    """A model that counts more than we think would one day be sent more than it takes."""
    session = new_session(http)
    provider.script(Reply(pieces=["hm"], usage=(10_000, 2)))
    turn(http, session, "count this")
    settled(stack)
    shown = http.call("POST", f"/v1/sessions/{session}/context", {"query": "x"}).json
    rows = stack.database.rows(
        "SELECT calibration, counted_model FROM pal.session_states WHERE session_id = %s", session
    )
    assert rows == [(2.0, "openai:fake")]
    message = next(one for one in shown["sections"] if one["kind"] == "clock")
    assert message["tokens"] > 30


def test_a_process_that_ends_in_the_middle_of_it_leaves_the_work_to_the_next_turn(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    session = new_session(http)
    held = Reply(pieces=[json.dumps({"operations": [OPEN]})], hold_at=0)
    models.tree = lambda _: held
    turn(http, session, "one")
    assert held.held.wait(10)
    stack.node.run(_hurry(stack))
    held.gate.set()
    models.tree = lambda _: operations(DECIDE)
    turn(http, session, "two")
    settled(stack)
    assert [one["kind"] for one in tree_of(http, session)["nodes"]] == ["decision"]
    assert "one" in str(models.asked_fast()[-1])


async def _hurry(stack: Stack) -> None:
    engine = stack.node.services.engine
    engine.hurry()
    await engine.wait_idle()
