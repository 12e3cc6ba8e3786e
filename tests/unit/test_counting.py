"""The estimate of tokens: held against real tokenizers' counts, and what it is of a request."""

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chalicelib.providers.base import (
    ModelMessage,
    ModelRequest,
    Reasoning,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.counting import estimate_message, estimate_request, estimate_tokens
from tests.counting import SHORT, corpus, figures, short_messages

TEXTS = corpus()
FIGURES = figures()
UNDER_AT_MOST = 0.05
ODD = {"runs-laughter"}
"""Texts whose short messages are nothing but one letter many times."""


# ── held against tokenizers ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_no_text_is_counted_far_too_low(name: str) -> None:
    """Lost if red: a turn that its vendor refuses, since the prompt that was to fit does not."""
    estimated = estimate_tokens(TEXTS[name])
    for tokenizer, counted in FIGURES[name]["whole"].items():
        assert estimated >= counted * (1 - UNDER_AT_MOST), tokenizer


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_short_messages_are_not_counted_far_too_low(name: str) -> None:
    """Lost if red: a history of many short messages that does not fit where it was to."""
    estimated = [estimate_tokens(one) for one in short_messages(TEXTS[name])]
    for tokenizer, counted in FIGURES[name]["short"].items():
        assert sum(estimated) >= counted * (1 - UNDER_AT_MOST), tokenizer
    # a single one may be off by more
    least = 0.5 if name in ODD else 0.75
    assert all(
        one >= least * most for one, most in zip(estimated, FIGURES[name]["most"], strict=True)
    )


def test_little_is_counted_too_high() -> None:
    """Lost if red: memory and history that are left out of prompts with room for them."""
    over = {
        name: estimate_tokens(text) / max(FIGURES[name]["whole"].values())
        for name, text in TEXTS.items()
    }
    assert statistics.mean(over.values()) <= 1.1
    assert max(over.values()) <= 1.4


def test_figures_are_those_of_the_texts() -> None:
    """Lost if red: a text that was changed, or added, and is held against nothing."""
    assert FIGURES.keys() == TEXTS.keys()
    assert len(TEXTS) >= 40
    tokenizers = {frozenset(one["whole"]) for one in FIGURES.values()}
    assert len(tokenizers) == 1
    assert len(next(iter(tokenizers))) == 11
    for name, text in TEXTS.items():
        messages = short_messages(text)
        assert len(messages) == len(FIGURES[name]["most"]), name
        assert max(map(len, messages)) <= SHORT
        assert "".join("".join(messages).split()) == "".join(text.split())


def test_own_texts_are_of_all_kinds() -> None:
    """Lost if red: languages and forms for which nobody knows what the estimate is worth."""
    kinds = {name.partition("-")[0] for name in TEXTS}
    assert {"en", "id", "zh", "ja", "ar", "hi", "ru", "code", "json", "emoji", "random"} <= kinds


# ── what it is of any text ───────────────────────────────────────────────────────────────────

parts = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from("ab A.0 \n\t"), max_size=60),
    st.text(st.characters(), max_size=20),
    st.sampled_from([text[: len(text) // 3] for text in TEXTS.values()]),
)


@settings(max_examples=300, deadline=None)
@given(parts, parts)
@example("a", "b")
@example(".......", ".")
@example(" ", "0" * 30)
@example("👩", "\u200d👩")
@example("\ud83d", "\ude00")
def test_two_texts_together_are_no_more_than_both(one: str, other: str) -> None:
    """Lost if red: budgets, which add up what was counted apart."""
    apart = estimate_tokens(one) + estimate_tokens(other)
    assert estimate_tokens(f"{one}\n{other}") <= apart + 2
    # a word that is made where they meet may be a dearer one than its halves
    last, first = re.search(r"[A-Za-z]*\Z", one), re.match(r"[A-Za-z]*", other)
    assert last is not None
    assert first is not None
    seam = len(last[0] + first[0]) if last[0] and first[0] else 0
    assert estimate_tokens(one + other) <= apart + 2 + 1.11 * seam
    assert estimate_tokens(one + other) == estimate_tokens(one + other)
    assert (estimate_tokens(one + other) == 0) == (one + other == "")


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        pytest.param("", 0, 0, id="nothing"),
        pytest.param("a", 1, 2, id="a-letter"),
        pytest.param("5" * 1000, 1000, 1010, id="digits-one-by-one"),
        pytest.param("\x00" * 100, 60, 100, id="nuls"),
        pytest.param("\ud800" * 100, 100, 300, id="halves-of-characters"),
        pytest.param("猫" * 1000, 1000, 2100, id="one-han-character"),
        pytest.param("𒀀" * 100, 380, 400, id="cuneiform"),
    ],
)
def test_odd_text_has_an_estimate(text: str, least: int, most: int) -> None:
    """Lost if red: a turn that ends in an error, over what somebody pasted."""
    assert least <= estimate_tokens(text) <= most


def test_estimate_hangs_on_the_text_alone() -> None:
    """Lost if red: a turn that is run again elsewhere with another prompt, for what was met."""
    program = (
        "import json, sys\n"
        "from tests.counting import corpus\n"
        "from chalicelib.providers.counting import estimate_tokens\n"
        "texts = corpus()\n"
        "names = sorted(texts, reverse=sys.argv[1] == 'back')\n"
        "made = {name: estimate_tokens(texts[name]) for name in names}\n"
        "print(json.dumps(made, sort_keys=True))\n"
    )
    root = Path(__file__).parents[2]
    told = [
        subprocess.run(
            [sys.executable, "-c", program, way],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
            timeout=50,
        ).stdout
        for way in ("forth", "back")
    ]
    assert told[0] == told[1] != ""


def test_words_beyond_number_are_not_remembered_for_ever() -> None:
    """Lost if red: a process that grows with every word it has been sent."""
    from chalicelib.providers import counting

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [a + b + c + d for a in letters for b in letters for c in letters for d in "xyz"]
    estimate_tokens(" ".join(words) + " " + "q" * 100_000)
    assert len(words) > counting._REMEMBERED
    assert len(counting._words) <= counting._REMEMBERED
    assert max(map(len, counting._words)) <= counting._REMEMBERED_LETTERS


# ── messages and requests ────────────────────────────────────────────────────────────────────

PLAIN = ModelMessage(role="user", content="What is the weather in Bandung?")
CALL = ToolCall(id="call_1", name="weather", arguments='{"city": "Bandung"}')
TOOL = ToolSpec(
    name="weather",
    description="The weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
BLOCK = {"type": "thinking", "thinking": "They ask about the weather. " * 20, "signature": "x" * 90}


def test_message_is_more_than_its_text() -> None:
    """Lost if red: what a thousand short messages take beside their words."""
    text = estimate_tokens(PLAIN.content)
    assert text < estimate_message(PLAIN) <= text + 10
    assert estimate_message(ModelMessage(role="assistant", content="")) > 0


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        pytest.param({"tool_calls": (CALL,)}, 12, id="a-call"),
        pytest.param({"tool_calls": (CALL, CALL)}, 24, id="two-calls"),
        pytest.param({"tool_call_id": "call_1"}, 8, id="the-result-of-a-call"),
        pytest.param(
            {"attachments": ({"type": "image", "mediaType": "image/png", "data": "AA" * 9999},)},
            4320,
            id="an-image-whatever-its-bytes",
        ),
        pytest.param(
            {"reasoning": Reasoning(provider="p", model="m", blocks=(BLOCK,))}, 150, id="reasoning"
        ),
    ],
)
def test_all_that_a_message_carries_counts(changes: dict[str, Any], least: int) -> None:
    """Lost if red: a turn whose calls, images or thoughts do not fit, refused by its vendor."""
    bare = {"role": "user", "content": PLAIN.content}
    more = estimate_message(ModelMessage(**(bare | changes))) - estimate_message(PLAIN)
    assert least <= more <= 3 * least


def test_request_is_the_sum_of_what_it_sends() -> None:
    """Lost if red: tools and schemas, which no message shows and every call pays for."""
    bare = ModelRequest(system="", messages=())
    with_system = ModelRequest(system="You are brief. " * 30, messages=())
    with_talk = ModelRequest(system="", messages=(PLAIN,) * 3)
    with_tools = ModelRequest(system="", messages=(), tools=(TOOL,))
    with_schema = ModelRequest(system="", messages=(), schema=TOOL.parameters)
    everything = ModelRequest(
        system=with_system.system,
        messages=with_talk.messages,
        tools=with_tools.tools,
        schema=with_schema.schema,
    )
    nothing = estimate_request(bare)
    apart = [
        estimate_request(one) - nothing for one in (with_system, with_talk, with_tools, with_schema)
    ]
    assert nothing <= 16
    assert apart[0] >= 120
    assert apart[1] == 3 * estimate_message(PLAIN)
    assert min(apart[2:]) >= 20
    assert estimate_request(everything) == nothing + sum(apart)
