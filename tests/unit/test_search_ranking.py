"""Ranking and reading of queries: what is scored, by whom it was said, which days are meant."""

from datetime import UTC, datetime

import pytest

from chalicelib.memory.search.months import MONTHS
from chalicelib.memory.search.periods import Period, find_periods
from chalicelib.memory.search.ranking import TALK, Candidate, Hit, finish, rank_places, weigh
from chalicelib.memory.search.terms import TERMS_AT_MOST, is_named, read_query

NOW = datetime(2026, 3, 18, 12, tzinfo=UTC)  # a Wednesday


def hit(place: int, stream: int = 1, at: int = 0) -> Hit:
    return stream, place, at


def ranked(*terms: list[int], near: dict[int, float] | None = None) -> list[Candidate]:
    found = {number: [hit(place) for place in places] for number, places in enumerate(terms)}
    nearest = [(hit(place), cosine) for place, cosine in (near or {}).items()]
    return rank_places(found, dict.fromkeys(found, 1.0), nearest, {}, most=50)


def places(candidates: list[Candidate]) -> list[int]:
    return [one.place[1] for one in candidates]


def test_event_that_says_it_comes_before_its_neighbours() -> None:
    """Lost if red: the message that was asked for, below those around it."""
    assert places(ranked([100]))[:3] == [100, 101, 99]


def test_answer_is_found_by_the_question_before_it() -> None:
    """Lost if red: "In Lisbon." to "Where do you live?", which holds none of the words."""
    assert 101 in places(ranked([100], [100]))
    assert 99 in places(ranked([100], [100]))


def test_neighbours_of_one_conversation_do_not_reach_into_the_next() -> None:
    """Lost if red: yesterday's last message as the context of today's first."""
    last = 5
    assert all(place < TALK for place in places(ranked([last])))


def test_terms_that_meet_around_an_event_count_together() -> None:
    """Lost if red: an event that has both words, behind one that has one of them twice."""
    assert places(ranked([100, 200, 201], [101]))[0] in (100, 101)


def test_conversation_that_holds_all_terms_is_preferred() -> None:
    """Lost if red: of two messages with one word, the one in the talk about the rest of it."""
    both = ranked([100, TALK + 100], [110])
    order = [place for place in places(both) if place in (100, TALK + 100)]
    assert order == [100, TALK + 100]


def test_meaning_alone_finds_an_event() -> None:
    """Lost if red: what is said in other words than it is asked in."""
    assert places(ranked(near={100: 0.8, 200: 0.4}))[0] == 100


def test_opposite_meaning_speaks_for_nothing() -> None:
    """Lost if red: a score that falls for being near to something unrelated."""
    assert all(one.score >= 0 for one in ranked([100], near={100: -0.5}))


def test_rare_terms_weigh_more_and_none_weighs_less_than_nothing() -> None:
    """Lost if red: a word that everyone says outranking the one that was meant."""
    weights = [weigh(held, 1000) for held in (1, 10, 100, 1000, 5000)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] > 0


def test_person_who_was_named_is_preferred_and_a_question_is_not() -> None:
    """Lost if red: someone else's words, or a question, as the answer."""
    one = Candidate(place=(1, 1), score=1.0)
    plain = finish(one, named=False, asks=0.0)
    assert finish(one, named=True, asks=0.0) > plain > finish(one, named=False, asks=1.0)


@pytest.mark.parametrize(
    ("name", "word", "named"),
    [
        pytest.param("Melanie Ortiz", "melanie", True, id="first-name"),
        pytest.param("Melanie Ortiz", "ortiz", True, id="last-name"),
        pytest.param("Melanie", "melany", True, id="written-wrong"),
        pytest.param("Caroline", "carolin", True, id="another-spelling"),
        pytest.param("Benjamin", "benj", True, id="short-for-it"),
        pytest.param("Арина", "арина", True, id="cyrillic"),
        pytest.param("美玲", "美玲", True, id="chinese"),
        pytest.param("Melanie", "me", False, id="pronoun"),
        pytest.param("Artemisia", "art", False, id="a-word-that-it-begins-with"),
        pytest.param("Jack", "jacket", False, id="a-word-that-begins-with-it"),
        pytest.param("Maria", "mario", False, id="someone-else"),
        pytest.param(None, "melanie", False, id="nameless"),
    ],
)
def test_names_are_known_in_a_question(name: str | None, word: str, named: bool) -> None:
    """Lost if red: whose words are looked for."""
    assert is_named(name, frozenset({"what", word})) is named


@pytest.mark.parametrize(
    ("text", "periods"),
    [
        pytest.param("on 8 May 2023", [Period(year=2023, month=5, day=8)], id="day-month-year"),
        pytest.param("May 8th, 2023?", [Period(year=2023, month=5, day=8)], id="month-day-year"),
        pytest.param("in July", [Period(year=None, month=7)], id="month"),
        pytest.param("July 2022", [Period(year=2022, month=7)], id="month-year"),
        pytest.param("2023-05-08", [Period(year=2023, month=5, day=8)], id="iso"),
        pytest.param("2023-05", [Period(year=2023, month=5)], id="iso-month"),
        pytest.param("am 3. Oktober", [Period(year=None, month=10, day=3)], id="german"),
        pytest.param("le 14 juillet", [Period(year=None, month=7, day=14)], id="french"),
        pytest.param("el 2 de enero", [Period(year=None, month=1, day=2)], id="spanish"),
        pytest.param("2023年5月8日", [Period(year=2023, month=5, day=8)], id="chinese"),
        pytest.param("yesterday", [Period(year=2026, month=3, day=17)], id="yesterday"),
        pytest.param("two weeks ago", [Period(year=2026, month=3, day=4)], id="weeks-ago"),
        pytest.param("last month", [Period(year=2026, month=2)], id="last-month"),
        pytest.param("4 months ago", [Period(year=2025, month=11)], id="over-new-year"),
        pytest.param("what may I say?", [], id="may-the-verb"),
        pytest.param("they march on", [], id="march-the-verb"),
        pytest.param("in March", [Period(year=None, month=3)], id="march-the-month"),
        pytest.param("2023-13-41 and 99 May", [], id="no-such-day"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_days_and_months_are_read(text: str, periods: list[Period]) -> None:
    """Lost if red: what was said at the time that was asked for, among all the rest."""
    assert find_periods(text, now=NOW) == periods


def stamp(*day: int) -> int:
    return int(datetime(*day, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]


def test_week_behind_a_named_day_is_nearest() -> None:
    """Lost if red: "I went there on Friday", said on Monday, to a question about Friday."""
    day = Period(year=2023, month=5, day=8)
    assert day.nearness(stamp(2023, 5, 10)) == 1.5
    assert day.nearness(stamp(2023, 5, 28)) == 1.0
    assert day.nearness(stamp(2023, 6, 28)) == 0.0
    assert Period(year=None, month=5).nearness(stamp(2020, 5, 1)) == 1.0
    assert Period(year=2023, month=2, day=30).nearness(stamp(2023, 2, 1)) == 0.0


def test_months_are_twelve_in_every_language() -> None:
    """Lost if red: a month that is taken for its neighbour, for a name that was left out."""
    assert set(MONTHS.values()) == set(range(1, 13))


def test_forms_of_one_word_are_one_term() -> None:
    """Lost if red: "went" and "go" counted twice, and found by neither's other forms."""
    query = read_query("where did she go, she went", ["go", "went"])
    assert len(query.terms) == 1
    assert {"go", "went", "gone"} <= set(query.terms[0])


def test_long_text_is_cut_to_its_longest_words() -> None:
    """Lost if red: a search that takes seconds, for a question with a letter pasted into it."""
    words = [f"w{'o' * (n % 30)}{n}" for n in range(400)]
    query = read_query(" ".join(words), words)
    assert len(query.terms) == TERMS_AT_MOST
    lexemes, parts = query.flat()
    assert len(lexemes) == len(parts) >= TERMS_AT_MOST
