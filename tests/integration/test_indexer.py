"""Vectors in a real Postgres: made with an ingest, made up for later, and gone with their rows."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chalicelib.embeddings import Vector
from chalicelib.errors import ProviderUnavailable
from chalicelib.memory import embedder as rooms
from chalicelib.memory.embedder import Indexer
from chalicelib.memory.timeline import NewEvent
from tests.fakes.embeddings_server import vector_for
from tests.support.stack import Stack

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Scripted:
    """An embedder that remembers what it was asked; `before` is run ahead of each answer."""

    def __init__(self, name: str = "scripted:one") -> None:
        self.name = name
        self.asked: list[str] = []
        self.before: Callable[[], Awaitable[None]] | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.asked += texts
        if self.before is not None:
            await self.before()
        return [vector_for(f"{self.name} {text}") for text in texts]

    async def close(self) -> None:
        """Nothing to close."""

    def of(self, own: str) -> Vector:
        """What an event of these words must have."""
        return vector_for(f"{self.name} {own}")


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """A system that makes no vectors of its own accord."""
    return make_stack(embeddings="off")


@pytest.fixture
def model() -> Scripted:
    return Scripted()


@pytest.fixture
def indexer(stack: Stack, model: Scripted) -> Indexer:
    return Indexer(stack.node.services.db, model)


def event(content: str, *, minutes: float = 0, **more: Any) -> NewEvent:
    """An event of a group, unless told otherwise."""
    at = NOON + timedelta(minutes=minutes)
    usual = {"channel": "sms", "kind": "message", "group_id": "family"}
    return NewEvent(content=content, occurred_at=at, **(usual | more))


def ingest(stack: Stack, *events: NewEvent) -> list[str]:
    """Their ids, in the order of their coming."""
    before = {row[0] for row in stack.database.rows("SELECT id FROM pal.memory_events")}
    stack.node.run(stack.node.services.timeline.ingest(stack.caller, events))
    rows = stack.database.rows("SELECT id FROM pal.memory_events ORDER BY ingest_tx, id")
    return [row[0] for row in rows if row[0] not in before]


def fill(stack: Stack, indexer: Indexer, most: int = 500) -> int:
    return stack.node.run(indexer.run_once(stack.tenant, most))


def due(stack: Stack, indexer: Indexer, most: int = 10) -> list[str]:
    return stack.node.run(indexer.due(most))


def vectors(stack: Stack, name: str = "scripted:one") -> dict[str, Vector]:
    """By what was said, those of a model."""
    rows = stack.database.rows(
        "SELECT e.content, v.vec::text FROM pal.memory_vectors v"
        " JOIN pal.memory_events e ON e.tenant_id = v.tenant_id AND e.id = v.event_id"
        " WHERE v.model = %s",
        name,
    )
    return {row[0]: json.loads(row[1]) for row in rows}


def close_to(vector: Vector) -> Any:
    return pytest.approx(vector, abs=1e-3)


def add_fact(stack: Stack, content: str, *, age: str = "1 hour", **more: str) -> str:
    fact_id = f"mem_{content.replace(' ', '_')}"
    stack.database.rows(
        "INSERT INTO pal.memory_distillates (id, tenant_id, topic, topic_key, content, confidence,"
        " origin, source_kind, said_at, created_at)"
        " VALUES (%s, %s, %s, %s, %s, 1, 'stated', 'events', now(), now() - %s::interval)",
        fact_id,
        stack.tenant,
        more.get("topic", content),
        more.get("topic", content),
        content,
        age,
    )
    return fact_id


# ── what is made ─────────────────────────────────────────────────────────────────────────────


def test_event_has_the_vector_of_its_words(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: what search by meaning finds."""
    ingest(stack, *(event(f"e{n}", minutes=n) for n in range(4)))
    assert fill(stack, indexer) == 4
    assert vectors(stack) == {f"e{n}": close_to(model.of(f"e{n}")) for n in range(4)}
    assert sorted(model.asked) == ["e0", "e1", "e2", "e3"]


def test_ingest_gives_vectors_at_once(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: what was just said, to search by meaning, until some minute has passed."""
    [first] = ingest(stack, event("first"))
    assert stack.node.run(indexer.embed_events(stack.tenant, [first])) == 1
    assert vectors(stack) == {"first": close_to(model.of("first"))}
    more = ingest(stack, event("second", minutes=1), event("third", minutes=2))
    assert stack.node.run(indexer.embed_events(stack.tenant, more)) == 2
    texts = ("first", "second", "third")
    assert vectors(stack) == {text: close_to(model.of(text)) for text in texts}
    model.asked.clear()
    assert fill(stack, indexer) == 0
    assert model.asked == []
    assert stack.node.run(indexer.embed_events(stack.tenant, ["evt_unknown"])) == 0


def test_vectors_do_not_hold_who_speaks(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: results that are near because the same person said them."""
    ingest(stack, event("hello", group_id=None))
    stack.database.rows(
        "INSERT INTO pal.memory_events"
        " (id, tenant_id, occurred_at, channel, kind, turn_id, content)"
        " VALUES ('evt_turn', %s, now(), 'session', 'turn', 'tur_x', %s)",
        stack.tenant,
        "user: I moved.\nassistant: Noted.",
    )
    fill(stack, indexer)
    assert sorted(model.asked) == ["I moved.\nNoted.", "hello"]


def test_distillates_have_vectors_while_they_hold(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: facts, to search by meaning."""
    old, new = add_fact(stack, "Lyon", topic="home_town"), add_fact(stack, "Oslo", topic="city")
    stack.database.rows(
        "UPDATE pal.memory_distillates SET superseded_by = %s, superseded_at = now() WHERE id = %s",
        new,
        old,
    )
    assert due(stack, indexer) == [stack.tenant]
    assert fill(stack, indexer) == 1
    [row] = stack.database.rows(
        "SELECT distillate_id, vec::text FROM pal.memory_distillate_vectors"
    )
    expected = vector_for("scripted:one city: Oslo")
    assert (row[0], json.loads(row[1])) == (new, close_to(expected))
    assert due(stack, indexer) == []
    young = add_fact(stack, "Rome", topic="birth place", age="0")
    assert stack.node.run(indexer.embed_distillates(stack.tenant, [young, old])) == 1
    stack.database.rows("DELETE FROM pal.memory_distillates WHERE id = %s", young)
    assert stack.database.one("SELECT count(*) FROM pal.memory_distillate_vectors") == 1


def test_distillate_of_a_slow_transaction_is_not_passed(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: facts whose id was made early and whose transaction ended late."""
    add_fact(stack, "z young", age="1 second")
    assert fill(stack, indexer) == 1
    add_fact(stack, "a slow", age="1 second")
    assert due(stack, indexer) == [stack.tenant]
    assert fill(stack, indexer) == 1


# ── in what order, and how far ───────────────────────────────────────────────────────────────


def test_what_was_there_is_done_from_the_newest_down(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: search for what was said this week, until years have been embedded."""
    for n in range(5):
        ingest(stack, event(f"e{n}", group_id=f"g{n}"))
    assert fill(stack, indexer, 2) == 2
    assert set(vectors(stack)) == {"e4", "e3"}
    ingest(stack, event("new", group_id="g"), event("newer", group_id="h"))
    assert fill(stack, indexer, 2) == 2
    assert set(vectors(stack)) == {"e4", "e3", "new", "newer"}
    progress = stack.node.run(indexer.progress(stack.tenant))
    assert progress == {"model": "scripted:one", "done": 4, "total": 7}
    assert due(stack, indexer) == [stack.tenant]
    assert fill(stack, indexer, 100) == 3
    assert fill(stack, indexer) == 0
    assert due(stack, indexer) == []


def test_more_than_a_transaction_holds_is_done_in_several(
    stack: Stack, indexer: Indexer, model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost if red: timelines that are longer than one batch, which are all that count."""
    monkeypatch.setattr(rooms, "_BATCH", 3)
    monkeypatch.setattr(rooms, "_LOOK", 4)
    some = [event(f"e{n}", minutes=n) for n in range(20)]
    ids = ingest(stack, *some)
    for fact in range(10):
        add_fact(stack, f"fact {fact}")
    assert stack.node.run(indexer.embed_events(stack.tenant, ids[5:9])) == 4
    assert fill(stack, indexer) == 26
    whole = vectors(stack)
    assert len(whole) == 20
    assert whole["e7"] == close_to(model.of("e7"))
    assert whole["e8"] == close_to(model.of("e8"))
    ingest(stack, *(event(f"n{n}", minutes=21 + n) for n in range(20)))
    assert fill(stack, indexer) == 20
    assert vectors(stack)["e19"] == close_to(model.of("e19"))
    assert due(stack, indexer) == []
    done = stack.node.run(indexer.progress(stack.tenant))
    assert done == {"model": "scripted:one", "done": 50, "total": 50}


def test_another_model_does_all_again(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: vectors of two models in one search, after PAL_EMBEDDINGS was changed."""
    ingest(stack, *(event(f"e{n}", minutes=n) for n in range(3)))
    add_fact(stack, "Oslo")
    assert fill(stack, indexer) == 4
    other = Scripted("scripted:two")
    later = Indexer(stack.node.services.db, other)
    assert due(stack, later) == [stack.tenant]
    assert stack.node.run(later.progress(stack.tenant))["done"] == 0
    assert stack.node.run(later.run_once(stack.tenant, 2)) == 2
    assert len(vectors(stack)) + len(vectors(stack, "scripted:two")) == 3
    assert stack.node.run(later.run_once(stack.tenant, 500)) == 2
    assert vectors(stack) == {}
    assert vectors(stack, "scripted:two")["e1"] == close_to(other.of("e1"))
    assert stack.node.run(later.progress(stack.tenant)) == {
        "model": "scripted:two",
        "done": 4,
        "total": 4,
    }
    assert due(stack, later) == []


def test_due_names_tenants_with_something_to_do(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: a tenant that waits behind one who never stops, or work for nothing."""
    assert due(stack, indexer) == []
    ingest(stack, event("one"))
    stack.database.rows(
        "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, content)"
        " VALUES ('evt_x', %s, now(), 'c', 'k', 'theirs')",
        stack.other_tenant,
    )
    both = {stack.tenant, stack.other_tenant}
    assert set(due(stack, indexer)) == both
    assert due(stack, indexer, 1)[0] in both
    assert fill(stack, indexer) == 1
    assert due(stack, indexer) == [stack.other_tenant]
    assert set(vectors(stack)) == {"one"}
    assert model.asked == ["one"]
    ingest(stack, event("two"))
    # who waits longest comes first
    assert due(stack, indexer) == [stack.other_tenant, stack.tenant]


def test_event_that_was_committed_late_is_found(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: events behind the place, which were there too late to be seen."""
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as slow:
        slow.execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        slow.execute(
            "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, content)"
            " VALUES ('evt_slow', pal.tenant(), now(), 'c', 'k', 'slow')"
        )
        ingest(stack, event("quick"))
        fill(stack, indexer)
    fill(stack, indexer)
    assert set(vectors(stack)) == {"slow", "quick"}
    assert due(stack, indexer) == []


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────


def test_failure_leaves_the_place_and_the_tenant_rests(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: vectors that never come, after an outage; or a call a minute in vain."""

    async def fail() -> None:
        raise ProviderUnavailable("down")

    ingest(stack, event("one"))
    model.before = fail
    for _ in range(2):
        with pytest.raises(ProviderUnavailable):
            fill(stack, indexer)
    assert due(stack, indexer) == []
    stack.database.rows("UPDATE pal.memory_embedded SET tried_at = now() - interval '90 seconds'")
    assert due(stack, indexer) == []
    stack.database.rows("UPDATE pal.memory_embedded SET tried_at = now() - interval '3 minutes'")
    assert due(stack, indexer) == [stack.tenant]
    model.before = None
    assert fill(stack, indexer) == 1
    ingest(stack, event("two"))
    assert due(stack, indexer) == [stack.tenant]


@pytest.mark.parametrize("undone", [False, True], ids=["deleted", "undone"])
def test_event_that_is_being_deleted_holds_nothing_up(
    stack: Stack, indexer: Indexer, model: Scripted, undone: bool
) -> None:
    """Lost if red: a delete that waits for the filler, a filler that breaks, or a vector less."""
    ingest(stack, *(event(f"e{n}", group_id=f"g{n}") for n in range(3)))
    conn = psycopg.connect(stack.database.master)

    async def delete() -> None:
        model.before = None
        await asyncio.to_thread(conn.execute, "DELETE FROM pal.memory_events WHERE content = 'e1'")

    model.before = delete
    assert fill(stack, indexer) == 2
    conn.rollback() if undone else conn.commit()
    conn.close()
    assert fill(stack, indexer) == int(undone)
    assert set(vectors(stack)) == {"e0", "e2", *(["e1"] if undone else [])}
    assert due(stack, indexer) == []


def test_vectors_go_with_their_events(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: what a person had deleted, still found by its meaning."""
    [one, _] = ingest(stack, event("one"), event("two", minutes=1))
    fill(stack, indexer)
    stack.database.rows("DELETE FROM pal.memory_events WHERE id = %s", one)
    assert set(vectors(stack)) == {"two"}


def test_two_at_once_make_the_same(stack: Stack, indexer: Indexer, model: Scripted) -> None:
    """Lost if red: a deadlock, or a gap, where two processes fill the same tenant."""
    ids = ingest(stack, *(event(f"e{n}", minutes=n) for n in range(300)))

    async def at_once() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(
                indexer.run_once(stack.tenant),
                indexer.run_once(stack.tenant),
                indexer.embed_events(stack.tenant, ids[::-1]),
            )

    stack.node.run(at_once())
    whole = vectors(stack)
    assert len(whole) == 300
    assert whole["e100"] == close_to(model.of("e100"))
    fill(stack, indexer)
    assert due(stack, indexer) == []


def test_one_tenants_vectors_are_not_anothers(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: one customer's words, in what another's are found by."""
    [mine] = ingest(stack, event("mine"))
    assert stack.node.run(indexer.embed_events(stack.other_tenant, [mine])) == 0
    assert model.asked == []
    assert stack.node.run(indexer.run_once(stack.other_tenant)) == 0
    assert vectors(stack) == {}


def test_without_pgvector_there_is_nothing_to_do(
    stack: Stack, indexer: Indexer, model: Scripted
) -> None:
    """Lost if red: a timeline, on a server that has no vectors."""
    stack.database.rows(
        "DROP TABLE pal.memory_vectors, pal.memory_distillate_vectors, pal.memory_embedded"
    )
    ids = ingest(stack, event("one"))
    assert stack.node.run(indexer.ready()) is False
    assert stack.node.run(indexer.embed_events(stack.tenant, ids)) == 0
    assert stack.node.run(indexer.embed_distillates(stack.tenant, ["mem_x"])) == 0
    assert fill(stack, indexer) == 0
    assert due(stack, indexer) == []
    progress = stack.node.run(indexer.progress(stack.tenant))
    assert progress == {"model": "scripted:one", "done": 0, "total": 0}
    assert model.asked == []
