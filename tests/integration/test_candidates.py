"""What waits for a person's word, on a real Postgres: no memory before it, and none against it."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chalicelib.errors import Conflict, NotFound
from chalicelib.memory.approval import Candidates
from chalicelib.memory.candidates import hold_back, propose_episodes
from chalicelib.memory.distill.shapes import Fact
from chalicelib.memory.episodes import Proposed
from chalicelib.memory.facts import write_facts
from chalicelib.memory.policy import Policies
from chalicelib.memory.tooling import SessionMemory
from chalicelib.tools.base import ToolContext, ToolFailed
from tests.support.answers import new_session
from tests.support.distilling import MONDAY, Memory, ScriptedModels, fact, item
from tests.support.stack import Stack

NO_ONE = "cand_00000000000000000000000000"
ASKED = {"stated": "approve", "observed": "approve", "inferred": "approve"}
OSLO, ROME = "Lives in Oslo.", "Lives in Rome."


class Waiting(Memory):
    """A tenant's memory with what waits beside it."""

    def set(self, **policy: Any) -> None:
        wanted: dict[str, Any] = {"timezone": "UTC", "promote": {}, "form": {}, "keep_days": {}}
        work = Policies(self.stack.node.services.db).put(self.caller, **{**wanted, **policy})
        self.run(work)

    def pass_on(self, *facts: Fact) -> tuple[int, Counter[str]]:
        """Write facts as a pass does: how many became memory, and what became of the others."""
        dropped: Counter[str] = Counter()

        async def write() -> int:
            async with self.stack.node.services.db.tenant(self.caller.tenant_id) as tx:
                return await write_facts(tx, facts, dropped=dropped, gate=hold_back)

        return int(self.run(write())), +dropped

    def waiting(self, **filters: Any) -> list[dict[str, Any]]:
        wanted = {"status": "pending", "person_id": None, "before": None, "most": 100}
        service = Candidates(self.stack.node.services.db)
        return list(self.run(service.list(self.caller, **{**wanted, **filters})))

    async def deciding(self, decision: Any, *ids: str) -> dict[str, Any]:
        service = Candidates(self.stack.node.services.db)
        return await service.decide(self.caller, ids=ids, decision=decision)

    def decide(self, decision: Any, *ids: str) -> list[dict[str, Any]]:
        return list(self.run(self.deciding(decision, *ids))["decided"])

    def propose(self, session: str, *proposed: Proposed, **whose: Any) -> int:
        wanted = {"person_id": None, "group_id": None}

        async def work() -> int:
            async with self.stack.node.services.db.tenant(self.caller.tenant_id) as tx:
                return await propose_episodes(
                    tx, session_id=session, proposed=proposed, **{**wanted, **whose}
                )

        return int(self.run(work()))


@pytest.fixture
def memory(stack: Stack) -> Waiting:
    return Waiting(stack, stack.caller)


@pytest.fixture
def ann(memory: Waiting) -> str:
    return memory.person("Ann")


# ── facts ───────────────────────────────────────────────────────────────────────────────────────


def test_observation_is_no_memory_until_it_is_approved(memory: Waiting, ann: str) -> None:
    """Lost if red: the person who is to be asked first."""
    memory.set(form={"inferred": "approve"})
    facts = (fact(OSLO, ann, origin="inferred"), fact("tea", ann, topic="drink"))
    assert memory.pass_on(*facts) == (1, Counter(waiting=1))
    assert memory.contents() == {"tea"}
    [one] = memory.waiting(person_id=ann)
    told = {"tier": "semantic", "topic": "home", "content": OSLO, "origin": "inferred"}
    assert {**one, **told, "person_id": ann, "status": "pending"} == one
    [decided] = memory.decide("approve", one["id"])
    [active] = memory.active(topic="home")
    assert decided == {"id": one["id"], "status": "approved", "memory_id": active["id"]}
    assert (active["content"], active["origin"], active["person_id"]) == (OSLO, "promoted", ann)
    assert memory.waiting() == []


@pytest.mark.parametrize("origin", ["stated", "observed"])
def test_approved_fact_keeps_its_origin_and_its_time(
    memory: Waiting, ann: str, origin: Any
) -> None:
    """Lost if red: which of two facts is the newer one, decided by who was slow to approve."""
    memory.set(form=ASKED)
    memory.pass_on(fact(ROME, ann, 0, origin=origin), fact(OSLO, ann, 7, origin=origin))
    oslo, rome = (
        next(one for one in memory.waiting() if one["content"] == c) for c in (OSLO, ROME)
    )
    memory.decide("approve", oslo["id"])
    [decided] = memory.decide("approve", rome["id"])
    [active] = memory.active()
    assert (active["content"], active["origin"]) == (OSLO, origin)
    past = memory.history(active["id"])
    assert [one["content"] for one in past] == [OSLO, ROME]
    assert decided["memory_id"] == past[1]["id"]


def test_never_is_dropped_without_a_trace(memory: Waiting, stack: Stack, ann: str) -> None:
    """Lost if red: guesses on people, where the tenant has forbidden them."""
    memory.set(form={"inferred": "never"})
    assert memory.pass_on(fact(OSLO, ann, origin="inferred")) == (0, Counter(policy=1))
    assert memory.contents() == set()
    assert stack.database.one("SELECT count(*) FROM pal.memory_candidates") == 0


def test_the_same_waits_once(memory: Waiting, ann: str) -> None:
    """Lost if red: a queue that a person can get to the end of."""
    memory.set(form=ASKED)
    ben = memory.person("Ben")
    memory.pass_on(fact(OSLO, ann, 0), fact("LIVES in Oslo", ann, 1), fact(OSLO, ben, 0))
    assert memory.pass_on(fact(OSLO, ann, 2, group_id="family")) == (0, Counter(waiting=1))
    assert Counter(one["person_id"] for one in memory.waiting()) == {ann: 1, ben: 1}


def test_what_was_denied_is_not_proposed_again_and_says_nothing(
    memory: Waiting, stack: Stack, ann: str
) -> None:
    """Lost if red: the person's no; or the words they said no to, kept after it."""
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, ann))
    [one] = memory.waiting()
    assert memory.decide("deny", one["id"]) == [{"id": one["id"], "status": "denied"}]
    kept = str(stack.database.rows("SELECT c.*::text FROM pal.memory_candidates c"))
    assert "Oslo" not in kept
    assert "home" not in kept
    assert memory.pass_on(fact("lives in oslo", ann, 3, topic="city")) == (0, Counter(denied=1))
    assert memory.waiting() == []
    [denied] = memory.waiting(status="denied")
    assert "content" not in denied
    ben = memory.person("Ben")
    assert memory.pass_on(fact(OSLO, ben)) == (0, Counter(waiting=1))


def test_what_is_known_needs_no_ones_word(memory: Waiting, ann: str) -> None:
    """Lost if red: a day's work on what is remembered already, or could not stand anyway."""
    memory.remember(OSLO, topic="home", person_id=ann)
    memory.set(form=ASKED)
    day = (datetime.now(UTC) - MONDAY).days + 1
    same = fact("lives in Oslo", ann, day)
    lesser = fact(ROME, ann, day, origin="inferred")
    assert memory.pass_on(same, lesser) == (1, Counter(outranked=1))
    assert memory.waiting() == []


def test_approved_fact_that_was_superseded_may_be_said_again(memory: Waiting, ann: str) -> None:
    """Lost if red: someone who moves back to where they lived; or a queue, by reading twice."""
    memory.set(form=ASKED)
    for day, content in enumerate((OSLO, ROME)):
        memory.pass_on(fact(content, ann, day))
        memory.decide("approve", memory.waiting()[0]["id"])
    assert memory.pass_on(fact(OSLO, ann, 0)) == (0, Counter(known=1))
    assert memory.pass_on(fact(OSLO, ann, 9)) == (0, Counter(waiting=1))
    memory.decide("approve", memory.waiting()[0]["id"])
    assert memory.contents() == {OSLO}


def test_callers_own_word_asks_no_one(memory: Waiting, ann: str) -> None:
    """Lost if red: an explicit memory, which is an approval itself."""
    memory.set(form=dict.fromkeys(ASKED, "never"))
    assert memory.remember(OSLO, person_id=ann)["content"] == OSLO
    assert memory.contents() == {OSLO}


def test_pass_asks_before_it_forms(memory: Waiting) -> None:
    """Lost if red: the policy, in the one place where most facts come from."""
    memory.set(form={"stated": "approve"})
    models = ScriptedModels()
    models.read("Oslo", item("home", OSLO))
    memory.say("I live in Oslo.", "ann")
    done = memory.distil(models)
    assert (done.found, done.dropped["waiting"], memory.active()) == (0, 1, [])
    [one] = memory.waiting()
    assert one["source_ref"].startswith("evt_")
    memory.decide("approve", one["id"])
    [active] = memory.active()
    assert (active["content"], active["source_ref"]) == (OSLO, one["source_ref"])
    [told] = memory.waiting(status="approved")
    assert (told["content"], told["source_ref"]) == (OSLO, one["source_ref"])


@pytest.mark.parametrize(
    ("word", "says", "formed"),
    [
        pytest.param("auto", "Remembered.", 1, id="auto"),
        pytest.param("approve", "Not remembered yet: it waits", 0, id="approve"),
        pytest.param("never", "such facts are not kept here", 0, id="never"),
    ],
)
def test_model_is_told_what_becomes_of_what_it_remembers(
    memory: Waiting, stack: Stack, ann: str, word: Any, says: str, formed: int
) -> None:
    """Lost if red: a reply that promises the user what the tenant forbids."""
    memory.set(form={"observed": word})
    session = new_session(stack.http())
    context = ToolContext(
        tenant_id=stack.tenant,
        session_id=session,
        turn_id="tur_x",
        call_id="call_x",
        agent_name="aide",
        user_id=None,
        group_id=None,
        now=MONDAY,
        person_id=ann,
    )
    services = stack.node.services
    tool = SessionMemory(services.db, services.search)
    try:
        told = memory.run(tool.remember(context, content=OSLO, topic="home", about=None))
    except ToolFailed as exc:
        told = str(exc)
    assert says in told
    assert len(memory.active()) == formed
    assert len(memory.waiting()) == (word == "approve")


# ── deciding ────────────────────────────────────────────────────────────────────────────────────


def test_all_are_decided_or_none(memory: Waiting, ann: str) -> None:
    """Lost if red: knowing what a refused call has done."""
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, ann), fact("tea", ann, topic="drink"))
    home, drink = (one["id"] for one in memory.waiting())
    with pytest.raises(NotFound):
        memory.decide("approve", home, NO_ONE)
    memory.decide("deny", drink)
    with pytest.raises(Conflict, match="denied already"):
        memory.decide("approve", home, drink)
    assert memory.active() == []
    assert [one["id"] for one in memory.waiting()] == [home]


def test_a_decision_made_twice_is_told_twice(memory: Waiting, ann: str) -> None:
    """Lost if red: a client that lost the answer, and what its approval came to."""
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, ann), fact("tea", ann, topic="drink"))
    home, drink = (one["id"] for one in memory.waiting())
    first = memory.decide("approve", home)
    both = memory.decide("approve", drink, home, drink)
    assert [one["id"] for one in both] == [drink, home]
    assert both[1:] == first
    assert memory.decide("approve", home, drink) == both[::-1]


def test_two_who_approve_at_once_form_one_memory(memory: Waiting, stack: Stack, ann: str) -> None:
    """Lost if red: one fact, twice; or an error for whoever pressed the button second."""
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, ann), fact("closed on Fridays", None, group_id="g"))
    ids = [one["id"] for one in memory.waiting()]
    with ThreadPoolExecutor(4) as pool:
        orders = [ids, ids[::-1]] * 2
        answers = list(pool.map(lambda order: memory.decide("approve", *order), orders))
    assert len({str(sorted(one, key=str)) for one in answers}) == 1
    assert memory.contents() == {OSLO, "closed on Fridays"}


def test_forgotten_since_is_not_formed(memory: Waiting, stack: Stack, ann: str) -> None:
    """Lost if red: that forgetting is for good, with someone who approves what was said before."""
    memory.set(form={"inferred": "approve"})
    memory.pass_on(fact(OSLO, ann, 0, origin="inferred"))
    [one] = memory.waiting()
    # as a fact of the topic leaves it, where the candidate was being proposed meanwhile
    stack.database.rows(
        "INSERT INTO pal.memory_forgotten (id, tenant_id, person_id, topic_key, contents)"
        " VALUES (%s, %s, %s, 'home', '{}')",
        *(NO_ONE.replace("cand", "mem"), memory.caller.tenant_id, ann),
    )
    assert memory.decide("approve", one["id"]) == [{"id": one["id"], "status": "approved"}]
    assert memory.active() == []


def test_forgetting_takes_what_waits_of_it_along(memory: Waiting, ann: str) -> None:
    """Lost if red: what was to be forgotten, with all its words, in a list that others read."""
    ben = memory.person("Ben")
    memory.set(form={"inferred": "approve"})
    stays = (
        fact("Likes tea.", ann, origin="inferred", topic="drink"),
        fact(OSLO, ben, origin="inferred"),
        fact(OSLO, None, said_by=ben, origin="inferred"),
    )
    memory.pass_on(
        fact(ROME, ann, 1),
        fact(OSLO, ann, 0, origin="inferred"),  # of the topic
        fact(ROME, ann, 0, origin="inferred", topic="city"),  # of the content
        *stays,
    )
    memory.forget(memory.active()[0]["id"])
    kept = sorted((one.person_id or "", one.content) for one in stays)
    assert sorted((one.get("person_id", ""), one["content"]) for one in memory.waiting()) == kept
    # nor is it asked about again when it is read again
    written, dropped = memory.pass_on(fact(OSLO, ann, 0, origin="inferred"))
    assert (written, dropped) == (0, Counter(forgotten=1))


def test_forgetting_takes_the_words_of_the_approval_along(
    memory: Waiting, stack: Stack, ann: str
) -> None:
    """Lost if red: what was to be forgotten, in the list of what was approved."""
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, ann))
    [one] = memory.waiting()
    [decided] = memory.decide("approve", one["id"])
    assert memory.waiting(status="approved")[0]["content"] == OSLO
    memory.forget(decided["memory_id"])
    assert "content" not in memory.waiting(status="approved")[0]
    kept = str(stack.database.rows("SELECT c.*::text FROM pal.memory_candidates c"))
    assert "Oslo" not in kept


def test_source_that_is_gone_does_not_take_the_fact_along(memory: Waiting, stack: Stack) -> None:
    """Lost if red: what was approved, where the message itself was kept for a month."""
    memory.set(form=ASKED)
    models = ScriptedModels()
    models.read("Oslo", item("home", OSLO))
    memory.say("I live in Oslo.", "ann")
    memory.distil(models)
    [one] = memory.waiting()
    stack.database.rows("DELETE FROM pal.memory_events")
    assert memory.decide("approve", one["id"])[0]["memory_id"]
    [active] = memory.active()
    assert (active["content"], "source_ref" in active) == (OSLO, False)


def test_approved_of_one_who_was_merged_is_the_survivors(memory: Waiting, ann: str) -> None:
    """Lost if red: what was waiting when someone tidied up."""
    old = memory.person("Ann?")
    memory.set(form=ASKED)
    memory.pass_on(fact(OSLO, old), fact("chess", ann, topic="hobby", said_by=old))
    memory.merge(old, ann)
    memory.decide("approve", *(one["id"] for one in memory.waiting()))
    assert memory.contents(person_id=ann) == {OSLO, "chess"}


# ── episodes ────────────────────────────────────────────────────────────────────────────────────


def proposed(content: str, day: float = 0, **more: Any) -> Proposed:
    at = MONDAY + timedelta(days=day)
    return Proposed(**{"kind": "decision", "content": content, "occurred_at": at, **more})


def test_approved_episode_is_told_as_what_came_of_its_session(
    memory: Waiting, stack: Stack, ann: str
) -> None:
    """Lost if red: decisions that wait, and come to nothing once they are approved."""
    session = new_session(stack.http())
    one = proposed("We go by train.", sources=("msg_a", "msg_b"), node=3)
    assert memory.propose(session, one, proposed("We pack light."), person_id=ann) == 2
    light, train = memory.waiting(person_id=ann)
    told = {"tier": "episodic", "kind": "decision", "content": "We go by train."}
    told |= {"origin": "promoted", "source_kind": "session", "source_ref": session}
    assert {**train, **told} == train
    [decided] = memory.decide("approve", train["id"])
    memory.decide("deny", light["id"])
    query = (
        "SELECT id, session_id, person_id, group_id, kind, content, sources, node, occurred_at"
        " FROM pal.memory_episodes"
    )
    assert stack.database.rows(query) == [
        (
            *(decided["memory_id"], session, ann, None, "decision", "We go by train."),
            *(["msg_a", "msg_b"], 3, MONDAY),
        )
    ]
    assert memory.waiting(status="approved")[0]["content"] == "We go by train."


def test_the_same_episode_waits_once_a_person_or_group(
    memory: Waiting, stack: Stack, ann: str
) -> None:
    """Lost if red: the same decision to approve, after each session that came back to it."""
    http = stack.http()
    first, second = new_session(http), new_session(http)
    train = proposed("We go by train.")
    assert memory.propose(first, train, proposed("WE go by train"), person_id=ann) == 1
    assert memory.propose(second, train, person_id=ann) == 0
    assert memory.propose(second, train, person_id=ann, group_id="family") == 1
    assert memory.propose(first, train, person_id=memory.person("Ben"), group_id="family") == 0
    assert memory.propose(first, train) == 1
    assert memory.propose(second, train) == 1, "no one known is not the same one"
    memory.decide("deny", *(one["id"] for one in memory.waiting()))
    assert memory.propose(second, train, person_id=ann) == 0


def test_deleted_session_takes_what_waits_of_it_along(
    memory: Waiting, stack: Stack, ann: str
) -> None:
    """Lost if red: what a deleted conversation came to, in a list for someone to read."""
    session = new_session(stack.http())
    memory.set(form=ASKED)
    memory.propose(session, proposed("We go by train."), person_id=ann)
    memory.pass_on(fact(OSLO, ann, session_id=session, source_kind="session"))
    assert len(memory.waiting()) == 2
    memory.run(stack.node.services.sessions.delete(memory.caller, session))
    assert stack.database.one("SELECT count(*) FROM pal.memory_candidates") == 0


def test_many_are_paged_newest_first(memory: Waiting, ann: str) -> None:
    """Lost if red: what waits behind the first page."""
    memory.set(form=ASKED)
    memory.pass_on(*(fact(f"likes {n}", ann, n, topic=f"topic {n}") for n in range(5)))
    whole = [one["id"] for one in memory.waiting()]
    assert whole == sorted(whole, reverse=True)
    assert [one["id"] for one in memory.waiting(before=whole[1], most=2)] == whole[2:4]


@pytest.mark.parametrize("number", [100])
def test_a_hundred_are_approved_in_one_call(memory: Waiting, ann: str, number: int) -> None:
    """Lost if red: the button that approves a page of them."""
    memory.set(form=ASKED)
    memory.pass_on(*(fact(f"likes {n}", ann, n, topic=f"topic {n}") for n in range(number)))
    decided = memory.decide("approve", *(one["id"] for one in memory.waiting()))
    assert len({one["memory_id"] for one in decided}) == number
    assert len(memory.active()) == number
