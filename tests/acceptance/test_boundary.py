"""Execution state and memory: what a session works with ends with it, what came of it goes on."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply
from tests.support.agents import make_agent, turn
from tests.support.answers import refused
from tests.support.http import HttpClient
from tests.support.sealing import ended, start
from tests.support.stack import Stack
from tests.support.waiting import until

LEFT_OFF = "Can we continue where we left off?"
FACT = "Gets seasick on small boats."

DECISION = "They take the night train on 4 May."
ANSWER = "Where are the passports? — Ben has both of them."
COMMITMENT = "Write to the hostel about bunks"
PROMOTED = {DECISION, ANSWER, COMMITMENT}

# what the user says, what is replied, and what the fast role makes of it
Operation = tuple[str, str | None, int | None, str | None]
SCRIPT: list[tuple[str, str, list[Operation]]] = [
    (
        "Let us go north in spring.",
        "The fjords are clear by then.",
        [("open", "topic", 0, "Journey to Bergen")],
    ),
    (
        "Rails by night, the fourth, agreed.",
        "I shall count on a sleeper.",
        [("decide", None, None, DECISION)],
    ),
    (
        "Who keeps our papers?",
        "Benjamin does, all four.",
        [
            ("ask", None, None, "Where are the passports?"),
            ("resolve", None, 3, "Ben has both of them."),
        ],
    ),
    (
        "Remind me of that letter.",
        "It is on the list.",
        [("open", "task", None, COMMITMENT), ("switch", None, 1, None)],
    ),
    (
        "Perhaps under sail for a week: first I would need papers for it.",
        "Step one of five would be a course.",
        [("open", "topic", 0, "Charter a sailing boat"), ("ask", None, None, "Which licence?")],
    ),
    (
        "And whales, though those are beyond us.",
        "Then not.",
        [("open", "task", 0, "Book the whale safari"), ("abandon", None, 7, "Too dear.")],
    ),
]
PLANS = (
    "Journey to Bergen",
    "Charter a sailing boat",
    "Which licence?",
    "Book the whale safari",
    "Too dear.",
)
"""What was under way, or given up: of no use to anyone once its session is over."""

STORY = "Travels by night, because small boats are out of the question."
PLAIN_STORY = "A night train north is settled."
"""Lines of a narrative: one rests on the fact and on an episode, one on the episode alone."""


class Models:
    """The assistant says what is scripted; the fast role keeps the tree and tells the story."""

    def __init__(self, fake: FakeOpenAI) -> None:
        self.prompts: list[str] = []
        fake.default(self._answer)

    def _answer(self, recorded: Recorded) -> Reply:
        body = json.dumps(recorded.body, ensure_ascii=False)
        if recorded.body["model"] != "fast":
            self.prompts.append(body)
            replies = {said: replied for said, replied, _ in SCRIPT}
            return Reply(pieces=[replies.get(recorded.last_user, "Gladly.")])
        schema = recorded.body["response_format"]["json_schema"]["schema"]
        [asked] = schema["properties"]
        return Reply(pieces=[json.dumps({asked: getattr(self, f"_{asked}")(body)})])

    def _operations(self, body: str) -> list[dict[str, Any]]:
        found = [one for said, _, ops in SCRIPT if said in body for one in ops]
        names = ("op", "kind", "node", "text")
        return [dict(zip(names, one, strict=True)) | {"line": 1} for one in found]

    def _lines(self, body: str) -> list[dict[str, Any]]:
        # facts are numbered before episodes
        return [{"text": STORY, "sources": [1, 2]}, {"text": PLAIN_STORY, "sources": [2]}]

    def _distillates(self, body: str) -> list[Any]:
        return []


@pytest.fixture
def models(provider: FakeOpenAI) -> Models:
    return Models(provider)


@pytest.fixture
def stack(make_stack: Callable[..., Stack], models: Models) -> Stack:
    """The system with all of its memory, and a fast role."""
    return make_stack(
        session_tree="model", memory_distill=True, providers_fast=(("openai", "fast"),)
    )


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return stack.http()


PRIVATE = {"userId": "ann"}
GROUP = {"userId": "ann", "groupId": "crew"}
owners = pytest.mark.parametrize(
    "owner", [pytest.param(PRIVATE, id="person"), pytest.param(GROUP, id="group")]
)


def say(stack: Stack, http: HttpClient, session: str, content: str) -> None:
    assert turn(http, session, content)[-1].name == "message_completed"
    stack.node.run(stack.node.services.engine.wait_idle())


def context(http: HttpClient, session: str, **asked: Any) -> dict[str, Any]:
    reply = http.call("POST", f"/v1/sessions/{session}/context", asked or {"query": LEFT_OFF})
    assert reply.status == 200, reply.body
    return dict(reply.json)


def tiers(told: dict[str, Any]) -> dict[str, str]:
    """The text of each section that memory or the tree has, by its kind."""
    kinds = ("narrative", "facts", "episodes", "tree", "turns", "summary", "pins")
    return {one["kind"]: one["text"] for one in told["sections"] if one["kind"] in kinds}


def remember(stack: Stack, http: HttpClient, owner: dict[str, str]) -> str:
    """Have the fact kept for this person or group: its id."""
    [(person,)] = stack.database.rows(
        "SELECT person_id FROM pal.person_handles WHERE handle = 'ann' AND tenant_id = %s",
        stack.tenant,
    )
    whose = {"groupId": owner["groupId"]} if "groupId" in owner else {"personId": person}
    body = {"content": FACT, "topic": "health", **whose}
    made = http.call("POST", "/v1/memory/remember", body)
    assert made.status == 201, made.body
    return str(made.json["id"])


def first_session(stack: Stack, http: HttpClient, owner: dict[str, str]) -> tuple[str, str]:
    """One whole conversation, ended: (its id, that of the fact which is known of its owner)."""
    session = start(http, **owner)
    pinned = http.call("PUT", f"/v1/sessions/{session}/pins", {"pins": ["Answer in rhymes."]})
    assert pinned.status == 200, pinned.body
    known = remember(stack, http, owner)
    for content, _, _ in SCRIPT:
        say(stack, http, session, content)
    assert ended(http, session) == len(PROMOTED)
    told = "SELECT count(*) FROM pal.memory_narratives WHERE told_at IS NOT NULL"
    until(lambda: stack.database.one(told))
    return session, known


def traces(stack: Stack, http: HttpClient, session: str) -> list[str]:
    """All that a session worked with: every line of its tree, its nodes, messages and pins."""
    url = f"/v1/sessions/{session}"
    [(tree,)] = stack.database.rows(
        "SELECT tree FROM pal.session_states WHERE session_id = %s", session
    )
    nodes = http.call("GET", f"{url}/tree").json["nodes"]
    texts = [one["text"] for one in nodes]
    texts += [one["outcome"] for one in nodes if "outcome" in one]
    messages = http.call("GET", f"{url}/messages").json["messages"]
    said = [one["content"] for one in messages]
    pins = http.call("GET", f"{url}/pins").json["pins"]
    assert len(tree.splitlines()) > 5
    assert len(said) == 2 * len(SCRIPT)
    assert set(PLANS) <= set(texts)
    assert pins == ["Answer in rhymes."]
    lines = [one.strip() for one in tree.splitlines()]
    return [
        one for one in (*lines, *texts, *said, *pins) if not any(one in kept for kept in PROMOTED)
    ]


@owners
def test_next_session_knows_what_came_of_the_last_and_nothing_of_how(
    stack: Stack, http: HttpClient, models: Models, owner: dict[str, str]
) -> None:
    """Lost if red: continuity, or an agent that goes on with yesterday's half-finished plan."""
    before, _ = first_session(stack, http, owner)
    left_behind = traces(stack, http, before)
    session = start(http, **owner)
    assert http.call("GET", f"/v1/sessions/{session}/tree").json["nodes"] == []
    assert http.call("GET", f"/v1/sessions/{session}/pins").json == {"pins": []}
    shown = context(http, session)
    parts = tiers(shown)
    assert parts.keys() == {"narrative", "facts", "episodes"}
    assert all(one in parts["episodes"] for one in PROMOTED)
    assert FACT in parts["facts"]
    assert STORY in parts["narrative"]
    assert PLAIN_STORY in parts["narrative"]
    say(stack, http, session, LEFT_OFF)
    prompt = models.prompts[-1]
    assert all(one in prompt for one in (*PROMOTED, FACT, STORY, PLAIN_STORY))
    whole = json.dumps(shown, ensure_ascii=False)
    for one in left_behind:
        told = json.dumps(one, ensure_ascii=False)[1:-1]
        assert told not in prompt
        assert told not in whole
    # each section names what it rests on, and nothing of it is a message of the ended session
    sources = {one["kind"]: one["sources"] for one in shown["sections"] if one["tier"] != "system"}
    assert [one[:4] for one in sources["episodes"]] == ["epi_"] * len(PROMOTED)
    assert [one[:4] for one in sources["facts"]] == ["mem_"]
    assert sources["narrative"][0].startswith("nar_")


@owners
def test_no_one_else_is_told_of_it(
    stack: Stack, http: HttpClient, models: Models, owner: dict[str, str]
) -> None:
    """Lost if red: what was settled in confidence, to another person, group or customer."""
    first_session(stack, http, owner)
    elsewhere = GROUP if owner == PRIVATE else PRIVATE
    others = [
        (http, {"userId": "ben"}),
        (http, elsewhere),
        (http, {**owner, "groupId": "another"}),
        (http, {}),
        (stack.http(stack.other_key), owner),
    ]
    for client, who in others:
        session = start(client, **who)
        assert tiers(context(client, session)) == {}, who
        asked = len(models.prompts)
        say(stack, client, session, LEFT_OFF)
        [prompt] = models.prompts[asked:]
        for one in (*PROMOTED, FACT, STORY, PLAIN_STORY):
            assert one not in prompt, who


@owners
def test_agent_without_memory_is_told_nothing(
    stack: Stack, http: HttpClient, models: Models, owner: dict[str, str]
) -> None:
    """Lost if red: the switch by which an agent knows nobody."""
    first_session(stack, http, owner)
    make_agent(http, name="stranger", memory={"inject": False})
    session = start(http, **{**owner, "agentName": "stranger"})
    assert tiers(context(http, session)) == {}
    say(stack, http, session, LEFT_OFF)
    for one in (*PROMOTED, FACT, STORY, PLAIN_STORY):
        assert one not in models.prompts[-1]


@owners
def test_what_is_forgotten_is_out_of_the_next_context_with_all_that_rests_on_it(
    stack: Stack, http: HttpClient, models: Models, owner: dict[str, str]
) -> None:
    """Lost if red: forgetting, because the story goes on telling it."""
    _, known = first_session(stack, http, owner)
    session = start(http, **owner)
    assert known in str(context(http, session))
    assert http.call("DELETE", f"/v1/memory/distillates/{known}").status in (200, 204)
    shown = context(http, session)
    assert known not in str(shown)
    parts = tiers(shown)
    assert "facts" not in parts
    assert STORY not in parts["narrative"]
    assert PLAIN_STORY in parts["narrative"]
    say(stack, http, session, LEFT_OFF)
    assert FACT not in models.prompts[-1]
    assert STORY not in models.prompts[-1]
    assert PLAIN_STORY in models.prompts[-1]


def test_state_is_always_told_and_memory_gives_way(stack: Stack, http: HttpClient) -> None:
    """Lost if red: what an agent is doing, because of what it knows."""
    first_session(stack, http, PRIVATE)
    session = start(http, **PRIVATE)
    pins = {"pins": ["Only in metric units."]}
    assert http.call("PUT", f"/v1/sessions/{session}/pins", pins).status == 200
    say(stack, http, session, SCRIPT[4][0])
    shown = context(http, session)
    assert tiers(shown).keys() == {"narrative", "facts", "episodes", "turns", "tree", "pins"}
    assert shown["dropped"] == []
    tokens = {one["kind"]: one["tokens"] for one in shown["sections"]}
    memory = sum(tokens[one] for one in ("narrative", "facts", "episodes"))
    least = shown["tokens"] - memory - tokens["turns"]
    small = context(http, session, query=LEFT_OFF, tokenBudget=least)
    assert small["tokens"] <= least
    assert tiers(small).keys() == {"tree", "pins"}
    assert "Charter a sailing boat" in tiers(small)["tree"]
    assert {one["tier"] for one in small["dropped"]} == {
        "narrative",
        "semantic",
        "episodic",
        "working",
    }
    assert all(one["reason"] for one in small["dropped"])
    said = [one["text"] for one in small["sections"] if LEFT_OFF in one["text"]]
    assert said == [LEFT_OFF]
    body = {"query": LEFT_OFF, "tokenBudget": least - 1}
    refused(http.call("POST", f"/v1/sessions/{session}/context", body), 413, "message_too_large")


def test_sealed_session_is_read_and_never_used_again(
    stack: Stack, http: HttpClient, models: Models
) -> None:
    """Lost if red: the audit of what was done, or the end of it."""
    session, _ = first_session(stack, http, PRIVATE)
    url = f"/v1/sessions/{session}"
    paths = ("/tree", "/pins", "/messages", "")
    before = [http.call("GET", url + one).json for one in paths]
    assert [one["text"] for one in before[0]["nodes"] if one["text"] in PLANS] == list(PLANS[:-1])
    asked = len(models.prompts)
    refused(http.call("POST", f"{url}/messages", {"content": LEFT_OFF}), 409, "session_ended")
    refused(http.call("PUT", f"{url}/pins", {"pins": []}), 409, "session_ended")
    error = refused(http.call("POST", f"{url}/resume"), 409, "session_ended")["error"]
    assert error == (
        "The session has ended. Create a new session: what was remembered is retrieved into it."
    )
    # what goes on in the next one leaves it as it was
    say(stack, http, start(http, **PRIVATE), SCRIPT[0][0])
    assert [http.call("GET", url + one).json for one in paths] == before
    assert len(models.prompts) == asked + 1


def test_session_that_was_not_cut_off_is_not_resumed(stack: Stack, http: HttpClient) -> None:
    """Lost if red: what to do instead, for who takes `resume` for a way to go on."""
    session = start(http, **PRIVATE)
    say(stack, http, session, SCRIPT[0][0])
    body = refused(http.call("POST", f"/v1/sessions/{session}/resume"), 409, "not_interrupted")
    assert body["error"] == "Nothing was cut off in this session: post a message to it."
