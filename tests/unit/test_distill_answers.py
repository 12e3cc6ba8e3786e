"""Models' answers as they come: which one is read, which items of it stay, which raise."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.memory.distill.answers import ITEMS_AT_MOST, read_answer
from chalicelib.providers.asking import UnreadableAnswer

ITEM = {"topic": "diet", "content": "Is a vegetarian.", "confidence": 0.9}
ONE = json.dumps({"distillates": [ITEM]})
OTHER = json.dumps({"distillates": [{**ITEM, "content": "Eats meat."}]})


def answer_of(*items: Any) -> str:
    return json.dumps({"distillates": list(items)})


def only(**changes: Any) -> Any:
    """The one item that is read of an answer with these changes, else the reason it is not."""
    answer = read_answer(answer_of({**ITEM, **changes}))
    return answer.items[0] if answer.items else answer.dropped.most_common()[0][0]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ONE, id="bare"),
        pytest.param(f"\ufeff \n{ONE}\n", id="byte-order-mark"),
        pytest.param(f"```json\n{ONE}\n```", id="fenced"),
        pytest.param(f"Here are the facts:\n{ONE}\nHope this helps {{smile}}", id="prose-around"),
        pytest.param(f"See [1] and [this](x), or {{a}}:\n```\n{ONE}\n```\nDone {{", id="brackets"),
        pytest.param(f"<think>I {{draft}} a little</think>{ONE}", id="thought-with-braces"),
        pytest.param(f"<think>maybe {OTHER}</think>\n{ONE}", id="thought-with-a-draft"),
        pytest.param(f'<think>{{"distillates": [{{"a": </think>{ONE}', id="draft-cut-off"),
        pytest.param(f"maybe {OTHER}\n</think>\n{ONE}", id="thought-without-its-beginning"),
        pytest.param(f"{ONE}\nOr, once more:\n{ONE}", id="the-same-twice"),
        pytest.param(f'{{"note": 1}} {ONE}', id="another-object-beside-it"),
        pytest.param(ONE[:-1] + ', "comment": "none"}', id="more-names-than-asked-for"),
    ],
)
def test_the_intended_object_is_found(text: str) -> None:
    """Lost if red: a whole pass, to a model that says a word too many (MEM-1)."""
    answer = read_answer(text)
    assert [item.content for item in answer.items] == ["Is a vegetarian."]
    assert not answer.dropped


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" \n\t", id="blank"),
        pytest.param("I'm sorry, I can't help with SECRETWORD.", id="refusal"),
        pytest.param(f"{ONE} or {OTHER}", id="two-answers"),
        pytest.param(json.dumps([ITEM]), id="bare-array"),
        pytest.param(f"[{ONE}]", id="answer-in-an-array"),
        pytest.param('{"facts": null}', id="other-name"),
        pytest.param('{"distillates": null}', id="null"),
        pytest.param('{"distillates": {"0": {}}}', id="object-for-a-list"),
        pytest.param('{"distillates": "[]"}', id="text-for-a-list"),
        pytest.param('{"result": ' + ONE + "}", id="answer-one-level-down"),
        pytest.param(json.dumps(ITEM), id="an-item-alone"),
        pytest.param("null", id="null-alone"),
        pytest.param(ONE[:-1], id="last-brace-cut"),
        pytest.param(ONE[:-12], id="cut-in-a-number"),
        pytest.param(ONE[:40], id="cut-in-a-text"),
        pytest.param("```json\n" + ONE[:-2] + "\n```", id="cut-within-a-fence"),
        pytest.param('{"a": ' + ONE, id="cut-around-a-whole-one"),
        pytest.param(f"{ONE} {OTHER[:-3]}", id="a-second-one-cut"),
        pytest.param(f"<think>so {ONE}", id="thought-that-never-ends"),
        pytest.param('{"distillates": [], "distillates": [1]}', id="name-given-twice"),
        pytest.param('{"distillates": ' + "[" * 100_000, id="deep"),
        pytest.param("[" * 100_000, id="deep-array"),
        pytest.param('{"a":' * 50_000, id="deep-objects"),
        pytest.param(ONE + " " * 400_000, id="too-long"),
        pytest.param("{'distillates': []}", id="single-quotes"),
    ],
)
def test_what_is_not_one_answer_raises_and_is_not_quoted(text: str) -> None:
    """Lost if red: that a failed run is told apart from a run without facts (MEM-1)."""
    with pytest.raises(UnreadableAnswer) as raised:
        read_answer(text)
    words = str(raised.value)
    assert "SECRETWORD" not in words
    assert "vegetarian" not in words
    assert raised.value.__context__ is None  # a JSON error holds the whole text


def test_an_empty_list_is_an_answer() -> None:
    """Lost if red: a chunk without facts would hold up its tenant for ever."""
    answer = read_answer('{"distillates": []}')
    assert (answer.items, dict(answer.dropped)) == ((), {})


def test_bad_items_are_dropped_and_good_ones_stay() -> None:
    """Lost if red: all of a chunk's facts, to one that is malformed (MEM-1)."""
    twice = '{"topic": "a", "topic": "b", "content": "c", "confidence": 1}'
    text = answer_of(
        "Likes tea", None, 7, [ITEM], {}, ITEM, {**ITEM, "content": 5}, {**ITEM, "confidence": "x"}
    )
    answer = read_answer(text[:-2] + f", {twice}]}}")
    assert [item.topic for item in answer.items] == ["diet"]
    assert answer.dropped == {
        "not_an_object": 4,
        "no_topic": 1,
        "no_content": 1,
        "invalid_confidence": 1,
        "repeated_name": 1,
    }


@pytest.mark.parametrize(
    ("literal", "read"),
    [
        pytest.param("0.6", 0.6, id="floor"),
        pytest.param("1", 1.0, id="whole"),
        pytest.param("6e-1", 0.6, id="exponent"),
        pytest.param('"0.8"', 0.8, id="numeric-text"),
        pytest.param('" .75 "', 0.75, id="numeric-text-spaced"),
        pytest.param("0.5999", "low_confidence", id="below"),
        pytest.param('"0.5"', "low_confidence", id="text-below"),
        pytest.param("0", "low_confidence", id="zero"),
        pytest.param("1e-999", "low_confidence", id="too-small-to-tell"),
        pytest.param('"high"', "invalid_confidence", id="word"),
        pytest.param('"80%"', "invalid_confidence", id="percent"),
        pytest.param('"0,8"', "invalid_confidence", id="comma"),
        pytest.param('"٠.٨"', "invalid_confidence", id="digits-of-another-script"),
        pytest.param('"nan"', "invalid_confidence", id="nan-as-text"),
        pytest.param('"inf"', "invalid_confidence", id="infinity-as-text"),
        pytest.param('"0_1.0"', "invalid_confidence", id="underscore"),
        pytest.param('""', "invalid_confidence", id="empty-text"),
        pytest.param("85", "invalid_confidence", id="of-a-hundred"),
        pytest.param("1.5", "invalid_confidence", id="above"),
        pytest.param('"1.5"', "invalid_confidence", id="text-above"),
        pytest.param("-1", "invalid_confidence", id="negative"),
        pytest.param("true", "invalid_confidence", id="true"),
        pytest.param("null", "invalid_confidence", id="null"),
        pytest.param("[0.9]", "invalid_confidence", id="list"),
        pytest.param('{"value": 0.9}', "invalid_confidence", id="object"),
        pytest.param("NaN", "invalid_confidence", id="nan"),
        pytest.param("Infinity", "invalid_confidence", id="infinity"),
        pytest.param("-Infinity", "invalid_confidence", id="minus-infinity"),
        pytest.param("1e999", "invalid_confidence", id="too-large"),
        pytest.param("9" * 5_000, "invalid_confidence", id="too-many-digits-to-read"),
    ],
)
def test_confidence_is_a_number_of_0_to_1_and_nothing_else(literal: str, read: Any) -> None:
    """Lost if red: a fact that no one was sure of; or the batch, to one odd number (MEM-12)."""
    odd = '{"topic": "t", "content": "c", "confidence": ' + literal + "}"
    answer = read_answer(f'{{"distillates": [{odd}, {json.dumps(ITEM)}]}}')
    assert answer.items[-1].topic == "diet"
    if isinstance(read, str):
        assert (len(answer.items), answer.dropped) == (1, {read: 1})
    else:
        assert (answer.items[0].confidence, answer.dropped) == (read, {})


def test_an_item_without_confidence_is_dropped() -> None:
    """Lost if red: the floor, which leaving the field out would pass under (MEM-12)."""
    assert read_answer(answer_of({"topic": "t", "content": "c"})).dropped == {
        "invalid_confidence": 1
    }


@pytest.mark.parametrize(
    ("given", "topic"),
    [
        pytest.param("  Preferred_Style ", "Preferred_Style", id="trimmed-else-as-given"),
        pytest.param("x" * 80, "x" * 80, id="80"),
        pytest.param("😀" * 80, "😀" * 80, id="80-beyond-the-basic-plane"),
        pytest.param("x" * 81, "topic_too_long", id="81"),
        pytest.param("  ", "no_topic", id="blank"),
        pytest.param("\u200b\u200d", "no_topic", id="nothing-to-be-seen"),
        pytest.param("_ _", "no_topic", id="nothing-once-folded"),
        pytest.param(None, "no_topic", id="null"),
        pytest.param(["diet"], "no_topic", id="list"),
        pytest.param("a\nb", "topic_with_controls", id="line-break"),
        pytest.param("a\u2028b", "topic_with_controls", id="line-separator"),
        pytest.param("a\x1bb", "topic_with_controls", id="escape"),
        pytest.param("a\x00b", "unstorable_text", id="nul"),
        pytest.param("a\ud800b", "unstorable_text", id="lone-surrogate"),
    ],
)
def test_topics(given: Any, topic: str) -> None:
    """Lost if red: topics that the table refuses would fail each pass over them."""
    read = only(topic=given)
    assert (read if isinstance(read, str) else read.topic) == topic


@pytest.mark.parametrize(
    ("given", "content"),
    [
        pytest.param("  Allergica alle noci. \n", "Allergica alle noci.", id="trimmed"),
        pytest.param("x" * 500, "x" * 500, id="500"),
        pytest.param("x" * 501, "content_too_long", id="501"),
        pytest.param("\n", "no_content", id="blank"),
        pytest.param({}, "no_content", id="object"),
        pytest.param("a\x00", "unstorable_text", id="nul"),
        pytest.param("\udfff", "unstorable_text", id="lone-surrogate"),
        pytest.param("\ud83d\ude00", "😀", id="surrogates-that-are-a-pair"),
    ],
)
def test_contents(given: Any, content: str) -> None:
    """Lost if red: contents that Postgres refuses would fail each pass over them."""
    read = only(content=given)
    assert (read if isinstance(read, str) else read.content) == content


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        pytest.param(" Ann Lee ", "Ann Lee", id="trimmed"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="null"),
        pytest.param(5, "invalid_hint", id="number"),
        pytest.param("x" * 200, "x" * 200, id="200"),
        pytest.param("x" * 201, "invalid_hint", id="201"),
        pytest.param("a\x00", "unstorable_text", id="nul"),
    ],
)
def test_hints(given: Any, hint: Any) -> None:
    """Lost if red: who a fact is about."""
    read = only(personHint=given)
    assert (read if isinstance(read, str) else read.person_hint) == hint


@pytest.mark.parametrize(
    ("given", "read"),
    [
        pytest.param("2026-03-14", datetime(2026, 3, 14, tzinfo=UTC), id="date"),
        pytest.param(
            "2026-03-14T10:30:00+02:00", datetime(2026, 3, 14, 8, 30, tzinfo=UTC), id="offset"
        ),
        pytest.param("2026-03-14t10:30:00.5z", datetime(2026, 3, 14, 10, 30, 0, 500_000, UTC)),
        pytest.param("2026-03-14 10:30", datetime(2026, 3, 14, 10, 30, tzinfo=UTC), id="no-zone"),
        pytest.param("1900-01-01", datetime(1900, 1, 1, tzinfo=UTC), id="1900"),
        pytest.param("1899-12-31T23:00:00Z", None, id="1899"),
        pytest.param("2201-01-01", None, id="2201"),
        pytest.param("0001-01-01T00:00:00+14:00", None, id="before-all-time"),
        pytest.param("2026-02-30", None, id="no-such-day"),
        pytest.param("next Friday", None, id="words"),
        pytest.param("20260314", None, id="no-dashes"),
        pytest.param("", None, id="empty"),
        pytest.param(1_700_000_000, None, id="number"),
        pytest.param(None, None, id="null"),
    ],
)
def test_times_that_cannot_be_read_leave_the_item(given: Any, read: datetime | None) -> None:
    """Lost if red: a fact, to a date that its model wrote in words."""
    assert only(occurredAt=given).occurred_at == read


@pytest.mark.parametrize(
    ("given", "line"),
    [
        pytest.param(3, 3, id="whole"),
        pytest.param(3.0, 3, id="float"),
        pytest.param("3", 3, id="text"),
        pytest.param(2.5, None, id="half"),
        pytest.param(True, None, id="true"),
        pytest.param("line 3", None, id="words"),
        pytest.param(float("nan"), None, id="nan"),
        pytest.param(10**400, None, id="huge"),
        pytest.param(None, None, id="null"),
    ],
)
def test_lines(given: Any, line: int | None) -> None:
    """Lost if red: which message a fact rests on."""
    assert only(line=given).line == line


@pytest.mark.parametrize(
    ("given", "inferred"), [(None, False), (False, False), (True, True), ("true", True)]
)
def test_what_may_be_inferred_counts_as_inferred(given: Any, inferred: bool) -> None:
    """Lost if red: that a guess never supersedes what was said."""
    assert only(inferred=given).inferred is inferred


def test_items_over_the_most_are_counted() -> None:
    """Lost if red: a bound on what one chunk writes, or the sight of what it cost."""
    items = [{**ITEM, "topic": f"t{number}"} for number in range(ITEMS_AT_MOST + 3)]
    answer = read_answer(answer_of("no item", *items))
    assert [item.topic for item in answer.items] == [f"t{n}" for n in range(ITEMS_AT_MOST)]
    assert answer.dropped == {"not_an_object": 1, "too_many": 3}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"k":1 ' * 50_000, id="many-objects-that-break-off"),
        pytest.param("{" * 390_000, id="braces"),
        pytest.param('{"k":{"k":' * 400 + "[1," * 3, id="deep-within-reach"),
        pytest.param(('{"k":' * 300 + "1,") * 150, id="deep-again-and-again"),
    ],
)
def test_a_hostile_answer_is_refused_in_no_time(text: str) -> None:
    """Lost if red: the five minutes of a slice, to an answer of braces."""
    began = time.process_time()
    with pytest.raises(UnreadableAnswer):
        read_answer(text)
    assert time.process_time() - began < 2
