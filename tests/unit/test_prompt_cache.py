"""What a request has in common with the next one: byte for byte, and marked where it must be."""

import copy
import json
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from chalicelib.providers import ModelMessage, ModelRequest, ToolSpec
from chalicelib.providers import anthropic as anthropic_wire
from chalicelib.providers import bedrock as bedrock_wire
from chalicelib.providers import openai as openai_wire
from chalicelib.sessions.prompt import Prompt
from tests.fakes import anthropic_rules, bedrock_rules
from tests.unit.test_compile import asked, compiled, ground, message, recollection
from tests.unit.test_prompt import dumped, looked, lookup

CLAUDE = "us.anthropic.claude-sonnet-5-5"
LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})


def request_of(turns: int, *, rounds: int = 0) -> ModelRequest:
    """The request of the turn after so many, of which each looked something up."""
    entries = [
        entry
        for number in range(turns)
        for entry in (*looked(number, calls=1, size=300), message(number, "assistant", 80))
    ]
    made = compiled(
        ground(
            history=dumped(*entries),
            summary="- They want to go to Bergen.",
            tree=f"<execution_state>\n- {turns} topic\n</execution_state>",
            local_time=datetime(2026, 12, 1, 14, turns),
        ),
        asked(),
        200_000,
        recollection(facts=turns),
    )
    told = [lookup(number) for number in range(1, rounds + 1)]
    return Prompt(compiled=made).request(rounds=told, tools=(LOOK,))


def anthropic(request: ModelRequest) -> dict[str, Any]:
    body = anthropic_wire.to_wire(request, provider="anthropic", model="claude-sonnet-5-5")
    anthropic_rules.check(body, issued=set())
    return body


def bedrock(request: ModelRequest, model: str = CLAUDE) -> dict[str, Any]:
    body = bedrock_wire.to_wire(request, provider="bedrock", model=model)
    assert bedrock_rules.problem_of(body, signatures=set()) is None
    return body


def marked(body: dict[str, Any]) -> list[tuple[int, int]]:
    """Where the body says that the cache is to reach to: (message, block)."""
    return [
        (m, b)
        for m, one in enumerate(body["messages"])
        for b, block in enumerate(one["content"])
        if "cache_control" in block or "cachePoint" in block
    ]


def plain(body: dict[str, Any]) -> list[Any]:
    """All blocks in order, without the marks."""
    blocks = []
    for one in copy.deepcopy(body["messages"]):
        for block in one["content"]:
            block.pop("cache_control", None)
            blocks += [] if "cachePoint" in block else [(one["role"], json.dumps(block))]
    return blocks


def kept(body: dict[str, Any]) -> list[Any]:
    """The blocks up to the mark."""
    [(m, b)] = marked(body)
    messages = [*body["messages"][:m]]
    messages.append({**body["messages"][m], "content": body["messages"][m]["content"][: b + 1]})
    return plain({"messages": messages})


@pytest.mark.parametrize("wire", [anthropic, bedrock])
def test_what_is_cached_ends_before_what_changes_and_begins_the_next_request(wire: Any) -> None:
    """Each turn of a long conversation would be paid for in full: this cache is used on demand."""
    before, after = wire(request_of(3)), wire(request_of(4))
    held = kept(before)
    assert held[-1][0] == "assistant"
    assert not [one for one in held if "execution_state" in one[1] or "It is Tuesday" in one[1]]
    assert plain(after)[: len(held)] == held
    assert kept(after)[: len(held)] == held
    assert len(kept(after)) > len(held)


@pytest.mark.parametrize("wire", [anthropic, bedrock])
def test_rounds_of_one_turn_are_cached_from_the_one_to_the_next(wire: Any) -> None:
    before, after = wire(request_of(2, rounds=2)), wire(request_of(2, rounds=3))
    held = kept(before)
    assert "It is Tuesday" in str(held)
    assert plain(after)[: len(held)] == held


def test_openais_wire_begins_alike_from_turn_to_turn() -> None:
    before, after = (
        openai_wire.to_wire(request_of(turns), provider="openai", model="m")["messages"]
        for turns in (3, 4)
    )
    same = [one == other for one, other in zip(before, after, strict=False)].index(False)
    assert before[same:] == before[-1:]  # but for the newest message, with its notes


def test_a_question_that_is_asked_once_writes_to_no_cache() -> None:
    """What is written costs a quarter more, and no one would read it."""
    request = ModelRequest(system="Sum up.", messages=(ModelMessage(role="user", content="all"),))
    assert marked(anthropic(request)) == marked(bedrock(request)) == []
    assert marked(anthropic(request_of(0))) == []


@pytest.mark.parametrize("model", ["us.meta.llama4-maverick-17b-instruct-v1:0", "of-my-own"])
def test_a_model_of_bedrock_that_is_not_known_to_have_a_cache_is_sent_no_mark(model: str) -> None:
    """It would refuse every request of every session."""
    assert marked(bedrock(request_of(3), model)) == []


@pytest.mark.parametrize(
    "text", ["the ferry leaves at nine ", "渡轮九点出发"], ids=["english", "chinese"]
)
def test_a_session_that_is_longer_than_the_budget_begins_alike_for_several_turns(text: str) -> None:
    """Were one turn dropped a turn, its whole history would be paid for anew each time."""
    entries: list[dict[str, Any]] = []
    firsts, used = [], []
    for number in range(120):
        made = compiled(ground(history=dumped(*entries)), asked(), 12_000)
        firsts.append(made.blocks[0].turn_id if made.blocks else "")
        used.append(sum(one.tokens for one in made.blocks))
        for role in ("user", "assistant"):
            content = (f"{number} " + text * 30)[: 240 if text.isascii() else 60]
            entries.append({**message(number, role, 1), "content": content})
    full = len([one for one in firsts if one == firsts[1]]) + 1
    assert full < 90
    changes = sum(one != other for one, other in pairwise(firsts[full:]))
    assert changes <= len(firsts[full:]) / 3
    assert min(used[full:]) > 0.65 * 0.7 * 12_000
