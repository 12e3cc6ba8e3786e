"""Facts of one topic on a real Postgres: one stands, and what stood before leads to it."""

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import replace

import psycopg
import pytest

from chalicelib.memory.distill.shapes import Origin
from tests.support.distilling import Memory, fact, rows
from tests.support.stack import Stack


@pytest.fixture
def memory(stack: Stack) -> Memory:
    return Memory(stack, stack.caller)


@pytest.fixture
def ann(memory: Memory) -> str:
    return memory.person("Ann")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The favourite player is Rossi.", "The favourite player is Bianchi."),
        ("Ann lives in Lyon.", "Ann lives in Oslo."),
        ("Ann is a vegetarian.", "Ann is no longer a vegetarian."),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_newest_statement_stands_whenever_it_is_read(
    memory: Memory, ann: str, old: str, new: str, late: bool
) -> None:
    """Lost if red: what someone has become, to what they were a week before (MEM-3)."""
    batches = [fact(old, ann, 0), fact(new, ann, 7)]
    for one in batches[::-1] if late else batches:
        assert memory.write(one) == 1
    [active] = memory.active(person_id=ann)
    assert active["content"] == new
    newest, before = memory.history(active["id"])
    assert newest == active
    assert (before["content"], before["superseded_by"]) == (old, active["id"])
    assert before["superseded_at"] >= before["created_at"]


def test_batch_comes_to_the_same_in_any_order(memory: Memory, stack: Stack) -> None:
    """Lost if red: facts that hang on the order in which a model lists them."""
    told: list[tuple[str, float, Origin]] = [
        ("a guess", 9, "inferred"),
        ("Lyon", 1, "stated"),
        ("seen in Rome", 8, "observed"),
        ("Oslo", 3, "stated"),
    ]
    chains = set()
    for number, order in enumerate(itertools.permutations(told)):
        person = memory.person(f"P{number}")
        memory.write(*(fact(text, person, day, origin=origin) for text, day, origin in order))
        [active] = memory.active(person_id=person)
        assert active["content"] == "Oslo"
        chain = memory.history(active["id"])
        assert [one["content"] for one in chain] == ["Oslo", "Lyon"]
        assert chain[1]["superseded_by"] == active["id"]
        chains.add(tuple(one["content"] for one in chain))
    assert len(chains) == 1
    orphans = (
        "SELECT count(*) FROM pal.memory_distillates d LEFT JOIN pal.memory_distillates s"
        " ON s.id = d.superseded_by WHERE d.superseded_by IS NOT NULL AND s.id IS NULL"
    )
    assert stack.database.one(orphans) == 0


def test_each_of_a_chain_is_superseded_by_the_next(memory: Memory, ann: str) -> None:
    """Lost if red: the way from what was once said to what holds now."""
    memory.write(*(fact(f"{n} snapshots", ann, n) for n in (3, 1, 0, 2)))
    memory.write(fact("4 snapshots", ann, 4))
    [active] = memory.active()
    chain = memory.history(active["id"])
    assert [one["content"] for one in chain] == [f"{n} snapshots" for n in (4, 3, 2, 1, 0)]
    for newer, older in itertools.pairwise(chain):
        assert older["superseded_by"] == newer["id"]
    assert memory.history(chain[-1]["id"]) == memory.history(chain[2]["id"]) == chain


@pytest.mark.parametrize(
    ("first", "then", "stands"),
    [
        ("stated", "observed", "first"),
        ("stated", "inferred", "first"),
        ("observed", "inferred", "first"),
        ("promoted", "inferred", "first"),
        ("inferred", "observed", "then"),
        ("inferred", "stated", "then"),
        ("observed", "promoted", "then"),
    ],
)
def test_lesser_word_never_supersedes_a_better_one(
    memory: Memory, ann: str, first: Origin, then: Origin, stands: str
) -> None:
    """Lost if red: what a person said of themself, to what someone made of it."""
    dropped: Counter[str] = Counter()
    memory.write(fact("first", ann, 0, origin=first))
    found = memory.write(fact("then", ann, 5, origin=then), dropped=dropped)
    assert memory.contents() == {stands}
    assert found == (stands == "then")
    assert dropped["outranked"] == (stands == "first")


def test_better_word_stands_though_it_is_older(memory: Memory, ann: str) -> None:
    """Lost if red: what a person said, for a guess that was made on the day after."""
    memory.write(fact("a guess", ann, 9, origin="inferred"))
    memory.write(fact("their word", ann, 1))
    [active] = memory.active()
    assert active["content"] == "their word"
    assert [one["content"] for one in memory.history(active["id"])] == ["their word", "a guess"]


def test_same_content_is_no_new_row(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a prompt that says one thing ten times, ever more surely (MEM-9, MEM-13)."""
    memory.write(fact("i LIKE cats!", ann, 0, confidence=0.7))
    [before] = memory.active()
    for content in ("I like cats!", "I like  cats.", "Ｉ like cats"):
        assert memory.write(fact(content, ann, 1, confidence=0.7)) == 1
    [after] = memory.active()
    assert {**after, "updated_at": ""} == {**before, "updated_at": ""}
    assert after["updated_at"] > before["updated_at"]
    memory.write(fact("i like cats", ann, 2, confidence=0.9))
    memory.write(fact("i like cats", ann, 3, confidence=0.6))
    assert memory.active()[0]["confidence"] == 0.9
    assert len(rows(stack)) == 1


def test_repetition_is_by_its_own_day(memory: Memory, ann: str) -> None:
    """Lost if red: that someone is back in Lyon, to the move that was told in between."""
    memory.write(fact("Lyon", ann, 0))
    memory.write(fact("Lyon", ann, 9))
    memory.write(fact("Oslo", ann, 5))
    assert memory.contents() == {"Lyon"}


def test_repetition_by_a_lesser_word_does_not_make_it_newer(memory: Memory, ann: str) -> None:
    """Lost if red: what a person said, to a guess of what they said before."""
    memory.write(fact("Lyon", ann, 0))
    memory.write(fact("Lyon", ann, 9, origin="inferred"))
    memory.write(fact("Oslo", ann, 5))
    assert memory.contents() == {"Oslo"}


def test_repetition_by_a_better_word_raises_the_origin(memory: Memory, ann: str) -> None:
    """Lost if red: that a fact is a person's own word, where it was guessed at first."""
    memory.write(fact("Lyon", ann, 0, origin="inferred"))
    memory.write(fact("Lyon", ann, 1, origin="stated"))
    memory.write(fact("Lyon", ann, 2, origin="observed"))
    [active] = memory.active()
    assert active["origin"] == "stated"
    memory.write(fact("Oslo", ann, 3, origin="observed"))
    assert memory.contents() == {"Lyon"}


def test_reading_a_batch_again_adds_nothing(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a history that grows with every retry (MEM-13)."""
    batch = [
        fact("chess", ann, 1, topic="hobby"),
        fact("sailing", ann, 1, topic="hobby"),
        fact("Lyon", ann, 1),
        fact("Oslo", ann, 2),
        fact("Lyon", ann, 3),
        fact("a guess", ann, 4, topic="job", origin="inferred"),
        fact("baker", ann, 2, topic="job"),
    ]
    memory.write(*batch)
    before = stack.database.rows(
        "SELECT id, content, superseded_by, said_at FROM pal.memory_distillates ORDER BY id"
    )
    memory.write(*batch)
    memory.write(*batch[::-1])
    for one in batch:
        memory.write(one)
    assert before == stack.database.rows(
        "SELECT id, content, superseded_by, said_at FROM pal.memory_distillates ORDER BY id"
    )
    assert memory.contents() >= {"Lyon", "baker"}


def test_topics_are_one_by_case_width_and_underscore(memory: Memory, ann: str) -> None:
    """Lost if red: two homes, because a model spelt the topic in two ways."""
    memory.write(fact("Lyon", ann, 0, topic="Home Town"))
    memory.write(fact("Oslo", ann, 1, topic="home_town"))
    [active] = memory.active(topic="HOME  town")
    assert (active["content"], active["topic"]) == ("Oslo", "home_town")
    assert memory.active(topic="town") == []


def test_people_and_groups_do_not_mix(memory: Memory, ann: str) -> None:
    """Lost if red: one person's home, to another's move."""
    ben = memory.person("Ben")
    memory.write(
        fact("Lyon", ann, 0),
        fact("Oslo", ben, 1),
        fact("of the family", None, 0, group_id="family"),
        fact("of the team", None, 1, group_id="team"),
        fact("of no one", None, 2),
    )
    assert len(memory.active()) == 5
    memory.write(fact("of the team, new", None, 3, group_id="team"))
    assert memory.contents() == {
        "Lyon", "Oslo", "of the family", "of the team, new", "of no one",
    }  # fmt: skip
    assert memory.contents(person_id=ben) == {"Oslo"}


def test_two_thousand_facts_take_less_than_three_seconds(memory: Memory) -> None:
    """Lost if red: passes that end only with their lease."""
    owners = [memory.person(f"P{n}") for n in range(50)]
    made = [
        fact(f"{text} {n}", one, random.Random(n).randrange(9), topic=f"topic {n}")
        for n in range(40)
        for one in owners
        for text in ("value",)
    ]
    for text in ("value", "other"):
        began = time.monotonic()
        again = [replace(one, content=f"{text} {one.content}") for one in made]
        assert memory.write(*again) == 2_000
        assert time.monotonic() - began < 3


def test_nothing_is_written_where_a_write_fails(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a topic that is superseded by nothing (MEM-4)."""
    memory.write(fact("likes Chinese food", ann, 0))
    before = rows(stack)
    stack.database.rows(
        "CREATE FUNCTION pal.fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$"
    )
    stack.database.rows(
        "CREATE TRIGGER fail BEFORE INSERT ON pal.memory_distillates"
        " FOR EACH ROW EXECUTE FUNCTION pal.fail()"
    )
    with pytest.raises(psycopg.errors.RaiseException):
        memory.write(fact("hates Chinese food", ann, 1))
    assert rows(stack) == before


def test_writers_at_once_leave_one_active_row(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: two answers to one question, or a pass that fails beside a `remember`."""

    async def write_all(person: str | None) -> None:
        await asyncio.gather(
            *(memory.writing(fact(f"value {n}", person, n)) for n in random.sample(range(12), 12))
        )

    memory.run(write_all(ann))
    memory.run(write_all(None))
    assert [one["content"] for one in memory.active()] == ["value 11"] * 2
    assert len(rows(stack)) == 24
