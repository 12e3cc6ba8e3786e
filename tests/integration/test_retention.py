"""How long each tier is kept, on a real Postgres: what is past its time goes, and nothing else."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from chalicelib.db import load_queries
from chalicelib.ids import new_id
from chalicelib.memory import retention
from chalicelib.memory.approval import Candidates
from chalicelib.memory.candidates import hold_back
from chalicelib.memory.facts import write_facts
from chalicelib.memory.policy import Policies
from chalicelib.memory.retention import Retention
from tests.support.agents import turn
from tests.support.answers import new_session
from tests.support.distilling import Memory, ScriptedModels, fact
from tests.support.stack import Stack

OLD, NEW = timedelta(days=40), timedelta(days=20)
KEPT_DAYS = 30
TIERS = ("sealed", "episodic", "semantic", "narrative", "audit")


class Kept(Memory):
    """A tenant's memory, and the sweep that goes over it."""

    def keep(self, *tiers: str, days: int = KEPT_DAYS) -> None:
        keep = dict.fromkeys(tiers, days)
        work = Policies(self.stack.node.services.db).put(
            self.caller, timezone="UTC", promote={}, form={}, keep_days=keep
        )
        self.run(work)

    def sweep(self, *, every: float = 0.0, **how: Any) -> int:
        retention = Retention(self.stack.node.services.db, **{"distilling": False, **how})
        return int(self.run(retention.sweep(every=every)))

    def age(self, table: str, by: timedelta, where: str = "true", *columns: str) -> None:
        """Let rows be older than they are."""
        times = ", ".join(f"{one} = now() - %s::interval" for one in columns)
        self.stack.database.rows(
            f"UPDATE pal.{table} SET {times} WHERE {where}",  # type: ignore[arg-type]
            *[by] * len(columns),
        )

    def count(self, table: str) -> int:
        found = self.stack.database.one(f"SELECT count(*) FROM pal.{table}")  # type: ignore[arg-type]
        assert isinstance(found, int)
        return found


@pytest.fixture
def memory(stack: Stack) -> Kept:
    return Kept(stack, stack.caller)


@pytest.fixture
def ann(memory: Kept) -> str:
    return memory.person("Ann")


# ── the timeline ────────────────────────────────────────────────────────────────────────────────


def test_events_go_by_the_later_of_their_times(memory: Kept, stack: Stack) -> None:
    """Lost if red: an archive, in the hour it was brought in; or an appointment before its day."""
    memory.keep("episodic")
    for content in ("old", "new", "archive", "ahead"):
        memory.say(content, "ann")
    times = {"old": (OLD, OLD), "new": (NEW, NEW), "archive": (OLD, NEW), "ahead": (-NEW, OLD)}
    for content, (occurred, ingested) in times.items():
        memory.age("memory_events", occurred, f"content = '{content}'", "occurred_at")
        memory.age("memory_events", ingested, f"content = '{content}'", "ingested_at")
    assert memory.sweep() == 1
    left = stack.database.rows("SELECT content FROM pal.memory_events ORDER BY 1")
    assert [row[0] for row in left] == ["ahead", "archive", "new"]
    assert memory.count("memory_index") == 3


@pytest.mark.parametrize(
    ("distilling", "read", "gone"),
    [
        pytest.param(True, False, 0, id="a-pass-will-read-it"),
        pytest.param(True, True, 1, id="a-pass-has-read-it"),
        pytest.param(False, False, 1, id="no-pass-ever-will"),
    ],
)
def test_what_no_pass_has_read_waits_for_it(
    memory: Kept, distilling: bool, read: bool, gone: int
) -> None:
    """Lost if red: facts that would have been kept, with the words they were to be read in."""
    memory.keep("episodic")
    memory.say("I live in Oslo.", "ann")
    memory.age("memory_events", OLD, "true", "occurred_at", "ingested_at")
    if read:
        memory.distil(ScriptedModels())
    assert memory.sweep(distilling=distilling) == gone
    assert memory.count("memory_events") == 1 - gone


def test_all_of_a_long_timeline_goes_batch_by_batch(memory: Kept) -> None:
    """Lost if red: the end of what is past its time, behind what is not."""
    memory.keep("episodic")
    memory.ingest(*(memory.event(f"{n}", "ann") for n in range(11)))
    memory.age("memory_events", OLD, "true", "ingested_at", "occurred_at")
    memory.age("memory_events", -NEW, "content IN ('0', '1', '2')", "occurred_at")
    assert memory.sweep(batch=2) == 8
    assert memory.count("memory_events") == 3


def test_fact_outlives_the_event_that_says_it(memory: Kept, stack: Stack, ann: str) -> None:
    """Lost if red: what is known, with a tier that is kept for a shorter time."""
    memory.keep("episodic")
    memory.say("I live in Oslo.", "ann")
    event = stack.database.one("SELECT id FROM pal.memory_events")
    memory.write(fact("Oslo", ann, event_id=event))
    memory.age("memory_events", OLD, "true", "occurred_at", "ingested_at")
    assert memory.sweep() == 1
    [active] = memory.active()
    assert (active["content"], "source_ref" in active) == ("Oslo", False)


def test_episodes_go_and_are_told_no_more(memory: Kept, stack: Stack, ann: str) -> None:
    """Lost if red: what was to be kept for a month, in every prompt ever after."""
    memory.keep("episodic")
    session = new_session(stack.http())
    made = [insert_episode(stack, session, ann, text) for text in ("train", "boat")]
    insert_narrative(stack, ann, ("By train.", made[:1]), ("Both.", made), ("Boat.", made[1:]))
    memory.age("memory_episodes", OLD, "content = 'train'", "occurred_at", "created_at")
    assert memory.sweep() == 1
    assert stack.database.rows("SELECT content FROM pal.memory_episodes") == [("boat",)]
    [(lines, stale)] = stack.database.rows(
        "SELECT lines, stale_at IS NOT NULL FROM pal.memory_narratives"
    )
    assert ([one["text"] for one in lines], stale) == (["Boat."], True)


def insert_episode(stack: Stack, session: str, person: str, content: str) -> str:
    episode = new_id("epi")
    stack.database.rows(
        "INSERT INTO pal.memory_episodes (id, tenant_id, session_id, person_id, kind, content,"
        " content_key, occurred_at) VALUES (%s, %s, %s, %s, 'decision', %s, '', now())",
        *(episode, stack.tenant, session, person, content),
    )
    return episode


def insert_narrative(stack: Stack, person: str, *lines: tuple[str, list[str]]) -> None:
    told = Jsonb([{"text": text, "sources": ids} for text, ids in lines])
    stack.database.rows(
        "INSERT INTO pal.memory_narratives (id, tenant_id, person_id, lines)"
        " VALUES (%s, %s, %s, %s)",
        *(new_id("nar"), stack.tenant, person, told),
    )


# ── facts ───────────────────────────────────────────────────────────────────────────────────────


def test_superseded_facts_go_and_the_active_one_stays(memory: Kept, ann: str) -> None:
    """Lost if red: where someone lives, with where they used to."""
    memory.keep("semantic")
    for day, content in enumerate(("Lyon", "Rome", "Oslo")):
        memory.write(fact(content, ann, day))
    memory.age("memory_distillates", OLD, "content = 'Lyon'", "superseded_at")
    assert memory.sweep() == 1
    [active] = memory.active()
    assert [one["content"] for one in memory.history(active["id"])] == ["Oslo", "Rome"]


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
def test_no_row_of_a_chain_is_left_without_the_one_it_refers_to(
    memory: Kept, ann: str, batch: int
) -> None:
    """Lost if red: retention as a whole, at the first chain that is larger than a batch."""
    memory.keep("semantic")
    for day in range(7):
        memory.write(fact(f"home {day}", ann, day))
    # of two clocks: what was superseded later says so at an earlier time
    memory.age("memory_distillates", OLD, "superseded_at IS NOT NULL", "superseded_at")
    memory.age("memory_distillates", 2 * OLD, "content IN ('home 1', 'home 4')", "superseded_at")
    assert memory.sweep(batch=batch) == 6
    assert memory.contents() == {"home 6"}


def test_fact_that_nothing_was_said_on_goes_with_its_chain(memory: Kept, ann: str) -> None:
    """Lost if red: an end to what someone said once, years ago."""
    memory.keep("semantic")
    memory.write(fact("Lyon", ann, 0), fact("Oslo", ann, 1), fact("tea", ann, topic="drink"))
    memory.age("memory_distillates", OLD, "content = 'Oslo'", "updated_at")
    assert memory.sweep() == 2
    assert memory.contents() == {"tea"}
    assert memory.count("memory_distillates") == 1
    assert memory.write(fact("Oslo", ann, 2)) == 1, "it may be said again: no one had it forgotten"


def test_fact_that_is_being_confirmed_is_left(memory: Kept, stack: Stack, ann: str) -> None:
    """Lost if red: a pass or a turn that fails, or waits, for the sweep; or the fact it renews."""
    memory.keep("semantic")
    memory.write(fact("Lyon", ann, 0), fact("Oslo", ann, 1), fact("chess", ann, topic="hobby"))
    memory.age("memory_distillates", OLD, "true", "updated_at")
    memory.age("memory_distillates", NEW, "superseded_at IS NOT NULL", "superseded_at")
    with psycopg.connect(stack.database.master) as conn:
        # a row of the chain that is not its head is enough
        conn.execute("SELECT FROM pal.memory_distillates WHERE content = 'Lyon' FOR NO KEY UPDATE")
        assert memory.sweep() == 1
    assert memory.contents() == {"Oslo"}
    assert memory.sweep() == 2


def test_what_waits_for_approval_is_kept_no_longer_than_what_it_would_be(
    memory: Kept, stack: Stack, ann: str
) -> None:
    """Lost if red: words past their time, in a list that no one has looked at."""
    memory.keep("semantic", "audit")
    set_form = "UPDATE pal.tenant_policies SET memory = memory || %s"
    stack.database.rows(set_form, Jsonb({"form": {"stated": "approve"}}))
    services = stack.node.services

    async def propose() -> None:
        async with services.db.tenant(stack.tenant) as tx:
            facts = [fact(f"likes {n}", ann, topic=f"{n}") for n in range(4)]
            await write_facts(tx, facts, gate=hold_back)

    memory.run(propose())
    listing = {"person_id": None, "before": None, "most": 9, "status": None}
    found = memory.run(Candidates(services.db).list(memory.caller, **listing))
    ids = [one["id"] for one in found]
    memory.run(Candidates(services.db).decide(memory.caller, ids=ids[:2], decision="deny"))
    for one in (ids[0], ids[2]):
        memory.age("memory_candidates", OLD, f"id = '{one}'", "created_at")
        memory.age("memory_candidates", OLD, f"id = '{one}' AND status <> 'pending'", "decided_at")
    assert memory.sweep() == 2
    found = memory.run(Candidates(services.db).list(memory.caller, **listing))
    assert [one["id"] for one in found] == [ids[1], ids[3]]


def test_tombstones_stay(memory: Kept, ann: str) -> None:
    """Lost if red: that forgetting is for good, a month after it."""
    memory.keep(*TIERS)
    memory.write(fact("Lyon", ann))
    memory.forget(memory.active()[0]["id"])
    memory.age("memory_forgotten", OLD, "true", "forgotten_at")
    memory.sweep()
    assert memory.write(fact("Lyon", ann)) == 0


def test_narratives_go(memory: Kept, stack: Stack, ann: str) -> None:
    """Lost if red: a story of someone that is past its time, told on."""
    memory.keep("narrative")
    for person in (ann, memory.person("Ben")):
        insert_narrative(stack, person, ("x", []))
    memory.age("memory_narratives", OLD, f"person_id = '{ann}'", "updated_at")
    assert memory.sweep() == 1
    assert memory.count("memory_narratives") == 1


# ── sessions ────────────────────────────────────────────────────────────────────────────────────


def test_sealed_state_goes_and_the_transcript_stays(memory: Kept, stack: Stack) -> None:
    """Lost if red: plans and pins of long ago; or, with them, what was said."""
    memory.keep("sealed")
    http = stack.http()
    sessions = [new_session(http) for _ in range(3)]
    for session in sessions:
        turn(http, session, "hello")
    stack.node.run(stack.node.services.engine.wait_idle())
    insert_state(stack, *sessions)
    for session, age in zip(sessions, (OLD, NEW), strict=False):
        memory.age("session_states", age, f"session_id = '{session}'", "sealed_at")
    assert memory.sweep() == 1
    assert memory.sweep() == 0
    held = stack.database.rows(
        "SELECT s.id, t.pins::text, t.tree, s.summary,"
        " s.messages::text = '[]', (SELECT count(*) FROM pal.session_nodes n"
        " WHERE n.session_id = s.id AND n.text = 'plan'), (SELECT count(*) FROM pal.messages m"
        " WHERE m.session_id = s.id) FROM pal.sessions s JOIN pal.session_states t"
        " ON t.session_id = s.id ORDER BY 1"
    )
    whole = ('[{"text": "x"}]', "plan", "sum", False, 1, 2)
    assert held == [
        (sessions[0], "[]", "", None, True, 0, 2),
        (sessions[1], *whole),
        (sessions[2], *whole),
    ]


def insert_state(stack: Stack, *sessions: str) -> None:
    """Give these sessions pins, a tree and a summary."""
    for session in sessions:
        stack.database.rows(
            "INSERT INTO pal.session_states AS s (session_id, tenant_id, pins, tree)"
            " VALUES (%s, %s, '[{\"text\": \"x\"}]', 'plan') ON CONFLICT (session_id)"
            " DO UPDATE SET pins = excluded.pins, tree = excluded.tree",
            *(session, stack.tenant),
        )
        stack.database.rows(
            "INSERT INTO pal.session_nodes (session_id, number, tenant_id, kind, text, status,"
            " opened_at) VALUES (%s, 1000, %s, 'task', 'plan', 'open', now())",
            *(session, stack.tenant),
        )
        stack.database.rows("UPDATE pal.sessions SET summary = 'sum' WHERE id = %s", session)


# ── the sweep ───────────────────────────────────────────────────────────────────────────────────


def test_without_a_policy_nothing_ever_goes(memory: Kept, ann: str) -> None:
    """Lost if red: everything."""
    memory.say("x", "ann")
    memory.write(fact("Lyon", ann))
    memory.age("memory_events", OLD, "true", "occurred_at", "ingested_at")
    memory.age("memory_distillates", OLD, "true", "updated_at")
    assert memory.sweep() == 0
    memory.keep()
    assert memory.sweep() == 0
    memory.keep("audit")
    assert memory.sweep() == 0
    assert (memory.count("memory_events"), memory.count("memory_distillates")) == (1, 1)


def test_one_tenants_days_are_not_anothers(memory: Kept, stack: Stack) -> None:
    """Lost if red: one customer's memory, to what another decided."""
    caller = stack.node.run(stack.node.services.auth.bearer(f"Bearer {stack.other_key}"))
    other = Kept(stack, caller)
    for one in (memory, other):
        one.write(fact("Lyon", one.person("Ann")))
    memory.age("memory_distillates", OLD, "true", "updated_at")
    memory.keep("semantic")
    other.keep("semantic", days=60)
    assert memory.sweep() == 1
    assert (memory.active(), len(other.active())) == ([], 1)


def test_tenant_is_looked_at_once_an_interval(memory: Kept, ann: str) -> None:
    """Lost if red: a scan of all that every tenant has, each minute in each process."""
    memory.keep("semantic")
    assert memory.sweep(every=3_600) == 0
    memory.write(fact("Lyon", ann))
    memory.age("memory_distillates", OLD, "true", "updated_at")
    assert memory.sweep(every=3_600) == 0
    memory.age("tenant_policies", timedelta(hours=2), "true", "swept_at")
    assert memory.sweep(every=3_600) == 1


def test_what_there_was_no_time_for_is_gone_on_with(memory: Kept, ann: str) -> None:
    """Lost if red: turns that wait for a sweep, or a backlog that an hour a batch never ends."""
    memory.keep("semantic")
    memory.write(fact("Lyon", ann))
    memory.age("memory_distillates", OLD, "true", "updated_at")
    retention = Retention(memory.stack.node.services.db, seconds=60)
    due = memory.run(retention._sweep_tenant(memory.caller.tenant_id, every=3_600, ends=0.0))
    assert (due, memory.count("memory_distillates")) == (0, 1)
    assert memory.sweep(every=3_600) == 1


def test_a_batch_looks_at_no_fact_for_each_other_fact(memory: Kept, stack: Stack, ann: str) -> None:
    """Lost if red: a sweep that gets through 50,000 facts; each batch took 1.8 s and not 0.1 s."""
    facts = 2_000
    stack.database.rows(
        "INSERT INTO pal.memory_distillates (id, tenant_id, person_id, topic, topic_key, content,"
        " confidence, origin, source_kind, said_at) SELECT 'mem_' || lpad(n::text, 26, '0'), %s,"
        " %s, n::text, n::text, 'x', 1, 'stated', 'events', now() FROM generate_series(1, %s) n",
        *(memory.caller.tenant_id, ann, facts),
    )
    stack.database.rows("ANALYZE pal.memory_distillates")
    query = load_queries(retention.__file__, "retention.sql")["expire_chains"]

    async def explain() -> Any:
        async with stack.node.services.db.tenant(memory.caller.tenant_id) as tx:
            ids = [f"mem_{number:026}" for number in range(1, facts + 1)]
            cur = await tx.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query, {"ids": ids})
            return await cur.fetchone()

    def removed(plan: Any) -> float:
        own = sum(plan.get(f"Rows Removed by {by}", 0) for by in ("Filter", "Join Filter"))
        return own * plan["Actual Loops"] + sum(removed(one) for one in plan.get("Plans", ()))

    [[whole]] = memory.run(explain())
    assert removed(whole["Plan"]) < 10 * facts
    assert memory.count("memory_distillates") == 0


def test_one_tenants_trouble_is_not_the_others(
    memory: Kept, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: retention for everyone, to one row that cannot be deleted."""
    caller = stack.node.run(stack.node.services.auth.bearer(f"Bearer {stack.other_key}"))
    other = Kept(stack, caller)
    for one in (memory, other):
        one.keep("semantic")
        one.write(fact("Lyon", one.person("Ann")))
    memory.age("memory_distillates", OLD, "true", "updated_at")
    stack.database.rows(
        "CREATE FUNCTION pal.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no'; END $$"
    )
    stack.database.rows(
        "CREATE TRIGGER refused BEFORE DELETE ON pal.memory_distillates FOR EACH ROW"
        f" WHEN (OLD.tenant_id = '{stack.tenant}') EXECUTE FUNCTION pal.refuse()"  # type: ignore[arg-type]
    )
    assert memory.sweep() == 1
    assert (len(memory.active()), other.active()) == (1, [])
    told = [one for one in caplog.records if getattr(one, "action", "") == "retention_skipped"]
    assert len(told) == 1
    assert "Lyon" not in caplog.text
