"""A session of two thousand messages: it stays cheap and on topic, and nothing of it is lost."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.openai_server import Call, FakeOpenAI, Recorded, Reply
from tests.fakes.openai_wire import text_of
from tests.support.agents import data_of, make_agent
from tests.support.http import HttpClient
from tests.support.stack import Stack

TURNS = 1000
DECISION = "We decided to plant a yew hedge along the north wall in October, for 4,200 euros."
SUMMARY = "The user and the assistant talk about a museum's garden"
WORDS = (
    "bed path rose tulip gravel bench pond fern moss oak maple spade rake seed bulb soil compost"
    " lawn arbour trellis ivy clover thyme sage mint lily iris poppy violet daisy peony orchid"
    " birch cedar willow elder hazel linden plum cherry quince medlar terrace gate fence wall"
)


@dataclass
class Talk:
    """What two people who plan a garden say, the same in every run; and what each prompt held."""

    chance: random.Random = field(default_factory=lambda: random.Random(11))
    words: list[str] = field(default_factory=WORDS.split)
    asked: list[str] = field(default_factory=list)
    summaries: int = 0
    prompts: list[list[dict[str, Any]]] = field(default_factory=list)
    """The messages of every request for a reply."""

    def say(self, turn: int) -> str:
        """What the user says in a turn."""
        told = [f"Message {turn}."]
        if turn % 45 == 0:
            told = [f"By the way, part {turn // 45} of the garden."]
        if turn == 3:
            told.append(DECISION)
        elif turn % 40 == 0:
            told.append(f"We decided to put {turn} {self.chance.choice(self.words)} stems there.")
        if turn % 17 == 0:
            told.append(f"How many {self.chance.choice(self.words)} pots does bed {turn} take?")
        told.append(f"{self._sentence()}.")
        self.asked.append(" ".join(told))
        return self.asked[-1]

    def answer(self, recorded: Recorded) -> Reply:
        """What the models say: one writes summaries, which forget the decision; one replies."""
        if recorded.body["model"] == "fast":
            self.summaries += 1
            lines = [f"- {self._sentence()}, it was said." for _ in range(4)]
            return Reply(pieces=["\n".join([f"- {SUMMARY} ({self.summaries}).", *lines])])
        messages = recorded.body["messages"]
        self.prompts.append(messages)
        if "tools" in recorded.body and messages[-1]["role"] != "tool":
            return Reply(tool_calls=[Call("current_time", {})])
        return Reply(pieces=[f"Yes: {self._sentence()}."])

    def _sentence(self) -> str:
        return " ".join(self.chance.choices(self.words, k=self.chance.randint(15, 60)))


@pytest.fixture
def talk(provider: FakeOpenAI) -> Talk:
    made = Talk()
    provider.default(made.answer)
    return made


@pytest.fixture
def stack(make_stack: Callable[..., Stack], talk: Talk) -> Stack:
    return make_stack(providers_fast=(("openai", "fast"),))


def test_two_thousand_messages_cost_as_little_as_a_hundred_and_none_is_lost(
    stack: Stack, talk: Talk, provider: FakeOpenAI
) -> None:
    """Lost if red: long conversations, to a bill that grows with each word, or to forgetting."""
    http = stack.http()
    tool = {"kind": "builtin", "name": "current_time"}
    session = make_agent(http, tool, context="compact")
    last_of: list[int] = []
    """By turn, how many prompts there were at its end."""
    tokens = {}
    for turn in range(1, TURNS + 1):
        post(http, session, talk.say(turn), tools=turn % 25 == 1)
        stack.node.run(stack.node.services.engine.wait_idle())
        last_of.append(len(talk.prompts))
        if turn % 50 == 0:
            tokens[turn] = context(http, session)["tokens"]
    assert provider.refused == []

    # what a turn costs levels off
    characters = [sum(map(length, one)) for one in talk.prompts]
    early = characters[last_of[50] : last_of[150]]
    assert max(characters[last_of[-100] :]) <= 1.15 * max(early)
    assert max(tokens[turn] for turn in tokens if turn > 850) <= 1.15 * max(
        tokens[turn] for turn in tokens if turn <= 150
    )

    # the early decision is there, and only because the tree keeps it
    last = talk.prompts[-1]
    assert holding(DECISION, last) == [last[-1]]
    sections = {one["kind"]: one for one in context(http, session)["sections"]}
    assert DECISION in sections["tree"]["text"]
    assert sections["tree"]["tokens"] <= 601
    assert DECISION not in sections["turns"]["text"]
    # and so is a summary that says what it is
    [summary] = [one for one in last if SUMMARY in str(one["content"])]
    assert summary["content"].startswith("<conversation_summary>\nA summary of the earlier")
    assert "\n</conversation_summary>\n\n" in summary["content"]
    assert summary is not last[-1]
    assert sections["summary"]["tokens"] <= 820
    for prompt in talk.prompts:
        assert_whole(prompt)

    messages = transcript(http, session)
    users = [one["content"] for one in messages if one["role"] == "user"]
    assert users == talk.asked
    assert [one["role"] for one in messages] == ["user", "assistant"] * TURNS
    assert sum("toolCalls" in one for one in messages) == TURNS // 25

    rows = stack.database.rows("SELECT data FROM pal.session_events WHERE kind = 'compacted'")
    [(kept,)] = stack.database.rows(
        "SELECT jsonb_array_length(jsonb_path_query_array(messages, '$[*].id')) FROM pal.sessions"
    )
    assert 30 <= kept <= 42
    assert talk.summaries == len(rows)
    # a summary each time that ten messages or so are too many
    assert 2 * TURNS // 14 <= len(rows) <= 2 * TURNS // 10
    removed = [json.loads(one)["removed"] for (one,) in rows]
    assert sum(removed) + kept == 2 * TURNS
    assert_tree_is_told(http, session, {one["id"] for one in messages})


def post(http: HttpClient, session: str, content: str, *, tools: bool) -> None:
    """Post a message and read its turn to the end."""
    path = f"/v1/sessions/{session}/messages"
    events = http.stream("POST", path, {"content": content, "noTools": not tools}).rest()
    assert events[-1].name == "message_completed", events[-1]
    assert len(data_of(events, "tool_call_completed")) == tools


def context(http: HttpClient, session: str) -> dict[str, Any]:
    reply = http.call("POST", f"/v1/sessions/{session}/context", {"query": "And the hedge?"})
    assert reply.status == 200, reply.body
    return dict(reply.json)


def length(message: dict[str, Any]) -> int:
    return len(text_of(message.get("content"))) + len(str(message.get("tool_calls") or ""))


def holding(text: str, prompt: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in prompt if text in text_of(one.get("content"))]


def assert_whole(prompt: list[dict[str, Any]]) -> None:
    """Every result stands behind its call, and every call has its result."""
    waiting: set[str] = set()
    for one in prompt:
        if one["role"] == "tool":
            waiting.remove(one["tool_call_id"])
        else:
            assert not waiting
        waiting |= {call["id"] for call in one.get("tool_calls") or ()}
    assert not waiting


def transcript(http: HttpClient, session: str) -> list[dict[str, Any]]:
    """All messages, page by page."""
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        path = f"/v1/sessions/{session}/messages?pageSize=200&pageToken={token}"
        reply = http.call("GET", path if token else path.partition("&")[0])
        assert reply.status == 200, reply.body
        found += reply.json["messages"]
        token = reply.headers.get("x-next-page-token", "")
        if not token:
            return found


def assert_tree_is_told(http: HttpClient, session: str, messages: set[str]) -> None:
    """All nodes that there ever were are shown, folded or not, each with its messages."""
    nodes = http.call("GET", f"/v1/sessions/{session}/tree").json["nodes"]
    assert [one["id"] for one in nodes] == [f"n{place + 1}" for place in range(len(nodes))]
    assert all(one["sources"] and messages >= set(one["sources"]) for one in nodes)
    decisions = [one["text"] for one in nodes if one["kind"] == "decision"]
    assert decisions[0] == DECISION
    assert len(decisions) == 1 + TURNS // 40
    assert any(one["folded"] for one in nodes)
