"""The quality set itself: that it is what it says, and that its judge can tell right from wrong."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from tests.distillation.corpus import Transcript, load_corpus
from tests.distillation.judge import Tally, Told, judge

THEMES = {
    "assistant", "changes", "corrections", "dates", "facts", "injections",
    "irony", "negations", "nothing", "others", "quotes", "secrets",
}  # fmt: skip

CASE = {
    "id": "en-x",
    "language": "en",
    "theme": "facts",
    "people": {"ann": {"name": "Ann", "handle": "user:ann"}},
    "at": datetime(2025, 1, 1, tzinfo=UTC),
    "messages": [{"ann": "I moved from Lyon to Oslo."}, {"assistant": "Nice."}],
    "must": [{"of": "ann", "says": ["oslo"], "supersedes": "lyon"}],
    "may": [{"says": "likes snow"}],
    "must_not": [{"of": "ann", "says": "nice"}],
    "model": [{"topic": "home", "content": "Lives in Oslo", "confidence": 0.9, "line": 1}],
}


def told(content: str, *, of: str = "ann") -> Told:
    return Told(of=of, topic="t", content=content)


def test_set_is_as_wide_as_people_are() -> None:
    """Lost if red: what is measured for people who do not write English."""
    corpus = load_corpus()
    assert len(corpus) >= 64
    assert {one.theme for one in corpus} == THEMES
    assert min(Counter(one.theme for one in corpus).values()) >= 8
    several = [name for name, n in Counter(one.language for one in corpus).items() if n >= 3]
    assert len(several) >= 10


def test_scripted_model_is_bad_enough_to_be_worth_stopping() -> None:
    """Lost if red: a pipeline that stops nothing and passes all the same."""
    bad = Counter(
        item["bad"]
        for one in load_corpus()
        for talk in one.conversations
        for item in talk.items
        if "bad" in item
    )
    for reason, least in {
        "said by the assistant": 12,
        "said by a tool": 4,
        "secret": 12,
        "instruction": 5,
        "confidence": 10,
        "not a number": 3,
        "out of range": 2,
    }.items():
        assert bad[reason] >= least, reason


@pytest.mark.parametrize("one", load_corpus(), ids=lambda one: one.id)
def test_good_answers_are_what_is_expected(one: Transcript) -> None:
    """Lost if red: transcripts that no answer can satisfy, or whose own model breaks the rules."""
    good = [
        f"{item['topic']}: {item['content']}"
        for talk in one.conversations
        for item in talk.items
        if "bad" not in item
    ]
    if not any(isinstance(talk.model, str) for talk in one.conversations):
        for must in one.must:
            assert any(must.matches(must.of, text) for text in good), must
    for never in one.must_not:
        assert not [text for text in good if never.of == "anyone" and never.matches("", text)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": "it-x"}, "begins with its language"),
        ({"must": [{"of": "bob", "says": "x"}]}, "no one is called bob"),
        ({"must": [{"says": "("}]}, "unterminated"),
        ({"messages": [{"bob": "hello"}]}, "no one is called bob"),
        ({"musts": []}, "Extra inputs"),
        ({"must": [], "may": [], "must_not": [], "model": []}, "expects nothing"),
        ({"model": [{"topic": "t", "content": "oslo", "line": 3}]}, "no line 3"),
        ({"model": [{"topic": "t", "content": "oslo", "sure": 1}]}, "no sure"),
        ({"model": [{"topic": "t", "content": "Likes tea"}]}, "neither expected nor marked"),
        ({"people": {"ann": {"name": "Ann", "handle": "ann"}}}, "pattern"),
    ],
)
def test_loader_refuses_what_is_not_as_described(change: dict, told: str) -> None:
    """Lost if red: expectations that are misspelt, and so never looked at."""
    Transcript.model_validate(CASE)
    with pytest.raises(ValidationError, match=told):
        Transcript.model_validate({**CASE, **change})


@pytest.mark.parametrize(
    ("facts", "missing", "stale", "forbidden", "extra", "right"),
    [
        pytest.param([told("Lives in Oslo")], 0, 0, 0, 0, 1, id="as-wanted"),
        pytest.param([], 1, 0, 0, 0, 0, id="nothing"),
        pytest.param([told("Lives in Oslo", of="nobody")], 1, 0, 0, 1, 0, id="of-no-one"),
        pytest.param([told("Oslo"), told("Lives in Lyon")], 0, 1, 0, 0, 1, id="old-one-too"),
        pytest.param([told("In Oslo, was in Lyon")], 0, 1, 0, 0, 0, id="both-in-one"),
        pytest.param([told("Oslo is nice")], 0, 0, 1, 0, 0, id="forbidden"),
        pytest.param([told("Oslo"), told("nice", of="nobody")], 0, 0, 0, 1, 1, id="others"),
        pytest.param([told("Oslo"), told("LIKES SNOW")], 0, 0, 0, 0, 2, id="allowed"),
        pytest.param([told("Oslo"), told("Likes tea")], 0, 0, 0, 1, 1, id="extra"),
    ],
)
def test_judge_tells_right_from_wrong(
    facts: list[Told], missing: int, stale: int, forbidden: int, extra: int, right: int
) -> None:
    """Lost if red: figures that are good whatever a model does."""
    verdict = judge(Transcript.model_validate(CASE), facts)
    found = [verdict.missing, verdict.stale, verdict.forbidden, verdict.extra]
    assert [len(one) for one in found] == [missing, stale, forbidden, extra]
    assert verdict.right == right
    assert verdict.fine == (not (missing or stale or forbidden))


def test_tally_is_of_facts_and_not_of_transcripts() -> None:
    """Lost if red: precision, recall and supersession accuracy that mean something else."""
    case = Transcript.model_validate(CASE)
    good = judge(case, [told("Oslo"), told("likes snow")])
    worse = judge(case, [told("Lives in Lyon"), told("Likes tea")])
    tally = Tally.of([good, worse])
    assert (tally.precision, tally.recall, tally.supersession) == (0.5, 0.5, 0.5)
    assert (tally.transcripts, tally.fine) == (2, 1)
    empty = Tally.of([])
    assert (empty.precision, empty.recall, empty.supersession) == (None, None, None)
