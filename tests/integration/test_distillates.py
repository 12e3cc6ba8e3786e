"""Distillates on a real Postgres: whose they are, how they are forgotten, remembered and found."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from chalicelib.errors import IdempotencyConflict, InvalidField, NotFound
from chalicelib.idempotency import Once
from chalicelib.memory.distill.shapes import Fact
from chalicelib.memory.facts import active_facts
from chalicelib.memory.topics import unattached_key
from tests.support.distilling import MONDAY, Memory, fact, rows
from tests.support.stack import Stack
from tests.support.waiting import until

NO_PERSON = "per_0000000000000000000000none"


@pytest.fixture
def memory(stack: Stack) -> Memory:
    return Memory(stack, stack.caller)


@pytest.fixture
def ann(memory: Memory) -> str:
    return memory.person("Ann")


# ── people ──────────────────────────────────────────────────────────────────────────────────────


def test_fact_of_one_who_was_merged_is_the_survivors(memory: Memory, ann: str) -> None:
    """Lost if red: what is read of a person while someone tidies up."""
    old = memory.person("Ann?")
    memory.merge(old, ann)
    memory.write(fact("Lyon", old, 0))
    memory.write(fact("Oslo", ann, 1))
    [active] = memory.active(person_id=old)
    assert (active["content"], active["person_id"]) == ("Oslo", ann)


def test_fact_of_one_who_was_deleted_is_dropped(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a person's facts, after they were deleted."""
    dropped: Counter[str] = Counter()
    stack.database.rows("DELETE FROM pal.people WHERE id = %s", ann)
    assert memory.write(fact("Lyon", ann), fact("kept", None), dropped=dropped) == 1
    assert (memory.contents(), dropped["gone"]) == ({"kept"}, 1)


def test_merge_brings_the_facts_together(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: half of what is known of a person, or two homes of theirs."""
    old, ben = memory.person("Ann?"), memory.person("Ben")
    memory.write(
        fact("Lyon", old, 0),
        fact("Oslo", old, 2),
        fact("Rome", ann, 1),
        fact("a guess", old, 9, topic="job", origin="inferred"),
        fact("a baker", ann, 1, topic="job"),
        fact("chess", ann, 1, topic="hobby"),
        fact("go", old, 1, topic="hobby"),
        fact("tea", old, 1, topic="drink"),
        fact("of Ben", ben, 1, said_by=old),
    )
    memory.merge(old, ann)
    assert memory.contents(person_id=ann) == {"Oslo", "a baker", "chess", "tea"}
    [home] = memory.active(topic="home", person_id=old)
    assert [one["content"] for one in memory.history(home["id"])] == ["Oslo", "Rome", "Lyon"]
    left = "SELECT count(*) FROM pal.memory_distillates WHERE person_id = %s OR said_by = %s"
    assert stack.database.one(left, old, old) == 0
    said_by = "SELECT said_by FROM pal.memory_distillates WHERE person_id = %s"
    assert stack.database.one(said_by, ben) == ann


def test_merge_takes_along_what_was_forgotten(memory: Memory, ann: str) -> None:
    """Lost if red: a forgotten fact that comes back with another id of the same person."""
    old = memory.person("Ann?")
    memory.write(fact("Lyon", old))
    memory.forget(memory.active()[0]["id"])
    memory.merge(old, ann)
    assert memory.write(fact("Lyon", ann)) == 0


# ── forgetting ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", [0, 1, 2])
def test_forget_takes_the_whole_chain(memory: Memory, stack: Stack, ann: str, which: int) -> None:
    """Lost if red: what someone had forgotten, in what it had replaced or was replaced by."""
    memory.write(*(fact(f"home {n}", ann, n) for n in range(3)), fact("tea", ann, topic="drink"))
    [active] = memory.active(topic="home")
    chain = memory.history(active["id"])
    memory.forget(chain[which]["id"])
    assert memory.contents() == {"tea"}
    for one in chain:
        with pytest.raises(NotFound):
            memory.history(one["id"])
        with pytest.raises(NotFound):
            memory.forget(one["id"])
    kept = str(stack.database.rows("SELECT t.*::text FROM pal.memory_forgotten t"))
    assert "home " not in kept


def test_tombstone_keeps_older_material_out(memory: Memory, ann: str) -> None:
    """Lost if red: that forgetting is for good, at the next pass over what was said before."""
    memory.write(fact("Lyon", ann, 0), fact("Oslo", ann, 1))
    memory.forget(memory.active()[0]["id"])
    dropped: Counter[str] = Counter()
    older = [
        fact("Rome", ann, 2),
        fact("LYON.", ann, 3, topic="city"),
        fact("Oslo", ann, 3, topic="moved to"),
    ]
    assert memory.write(*older, dropped=dropped) == 0
    assert dropped["forgotten"] == 3
    assert memory.active() == []
    ben = memory.person("Ben")
    later = (datetime.now(UTC) - MONDAY).days + 1
    assert memory.write(fact("Lyon", ben, 0), fact("Lyon", ann, later)) == 2


def test_tombstone_of_no_one_is_its_groups(memory: Memory) -> None:
    """Lost if red: the same, of what is about no one in particular."""
    memory.write(fact("Lyon", None, group_id="family"))
    memory.forget(memory.active()[0]["id"])
    assert memory.write(fact("Rome", None, group_id="family")) == 0
    assert memory.write(fact("Rome", None, group_id="team"), fact("Rome", None)) == 2


def test_merge_brings_together_what_each_told_of_a_friend(memory: Memory, ann: str) -> None:
    """Lost if red: where a friend lives now, beside where they lived; or that it was forgotten."""
    other = memory.person("Annie")

    def of_jack(content: str, by: str, day: float, topic: str = "home") -> Fact:
        key = unattached_key(topic, name="Jack", place=by)
        return fact(content, None, day, topic=topic, topic_key=key, said_by=by)

    memory.write(of_jack("Jack lives in Rome.", ann, 0), of_jack("Jack is a cook.", ann, 0, "job"))
    [job] = memory.active(topic="job")
    memory.forget(job["id"])
    memory.write(of_jack("Jack lives in Oslo.", other, 7))
    memory.merge(ann, other)
    [active] = memory.active()
    assert active["content"] == "Jack lives in Oslo."
    assert memory.write(of_jack("Jack lives in Bonn.", other, 9)) == 1
    [active] = memory.active()
    past = [one["content"] for one in memory.history(active["id"])]
    assert past == ["Jack lives in Bonn.", "Jack lives in Oslo.", "Jack lives in Rome."]
    assert memory.write(of_jack("Jack is a baker.", other, 0, "job")) == 0
    # read before the merge, written after it
    assert memory.write(of_jack("Jack lives in Kiel.", ann, 11)) == 1
    assert memory.contents() == {"Jack lives in Kiel."}


@pytest.mark.parametrize("merging", [False, True])
def test_rows_that_change_while_they_are_waited_for_are_not_lost(
    memory: Memory, stack: Stack, ann: str, merging: bool
) -> None:
    """Lost if red: a pass or a merge, to the merge of another who told of the same person."""
    other = memory.person("Annie")
    topics = ("a", "b", "c", "d")
    memory.write(*(fact("old", ann, 0, topic=one) for one in topics))
    newer = [fact("new", other if merging else ann, 1, topic=one) for one in topics]
    if merging:
        memory.write(*newer)
    # many others, so that the plan is as in a database in use
    memory.write(*(fact("x", None, topic=f"t{n}", said_by=None) for n in range(1_000)))
    stack.database.rows("ANALYZE pal.memory_distillates")
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as held:
        held.execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        held.execute("UPDATE memory_distillates SET said_by = NULL WHERE topic IN ('b', 'd')")
        with ThreadPoolExecutor(1) as pool:
            if merging:
                done = pool.submit(memory.merge, ann, other)
            else:
                done = pool.submit(memory.write, *newer)
            until(lambda: stack.database.one(waiting, stack.database.name) == 1)
            held.commit()
            done.result(20)
    active = memory.active(person_id=other if merging else ann)
    assert [one["content"] for one in active] == ["new"] * 4


def test_forget_waits_for_the_write_beside_it(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a fact that was read before it was forgotten and is written after."""
    memory.write(fact("Lyon", ann, 0))
    [active] = memory.active()
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as held:
        held.execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        held.execute("SELECT FROM people WHERE id = %s FOR NO KEY UPDATE", (ann,))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        with ThreadPoolExecutor(2) as pool:
            write = pool.submit(memory.write, fact("Oslo", ann, 1))
            until(lambda: stack.database.one(waiting, stack.database.name) == 1)
            forget = pool.submit(memory.forget, active["id"])
            until(lambda: stack.database.one(waiting, stack.database.name) == 2)
            held.commit()
            assert write.result(20) in (0, 1)
            forget.result(20)
    assert memory.active() == []
    assert rows(stack) == []


# ── remembering ─────────────────────────────────────────────────────────────────────────────────


def test_remembered_is_the_callers_word(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: an explicit memory that a guess overwrites, or that is no one's."""
    memory.write(fact("a guess", ann, 0, origin="inferred"), fact("chess", ann, topic="hobby"))
    answer = memory.remember("Lives in Oslo.", topic="Home", person_id=ann)
    wanted = {
        "person_id": ann,
        "topic": "Home",
        "content": "Lives in Oslo.",
        "confidence": 1.0,
        "origin": "stated",
        "source_kind": "remember",
    }
    assert {name: answer[name] for name in wanted} == wanted
    assert set(answer) == {*wanted, "id", "visible_to", "created_at", "updated_at"}
    assert memory.contents(person_id=ann) == {"Lives in Oslo.", "chess"}
    key = "SELECT key_id FROM pal.memory_distillates WHERE id = %s"
    assert stack.database.one(key, answer["id"]) == memory.caller.key_id
    day = (datetime.now(UTC) - MONDAY).days + 1
    memory.write(fact("another guess", ann, day, origin="inferred"))
    memory.write(fact("older", ann, 1))
    assert "Lives in Oslo." in memory.contents()


def test_remembered_again_is_the_same_row(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a memory twice; or, of what had been distilled, whose word it is now."""
    memory.write(fact("Oslo", ann, confidence=0.7))
    first = memory.remember("Oslo", topic="home", person_id=ann)
    again = memory.remember("oslo.", topic="HOME", person_id=ann)
    assert first["id"] == again["id"] == memory.active()[0]["id"]
    assert (again["confidence"], again["source_kind"]) == (1.0, "remember")
    assert len(rows(stack)) == 1


def test_remembered_after_it_was_forgotten_stands(memory: Memory, ann: str) -> None:
    """Lost if red: that a person may change their mind."""
    memory.forget(memory.remember("Oslo", topic="home", person_id=ann)["id"])
    memory.remember("Oslo", topic="home", person_id=ann)
    assert memory.contents() == {"Oslo"}


@pytest.mark.parametrize(
    ("content", "topic"),
    [
        ("The gate code is on the fridge.", "The gate code is on the fridge."),
        ("It was a fine day. " * 9, " ".join(["It was a fine day."] * 4) + " It"),
        ("x" * 200, "x" * 80),
        ("  a\n\tb  ", "a b"),
    ],
)
def test_topic_is_the_first_words_where_none_is_given(
    memory: Memory, content: str, topic: str
) -> None:
    """Lost if red: memories without a topic, each in place of the one before."""
    answer = memory.remember(content)
    assert (answer["topic"], answer["content"]) == (topic, content.strip())
    assert "person_id" not in answer


def test_remember_refuses_what_it_cannot_keep(memory: Memory, stack: Stack) -> None:
    """Lost if red: an error of the database, where a caller could be told."""
    for wrong in (
        {"content": "  "},
        {"content": "x" * 2_001},
        {"content": "x", "topic": " _ "},
        {"content": "x", "topic": "x" * 81},
    ):
        with pytest.raises(InvalidField):
            memory.remember(**wrong)
    for unknown in (NO_PERSON, "someone", ""):
        with pytest.raises(NotFound):
            memory.remember("x", person_id=unknown)
    assert rows(stack) == []


def test_remember_once(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: a memory that a lost answer brings back over a newer one."""

    def once(body: bytes) -> Once:
        made = Once.of(method="POST", path="/v1/memory/remember", key="k", body=body)
        assert made is not None
        return made

    first = memory.remember("Oslo", topic="home", person_id=ann, once=once(b"a"))
    memory.remember("Rome", topic="home", person_id=ann)
    assert memory.remember("Oslo", topic="home", person_id=ann, once=once(b"a")) == first
    assert memory.contents() == {"Rome"}
    with pytest.raises(IdempotencyConflict):
        memory.remember("Lyon", topic="home", once=once(b"b"))


# ── lists ───────────────────────────────────────────────────────────────────────────────────────


def test_list_finds_by_words_and_is_paged(memory: Memory, ann: str) -> None:
    """Lost if red: facts that are there and never shown."""
    for n in range(5):
        memory.write(fact(f"number {n}", ann, topic=f"topic {n}"))
    memory.write(fact("100% sure of Ünder_scores", ann, topic="odd"))
    assert memory.contents(text="NUMBER 3") == {"number 3"}
    assert memory.contents(text="topic umbe 4") == {"number 4"}
    assert memory.contents(text="100%") == memory.contents(text="ünder_") != set()
    for spelt in ("U\u0308NDER_", "ｕ\u0308nder＿scores", "１００％"):
        assert memory.contents(text=spelt) == {"100% sure of Ünder_scores"}
    assert memory.active(text="number_3") == memory.active(text="nothing") == []
    assert memory.active(person_id=NO_PERSON) == memory.active(person_id="x") == []
    whole, paged, before = memory.active(), [], None
    while page := memory.active(most=2, before=before):
        paged += page
        before = (datetime.fromisoformat(page[-1]["updated_at"]), page[-1]["id"])
    assert paged == whole
    assert [one["content"] for one in whole][:2] == ["100% sure of Ünder_scores", "number 4"]


def test_source_is_told_while_it_is_there(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: where a fact comes from; or a fact, with the chat it was told in."""
    session = stack.http().call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
    memory.write(fact("Oslo", ann, source_kind="session", session_id=session))
    assert memory.active()[0]["source_ref"] == session
    assert stack.http().call("DELETE", f"/v1/sessions/{session}").status == 204
    [active] = memory.active()
    assert "source_ref" not in active
    dropped: Counter[str] = Counter()
    late = fact("Rome", ann, 9, source_kind="session", session_id=session)
    assert memory.write(late, dropped=dropped) == 0
    assert dropped["gone"] == 1, "what was deleted with its chat is not told by it"


def test_known_is_bounded_and_of_the_place(memory: Memory, stack: Stack, ann: str) -> None:
    """Lost if red: prompts that grow with the store, or tell a stranger's friends' affairs."""
    ben = memory.person("Ben")
    memory.write(
        *(fact(f"n{n}", ann, topic=f"t{n}") for n in range(30)),
        fact("of a friend", None, said_by=ann),
        fact("of the team", None, group_id="team", said_by=ann),
        fact("of Ben", ben),
        fact("of Ben in the team", ben, topic="diet", group_id="team"),
        fact("of Ben by Ann", ben, topic="mood", said_by=ann),
        fact("of Ben by the owner", ben, topic="plan", said_by=None, source_kind="remember"),
    )

    async def known(**of: Any) -> set[str]:
        async with stack.node.services.db.tenant(stack.tenant) as tx:
            return {one.content for one in await active_facts(tx, **of)}

    numbers = {f"n{n}" for n in range(30)}
    run = stack.node.run
    assert run(known(person_ids=[ann], group_id=None)) == numbers | {"of a friend"}
    team = {"of Ben in the team", "of the team"}
    assert run(known(person_ids=[ann, ben], group_id="team")) == team
    assert run(known(person_ids=[ben], group_id=None)) == {
        *("of Ben", "of Ben in the team", "of Ben by the owner"),
    }
    assert len(run(known(person_ids=[ann], group_id=None, most=7))) == 7


# ── tenants ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def other(stack: Stack) -> Memory:
    auth = stack.node.services.auth
    return Memory(stack, stack.node.run(auth.bearer(f"Bearer {stack.other_key}")))


def test_another_tenants_facts_are_not_there(memory: Memory, other: Memory) -> None:
    """Lost if red: one customer's people, to another who has their like."""
    for one in (memory, other):
        one.write(fact(f"home of {one.caller.tenant_id}", one.person("Ann")))
    [mine], [theirs] = memory.active(), other.active()
    assert mine["content"] != theirs["content"]
    calls: list[Callable[[str], Any]] = [memory.history, memory.forget]
    for call in calls:
        with pytest.raises(NotFound):
            call(theirs["id"])
    assert memory.active(person_id=theirs["person_id"]) == []
    with pytest.raises(NotFound):
        memory.remember("x", person_id=theirs["person_id"])
    assert memory.write(fact("x", theirs["person_id"])) == 0
    memory.forget(mine["id"])
    assert other.write(fact("again", other.person("Ann"))) == 1
    assert theirs in other.active()
