"""Everyone who writes memory at once: ends, merges, erasures, passes; none waits for ever."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from chalicelib.context import upkeep
from chalicelib.db import load_queries
from chalicelib.errors import Conflict, NotFound, Unavailable
from chalicelib.ids import new_id
from chalicelib.memory.approval import Candidates
from chalicelib.memory.candidates import hold_back
from chalicelib.memory.distill.shapes import Fact
from chalicelib.memory.facts import write_facts
from chalicelib.memory.handles import user_handle
from chalicelib.memory.policy import Policies
from chalicelib.memory.promoted import Episodes
from chalicelib.memory.topics import unattached_key
from chalicelib.sessions import store
from tests.conftest import open_door
from tests.support.answers import new_session
from tests.support.stack import Stack
from tests.support.waiting import until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"

NODE = (
    "INSERT INTO pal.session_nodes (session_id, number, tenant_id, kind, text, status, outcome,"
    " opened_at, closed_at) SELECT id, %s, tenant_id, %s, %s, 'resolved', 'So.', now(), now()"
    " FROM pal.sessions WHERE id = %s"
)
ROUNDS = int(os.environ.get("PAL_STRESS", "25"))  # a crowd is never twice the same
AT_ONCE = 7  # of eight connections


class Crowd:
    """What callers and passes do with the memory of one tenant, each to whatever is there."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack, self.random = stack, random.Random(seed)
        self.services, self.caller = stack.node.services, stack.caller
        self.db = self.services.db
        self.sessions: list[str] = []

    async def pick(self, query: Any, most: int = 1) -> list[str]:
        found = await asyncio.to_thread(self.stack.database.rows, query)
        ids = [row[0] for row in found]
        return self.random.sample(ids, min(most, len(ids)))

    async def people(self, most: int) -> list[str]:
        return await self.pick("SELECT id FROM pal.people WHERE merged_into IS NULL", most)

    def session(self) -> str:
        return self.random.choice(self.sessions)

    def group(self) -> str | None:
        return self.random.choice((None, "one", "two"))

    async def begin(self) -> None:
        session, user = new_id("sess"), self.random.choice(("ann", "ben", "cat", None))
        async with self.db.tenant(self.caller.tenant_id) as tx:
            await store.insert_session(
                tx,
                session_id=session,
                agent_name="guide",
                environment=None,
                user_id=user,
                group_id=self.group(),
                metadata=None,
                user=user_handle(user),
            )
        for number, kind in enumerate(("decision", "topic"), start=1):
            text = f"Thing {self.random.randrange(4)} is settled."
            rows = self.stack.database.rows
            # whoever erases its person may be quicker
            with suppress(psycopg.errors.ForeignKeyViolation):
                await asyncio.to_thread(rows, NODE, number, kind, text, session)
        self.sessions = [*self.sessions[-15:], session]

    async def end(self) -> None:
        await self.services.closing.end(self.caller, self.session())

    async def delete(self) -> None:
        await self.services.sessions.delete(self.caller, self.session())

    async def merge(self) -> None:
        if len(two := await self.people(2)) == 2:
            await self.services.people.merge(self.caller, source=two[0], target=two[1])

    async def erase(self) -> None:
        for one in await self.people(1):
            await self.services.erasure.erase(self.caller, one)

    async def read(self) -> None:
        known = [*await self.people(3), None]
        facts = [self.fact(known) for _ in range(4)]
        async with self.db.tenant(self.caller.tenant_id) as tx:
            await write_facts(tx, facts, dropped=Counter(), in_pass=True, gate=hold_back)

    def fact(self, known: Sequence[str | None]) -> Fact:
        about, by, group = self.random.choice(known), self.random.choice(known), self.group()
        topic = self.random.choice(("home", "work", "food"))
        place = "" if group else by or ""
        return Fact(
            topic=topic,
            topic_key=topic if about else unattached_key(topic, name="sam", place=place),
            content=f"{topic} {self.random.randrange(4)}",
            confidence=0.9,
            origin=self.random.choice(("stated", "inferred")),
            source_kind="session",
            said_at=datetime.now(UTC),
            person_id=about,
            said_by=by,
            group_id=group,
            session_id=self.session(),
        )

    async def approve(self) -> None:
        waiting = "SELECT id FROM pal.memory_candidates WHERE status = 'pending'"
        if ids := await self.pick(waiting, 5):
            await Candidates(self.db).decide(self.caller, ids=ids, decision="approve")

    async def forget(self) -> None:
        for one in await self.pick("SELECT id FROM pal.memory_distillates"):
            await self.services.distillates.forget(self.caller, one)
        for one in await self.pick("SELECT id FROM pal.memory_episodes"):
            await Episodes(self.db).forget(self.caller, one)

    async def run(self) -> Counter[str]:
        """Do all that, many at a time; what was to be tried again, by what it was."""
        await Policies(self.db).put(
            self.caller,
            timezone="UTC",
            promote={"outcome": "approve"},
            form={"inferred": "approve"},
            keep_days={},
        )
        doing: tuple[Callable[[], Awaitable[None]], ...] = (
            *(self.begin, self.begin, self.end, self.end, self.read, self.read),
            *(self.delete, self.merge, self.erase, self.approve, self.forget),
        )
        await self.begin()
        again: Counter[str] = Counter()

        async def work() -> None:
            for _ in range(ROUNDS):
                one = self.random.choice(doing)
                try:
                    with suppress(NotFound, Conflict):
                        await one()
                except Unavailable as exc:
                    again[f"{one.__name__}: {type(exc.__cause__).__name__}"] += 1

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        return again


def test_session_is_deleted_while_its_tree_is_being_kept(stack: Stack) -> None:
    """Lost if red: the call that deletes it, or the work behind its last reply."""
    session = new_session(open_door("chalice", stack, stack.key))
    db, caller = stack.node.services.db, stack.caller
    queries = load_queries(upkeep.__file__, "upkeep.sql")
    values = {"session_id": session, "lease": "a", "seconds": 60, "force": False, "anyway": True}
    values |= {"calibration": None, "model": None}

    async def work() -> None:
        async with db.tenant(caller.tenant_id) as tx:
            await tx.execute(queries["take_work"], values)
            deleting = asyncio.create_task(stack.node.services.sessions.delete(caller, session))
            await asyncio.to_thread(until, lambda: stack.database.one(WAITING, stack.database.name))
            await tx.execute(queries["end_work"], values)
        await deleting

    stack.node.run(work())
    assert stack.database.one("SELECT count(*) FROM pal.session_states") == 0


def test_person_is_erased_while_a_session_of_theirs_is_being_deleted(stack: Stack) -> None:
    """Lost if red: the erasure, or the call that deletes the session (each had what both need)."""
    door = open_door("chalice", stack, stack.key)
    session = new_session(door, userId="ann")
    rows = stack.database.rows
    rows(NODE, 1, "decision", "It is settled.", session)
    assert door.call("POST", f"/v1/sessions/{session}/end").json["promoted"] == 1
    [(person,)] = rows("SELECT person_id FROM pal.sessions WHERE id = %s", session)
    services, caller = stack.node.services, stack.caller

    async def work() -> bool:
        async with services.db.tenant(caller.tenant_id) as tx:
            # as the deletion begins, before it comes to what is remembered of the session
            await tx.execute("SELECT FROM sessions WHERE id = %s FOR UPDATE", [session])
            erasing = asyncio.create_task(services.erasure._delete(caller, person))
            await asyncio.to_thread(until, lambda: stack.database.one(WAITING, stack.database.name))
            await store.delete_session(tx, session)
        return await erasing

    assert stack.node.run(work())
    assert stack.database.one("SELECT count(*) FROM pal.people WHERE id = %s", person) == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_no_two_writers_of_memory_wait_for_one_another(
    seed: int, make_stack: Callable[..., Stack]
) -> None:
    """Lost if red: an end, a merge or an erasure, that fails for what others did meanwhile."""
    stack = make_stack(embeddings="off")
    crowd = Crowd(stack, seed)
    again = stack.node.run(crowd.run(), 50)
    assert {one: count for one, count in again.items() if "NoneType" not in one} == {}
    dangling = (
        "SELECT count(*) FROM pal.memory_narratives n, jsonb_array_elements(n.lines) AS line,"
        " jsonb_array_elements_text(line -> 'sources') AS source"
        " WHERE NOT EXISTS (SELECT FROM pal.memory_distillates d WHERE d.id = source)"
        " AND NOT EXISTS (SELECT FROM pal.memory_episodes e WHERE e.id = source)"
    )
    assert stack.database.one(dangling) == 0
    moved = (
        "SELECT count(*) FROM pal.people p WHERE p.merged_into IS NOT NULL AND ("
        " EXISTS (SELECT FROM pal.memory_episodes m WHERE m.person_id = p.id)"
        " OR EXISTS (SELECT FROM pal.memory_candidates m WHERE m.person_id = p.id)"
        " OR EXISTS (SELECT FROM pal.memory_narratives m WHERE m.person_id = p.id))"
    )
    assert stack.database.one(moved) == 0
    twice = (
        "SELECT count(*) FROM (SELECT FROM pal.session_events WHERE kind = 'session_ended'"
        " GROUP BY session_id HAVING count(*) > 1) AS twice"
    )
    assert stack.database.one(twice) == 0
