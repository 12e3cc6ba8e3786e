"""Narratives on a real Postgres: what is told, to whom, and what no longer is."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import psycopg
import pytest

from chalicelib.auth import Principal
from chalicelib.db import Tx
from chalicelib.errors import NoModel, ProviderError
from chalicelib.memory import schedule
from chalicelib.memory.episodes import EpisodeKind, Proposed, promote
from chalicelib.memory.facts import read_clock
from chalicelib.memory.narrative.keeping import touch
from chalicelib.memory.narrative.narrator import Narrator
from chalicelib.memory.narrative.shapes import Narrative
from chalicelib.memory.narrative.store import read_narrative
from chalicelib.memory.narrative.telling import render_narrative
from chalicelib.memory.search import Search
from chalicelib.providers import ModelRequest
from tests.support.distilling import MONDAY, Memory, ScriptedModels, fact, item
from tests.support.stack import Stack
from tests.support.waiting import until

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
STALE = "SELECT count(*) FROM pal.memory_narratives WHERE stale_at IS NOT NULL"


class Narratives:
    """A tenant's narratives, driven as ends of sessions, passes and prompts do."""

    def __init__(self, stack: Stack, caller: Principal) -> None:
        self.stack, self.caller = stack, caller
        self.db = stack.node.services.db
        self.memory = Memory(stack, caller)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.stack.node.run(work)

    def within(self, work: Callable[[Tx], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with self.db.tenant(self.caller.tenant_id) as tx:
                return await work(tx)

        return self.run(run())

    def session(self, user: str | None = None, group: str | None = None) -> str:
        body = {"agentName": "guide", "userId": user, "groupId": group}
        http = self.stack.http()
        sent = {name: value for name, value in body.items() if value is not None}
        return str(http.call("POST", "/v1/sessions", sent).json["id"])

    def end(
        self,
        session: str,
        *contents: str,
        person: str | None = None,
        group: str | None = None,
        kind: EpisodeKind = "decision",
    ) -> None:
        """What an end does here: promote, then touch."""
        said = [Proposed(kind=kind, content=one, occurred_at=MONDAY) for one in contents]

        async def work(tx: Tx) -> None:
            whose = {"person_id": person, "group_id": group}
            now = await read_clock(tx)
            await promote(tx, session_id=session, proposed=said, now=now, **whose)
            await touch(tx, now=now, **whose)

        self.within(work)

    def touch(self, person: str | None, group: str | None = None) -> None:
        self.within(lambda tx: touch(tx, person_id=person, group_id=group, now=MONDAY))

    def read(self, person: str | None, group: str | None = None) -> Narrative | None:
        found = self.within(lambda tx: read_narrative(tx, person_id=person, group_id=group))
        assert found is None or isinstance(found, Narrative)
        return found

    def told(self, person: str | None, group: str | None = None) -> list[str]:
        """The texts of the lines that a session is given."""
        found = self.read(person, group)
        return [] if found is None else [one.text for one in found.lines]

    def refresh(self, models: Any, **how: Any) -> int:
        return int(self.run(Narrator(self.db, models, **how).refresh(self.caller.tenant_id)))

    def search(self, text: str, **scope: Any) -> list[tuple[str, str | None]]:
        found = self.run(
            Search(self.db).find(self.caller.tenant_id, text=text, tiers=("narrative",), **scope)
        )
        return [(one["content"], one.get("person_id")) for one in found]


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system without vectors, which these tests are not about."""
    return make_stack(embeddings="off")


@pytest.fixture
def narratives(stack: Stack) -> Narratives:
    return Narratives(stack, stack.caller)


@pytest.fixture
def memory(narratives: Narratives) -> Memory:
    return narratives.memory


@pytest.fixture
def ann(memory: Memory) -> str:
    return memory.person("Ann")


def written(stack: Stack, word: str) -> int:
    """How many narratives hold a word, told or not."""
    query = "SELECT count(*) FROM pal.memory_narratives WHERE lines::text LIKE %s"
    return int(str(stack.database.one(query, f"%{word}%")))


def lines(*given: tuple[str, list[int]]) -> str:
    """A model's whole answer."""
    return json.dumps({"lines": [{"text": text, "sources": sources} for text, sources in given]})


def numbers_of(request: ModelRequest) -> dict[str, int]:
    """By what it says, the number of each fact and episode that a model was given."""
    content = request.messages[-1].content
    given = [json.loads(one) for one in content.splitlines() if one.startswith("{")]
    return {one.get("fact") or one["text"]: one["number"] for one in given if "number" in one}


def retelling(*told: tuple[str, list[str]]) -> Callable[[ModelRequest], Awaitable[str]]:
    """A model that writes these lines, each with the contents that it rests on."""

    async def answer(request: ModelRequest) -> str:
        numbers = numbers_of(request)
        return lines(*((text, [numbers[one] for one in sources]) for text, sources in told))

    return answer


# ── without a model ──────────────────────────────────────────────────────────────────────────
def test_next_session_is_told_what_came_of_the_last_without_any_model(
    narratives: Narratives, memory: Memory
) -> None:
    """Lost if red: where a customer and their assistant left off, on every offline installation."""
    session = narratives.session("ann")
    ann = memory.whose("ann")
    memory.write(fact("Ann lives in Oslo.", ann))
    narratives.end(session, "Ship on Friday.", person=ann)
    assert narratives.told(ann) == [
        "2026-01-05, decided: Ship on Friday.",
        "2026-01-05, home: Ann lives in Oslo.",
    ]
    assert "Ship on Friday." in render_narrative(narratives.read(ann))


def test_what_is_private_is_told_in_no_group_and_a_groups_to_no_other(
    narratives: Narratives, memory: Memory
) -> None:
    """Lost if red: what someone said in confidence, to everyone they share a group with."""
    private, shared = narratives.session("ann"), narratives.session("ann", "g")
    ann = memory.whose("ann")
    memory.write(
        fact("Ann is ill.", ann, topic="health"),
        fact("Ann likes tea.", ann, topic="tea", group_id="g"),
    )
    narratives.end(private, "Leave the job.", person=ann)
    narratives.end(shared, "Meet on Monday.", person=ann, group="g")
    alone, group = " ".join(narratives.told(ann)), " ".join(narratives.told(ann, "g"))
    assert "ill" not in group
    assert "Leave" not in group
    assert "Meet on Monday." in group
    assert "tea" in group
    assert "Meet on Monday." not in alone
    assert "ill" in alone
    assert narratives.told(None, "g") == narratives.told(ann, "g")
    assert narratives.told(None, "other") == narratives.told(None) == []
    assert narratives.told(ann, "other") == []


def test_what_a_caller_had_remembered_for_everyone_is_in_no_ones_story(
    narratives: Narratives, memory: Memory, ann: str
) -> None:
    """Lost if red: the tenant's opening hours, in every person's few lines."""
    memory.remember("The shop closes at five.")
    memory.write(fact("Ann lives in Oslo.", ann))
    narratives.touch(ann)
    narratives.touch(None, "g")
    assert narratives.told(ann) == ["2026-01-05, home: Ann lives in Oslo."]
    assert narratives.told(None, "g") == []


def test_of_no_one_and_of_who_is_gone_nothing_is_written(
    narratives: Narratives, stack: Stack
) -> None:
    """Lost if red: the end of an anonymous session, and its answer with it."""
    narratives.touch(None)
    narratives.touch("per_00000000000000000000000000")
    assert stack.database.one("SELECT count(*) FROM pal.memory_narratives") == 0


def test_two_ends_at_once_write_one_narrative(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: the end of the second of a group's sessions, to a key that is there already."""
    first, second = narratives.session("ann", "g"), narratives.session("ben", "g")
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as held:
        held.execute("SELECT pal.enter(%s, '')", (stack.tenant,))
        held.execute(
            "INSERT INTO memory_narratives (id, tenant_id, group_id) VALUES ('nar_x',"
            " pal.tenant(), 'g')"
        )

        async def end(session: str, content: str) -> None:
            said = [Proposed(kind="decision", content=content, occurred_at=MONDAY)]
            async with narratives.db.tenant(stack.tenant) as tx:
                whose = {"person_id": None, "group_id": "g"}
                await promote(tx, session_id=session, proposed=said, now=MONDAY, **whose)
                await touch(tx, now=MONDAY, **whose)

        both = [
            stack.node.on.start(end(session, content))
            for session, content in ((first, "One."), (second, "Two."))
        ]
        until(lambda: stack.database.one(WAITING, stack.database.name) == 2)
        held.commit()
        for one in both:
            one.result(20)
    assert len(narratives.told(None, "g")) == 2
    assert stack.database.one("SELECT count(*) FROM pal.memory_narratives") == 1


# ── what no longer holds ─────────────────────────────────────────────────────────────────────
def test_forgotten_fact_is_told_no_more_at_once_nor_kept(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: the word given to whoever had something forgotten."""
    memory.write(fact("Ann is ill.", ann, topic="health"), fact("Ann lives in Oslo.", ann))
    models = ScriptedModels()
    models.script = [
        retelling(
            ("Ann of Oslo is ill.", ["Ann is ill.", "Ann lives in Oslo."]),
            ("She lives there.", ["Ann lives in Oslo."]),
        )
    ]
    assert narratives.refresh(models) == 1
    [ill] = memory.active(person_id=ann, topic="health")
    memory.forget(ill["id"])
    assert narratives.told(ann) == ["She lives there."]
    assert written(stack, "ill") == 0
    assert stack.database.one(STALE) == 1


def test_line_that_names_the_wrong_sources_is_written_anew_once_one_is_forgotten(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: what was forgotten, kept in a line that a model ascribed to another fact."""
    memory.write(fact("Ann is ill.", ann, topic="health"), fact("Ann lives in Oslo.", ann))
    models = ScriptedModels()
    models.script = [retelling(("Ann of Oslo is ill.", ["Ann lives in Oslo."]))]
    assert narratives.refresh(models) == 1
    assert stack.database.one(STALE) == 0
    memory.forget(memory.active(person_id=ann, topic="health")[0]["id"])
    models.script = [retelling(("Ann is of Oslo.", ["Ann lives in Oslo."]))]
    assert narratives.refresh(models) == 1
    assert narratives.told(ann) == ["Ann is of Oslo."]


def test_what_was_superseded_is_told_no_more_and_its_successor_next(
    narratives: Narratives, memory: Memory, ann: str
) -> None:
    """Lost if red: a new home, to the old one that a model once wrote of."""
    memory.write(fact("Ann lives in Lyon.", ann))
    models = ScriptedModels()
    models.script = [retelling(("Ann is at home in Lyon.", ["Ann lives in Lyon."]))]
    narratives.refresh(models)
    memory.write(fact("Ann lives in Oslo.", ann, 7))
    assert narratives.told(ann) == []
    narratives.touch(ann)
    assert narratives.told(ann) == ["2026-01-12, home: Ann lives in Oslo."]


def test_session_that_is_deleted_takes_its_lines_along(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: what someone deleted, told in every later session."""
    one, other = narratives.session("ann"), narratives.session("ann")
    ann = memory.whose("ann")
    narratives.end(one, "Buy the boat.", person=ann)
    narratives.end(other, "Sell the car.", person=ann)
    assert stack.http().call("DELETE", f"/v1/sessions/{one}").status == 204
    assert narratives.told(ann) == ["2026-01-05, decided: Sell the car."]
    assert written(stack, "boat") == 0


def test_what_is_another_persons_by_now_is_told_to_neither_wrongly(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: what was found to be Ben's or a group's, in Ann's sessions for good."""
    session, ben = narratives.session("ann"), memory.person("Ben")
    ann = memory.whose("ann")
    memory.write(fact("Lives in Oslo.", ann))
    narratives.end(session, "Ship on Friday.", "Sail on Monday.", person=ann)
    assert len(narratives.told(ann)) == 3
    stack.database.rows("UPDATE pal.memory_distillates SET person_id = %s, said_by = %s", ben, ben)
    query = "UPDATE pal.memory_episodes SET person_id = %s WHERE content LIKE 'Ship%%'"
    stack.database.rows(query, ben)
    assert narratives.told(ann) == ["2026-01-05, decided: Sail on Monday."]
    stack.database.rows("UPDATE pal.memory_episodes SET group_id = 'g'")
    assert narratives.told(ann) == []


# ── by a model ───────────────────────────────────────────────────────────────────────────────
def test_model_rewrites_what_has_changed_and_nothing_else(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: the narrative itself, or a model call a pass for each person there is."""
    memory.write(fact("Ann lives in Oslo.", ann))
    narratives.touch(ann)
    models = ScriptedModels()
    models.script = [retelling(("Ann is from Oslo.", ["Ann lives in Oslo."]))]
    assert narratives.refresh(models) == 1
    assert models.chains[0]["role"] == "fast"
    assert models.chains[0]["stand_in"] is False
    found = narratives.read(ann)
    assert found is not None
    [kept] = found.lines
    [known] = memory.active(person_id=ann)
    assert (kept.text, kept.sources, kept.plain) == ("Ann is from Oslo.", (known["id"],), False)
    assert narratives.refresh(models) == 0
    memory.write(fact("Ann lives in Oslo.", ann, 1))  # said once more
    assert narratives.refresh(models) == 0
    assert len(models.asked) == 1
    memory.write(fact("Ann likes tea.", ann, topic="tea"))
    assert stack.database.one(STALE) == 1
    models.script = [retelling(("Ann has tea.", ["Ann likes tea."]))]
    assert narratives.refresh(models) == 1
    assert "Ann is from Oslo." in models.asked[1].messages[-1].content


def test_end_keeps_what_a_model_wrote_and_adds_what_is_new(
    narratives: Narratives, memory: Memory
) -> None:
    """Lost if red: a good narrative at every end, to a list of everything there is."""
    session = narratives.session("ann")
    ann = memory.whose("ann")
    memory.write(fact("Ann lives in Oslo.", ann), fact("Ann likes tea.", ann, topic="tea"))
    models = ScriptedModels()
    models.script = [retelling(("Ann is from Oslo.", ["Ann lives in Oslo."]))]
    narratives.refresh(models)
    narratives.end(session, "Ship on Friday.", person=ann)
    assert narratives.told(ann) == ["Ann is from Oslo.", "2026-01-05, decided: Ship on Friday."]


@pytest.mark.parametrize("change", ["fact", "forget", "end"])
def test_what_changes_while_a_model_writes_is_not_written_over(
    change: str, narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: something forgotten that comes back, or something new that is never told."""
    session = narratives.session("ann")
    ann = memory.whose("ann")
    memory.write(fact("Ann is ill.", ann, topic="health"), fact("Ann lives in Oslo.", ann))
    [ill] = memory.active(person_id=ann, topic="health")

    async def answer(request: ModelRequest) -> str:
        if change == "fact":
            await memory.writing(fact("Ann likes tea.", ann, topic="tea"))
        elif change == "forget":
            await memory.service.forget(memory.caller, ill["id"])
        else:
            async with narratives.db.tenant(stack.tenant) as tx:
                await touch(tx, person_id=ann, group_id=None, now=MONDAY)
        return lines(("Ann of Oslo is ill.", [1, 2]))

    models = ScriptedModels()
    models.script = [answer]
    assert session
    assert narratives.refresh(models) == 0
    assert written(stack, "Ann of Oslo") == 0
    assert stack.database.one(STALE) == 1


class Modelless:
    """An installation that has no model."""

    async def chain(self, **chosen: Any) -> Any:
        raise NoModel("There is no model.")


def test_without_a_model_the_plain_lines_stay(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: all narratives, in the hour in which a key has lapsed."""
    memory.write(fact("Ann lives in Oslo.", ann))
    narratives.touch(ann)
    assert narratives.refresh(Modelless()) == 0
    assert narratives.told(ann) == ["2026-01-05, home: Ann lives in Oslo."]
    assert stack.database.one(STALE) == 1


@pytest.mark.parametrize(
    ("step", "asked", "others"),
    [
        pytest.param("I cannot do that.", 2, 1, id="an-answer-of-no-use"),
        pytest.param(ProviderError("down"), 1, 0, id="a-provider-that-is-down"),
    ],
)
def test_one_that_fails_costs_the_others_nothing_and_is_not_tried_at_once(
    step: Any, asked: int, others: int, narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: everyone's narrative to one bad answer, or a call for each to a dead vendor."""
    ann, ben = memory.person("Ann"), memory.person("Ben")
    memory.write(fact("Lives in Oslo.", ann))
    memory.write(fact("Lives in Rome.", ben))
    narratives.touch(ann)
    models = ScriptedModels()
    models.script = [step, retelling(("Ben is from Rome.", ["Lives in Rome."]))]
    assert narratives.refresh(models) == others
    assert len(models.asked) == asked
    assert narratives.told(ann) == ["2026-01-05, home: Lives in Oslo."]
    assert narratives.told(ben) == ["Ben is from Rome."] * others
    assert stack.database.one(STALE) == 2 - others


def test_model_that_says_nothing_is_given_up(
    narratives: Narratives, memory: Memory, ann: str
) -> None:
    """Lost if red: a worker, for as long as a vendor cares to be silent."""
    memory.write(fact("Lives in Oslo.", ann))
    models = ScriptedModels()

    async def silence(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    models.script = [silence]
    assert narratives.refresh(models, seconds=0.05) == 0


def test_no_transaction_is_open_while_a_model_is_asked(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: the pool's connections, each for the minutes of an answer."""
    memory.write(fact("Lives in Oslo.", ann))
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in%%'"
        " AND usename <> current_user"
    )
    seen = []

    async def answer(request: ModelRequest) -> str:
        seen.append(await asyncio.to_thread(stack.database.one, query, stack.database.name))
        return lines(("Ann is from Oslo.", [1]))

    models = ScriptedModels()
    models.script = [answer]
    assert narratives.refresh(models) == 1
    assert seen == [0]


def test_narrative_of_which_nothing_is_left_goes(
    narratives: Narratives, memory: Memory, ann: str, stack: Stack
) -> None:
    """Lost if red: a model that is asked about nothing, at every pass."""
    memory.write(fact("Lives in Oslo.", ann))
    [known] = memory.active(person_id=ann)
    memory.forget(known["id"])
    models = ScriptedModels()
    assert narratives.refresh(models) == 0
    assert models.asked == []
    assert stack.database.one("SELECT count(*) FROM pal.memory_narratives") == 0


# ── when ─────────────────────────────────────────────────────────────────────────────────────
def test_pass_writes_what_it_has_read_into_the_narratives_once_it_has_caught_up(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: what was said since the last end, until a session ends."""
    memory.say("I moved to Oslo.", "ann")
    models = ScriptedModels()
    models.read("moved to Oslo", item("home city", "Moved to Oslo."))
    models.script = [models.answer, retelling(("Ann lives in Oslo now.", ["Moved to Oslo."]))]
    distiller = memory.distiller(models)
    narrator = Narrator(narratives.db, models)
    more = narratives.run(schedule.run_slice(distiller, stack.tenant, narrator))
    assert more is False
    assert narratives.told(memory.whose("ann")) == ["Ann lives in Oslo now."]


class Breaking(Narrator):
    """One that nothing can be done about."""

    async def refresh(self, tenant_id: str, *, most: int = 20) -> int:
        raise RuntimeError("broken")


def test_narrator_that_breaks_leaves_the_pass_as_it_is(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: the passes of all tenants after one, in this process."""
    memory.say("I moved to Oslo.", "ann")
    models = ScriptedModels()
    models.read("moved to Oslo", item("home city", "Moved to Oslo."))
    broken = Breaking(narratives.db, models)
    assert not narratives.run(schedule.run_slice(memory.distiller(models), stack.tenant, broken))
    assert memory.contents() == {"Moved to Oslo."}


def test_facts_in_other_orders_do_not_block_one_another(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: a pass, to a deadlock with whoever has the same people's facts written."""
    people = [memory.person(f"P{number}") for number in range(6)]

    async def write(number: int) -> None:
        order = people if number % 2 else people[::-1]
        facts = [
            fact(f"{number}", one, number, topic=f"t{number}", group_id=f"g{place % 3}")
            for place, one in enumerate(order)
        ]
        await memory.writing(*facts)

    async def write_all() -> None:
        await asyncio.gather(*(write(number) for number in range(12)))

    stack.node.run(write_all())
    assert stack.database.one("SELECT count(*) FROM pal.memory_narratives") == 9


# ── merged and erased ────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("both", [True, False])
def test_merge_leaves_one_narrative_with_what_both_told(
    both: bool, narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: half of what was decided with someone, once they are recognised."""
    one, other = narratives.session("ann"), narratives.session("a.lee")
    old, ann = memory.whose("a.lee"), memory.whose("ann")
    narratives.end(other, "Buy the boat.", person=old)
    if both:
        narratives.end(one, "Sell the car.", person=ann)
    memory.merge(old, ann)
    expected = ["2026-01-05, decided: Sell the car."] if both else []
    assert narratives.told(ann) == [*expected, "2026-01-05, decided: Buy the boat."]
    owners = stack.database.rows("SELECT person_id, stale_at IS NULL FROM pal.memory_narratives")
    assert owners == [(ann, False)]
    narratives.touch(old)  # an end that has the old id still
    assert len(narratives.told(ann)) == 1 + both
    assert stack.database.rows("SELECT DISTINCT person_id FROM pal.memory_episodes") == [(ann,)]


def test_two_full_narratives_are_one_of_the_usual_size(
    narratives: Narratives, memory: Memory
) -> None:
    """Lost if red: twice the tokens of every turn, for whoever was two people once."""
    one, other = narratives.session("ann"), narratives.session("a.lee")
    old, ann = memory.whose("a.lee"), memory.whose("ann")
    for session, person in ((one, ann), (other, old)):
        narratives.end(session, *(f"{person} {'x' * 150} {n}" for n in range(20)), person=person)
    before = len(narratives.told(ann))
    memory.merge(old, ann)
    assert len(narratives.told(ann)) == before


def test_erased_persons_words_are_in_no_narrative(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: the promise made to whoever asks to be forgotten."""
    http = stack.http()
    private, shared = narratives.session("ann"), narratives.session("ann", "g")
    bens = narratives.session("ben", "g")
    ann, ben = memory.whose("ann"), memory.whose("ben")
    memory.write(
        fact("Zebra: Ann's own.", ann, topic="a"),
        fact("Zebra: Ben told of Ann.", ann, topic="b", said_by=ben),
        fact("Zebra: Ben of Ann in the group.", ann, topic="c", said_by=ben, group_id="g"),
        fact("Ben's own.", ben, topic="d"),
        fact("Ben's in the group.", ben, topic="e", group_id="g"),
    )
    narratives.end(private, "Zebra: hers.", person=ann)
    narratives.end(shared, "Zebra: theirs.", person=ann, group="g")
    narratives.end(bens, "Ben's decision.", person=ben, group="g")
    narratives.touch(ben)
    assert written(stack, "Zebra") == 3
    assert http.call("DELETE", f"/v1/people/{ann}").status == 204
    assert written(stack, "Zebra") == 0
    assert stack.database.one("SELECT count(*) FROM pal.memory_episodes") == 1
    assert {one.partition(": ")[2] for one in narratives.told(ben)} == {
        "Ben's own.",
        "Ben's in the group.",
    }
    assert {one.partition(": ")[2] for one in narratives.told(None, "g")} == {
        "Ben's in the group.",
        "Ben's decision.",
    }
    assert stack.database.one(STALE) == 2


# ── searched ─────────────────────────────────────────────────────────────────────────────────
def test_lines_that_answer_are_found_by_person_by_group_and_in_all_of_it(
    narratives: Narratives, memory: Memory, stack: Stack
) -> None:
    """Lost if red: the tier that the contract names, or another's lines in it."""
    one, shared = narratives.session("ann"), narratives.session("ben", "g")
    ann, ben = memory.whose("ann"), memory.whose("ben")
    narratives.end(one, "Buy the boat in Bergen.", "Sell the car.", person=ann)
    narratives.end(shared, "Paint the boat red.", person=ben, group="g")
    boat, red = (
        ("2026-01-05, decided: Buy the boat in Bergen.", ann),
        (
            "2026-01-05, decided: Paint the boat red.",
            None,
        ),
    )
    assert narratives.search("boats in Bergen", person_id=ann) == [boat]
    assert narratives.search("boat", person_id=ben) == []
    assert narratives.search("boat", group_id="g") == [red]
    assert narratives.search("boat", group_id="g", person_id=ben) == []
    assert narratives.search("what boat in Bergen?") == [boat, red]
    assert narratives.search("submarine") == narratives.search("the") == []
    assert narratives.search("boat", since=MONDAY.replace(year=2027)) == []
    http = stack.http()
    reply = http.call("GET", "/v1/memory/search?q=Bergen&tiers=narrative")
    [found] = reply.json["results"]
    assert found["tier"] == "narrative"
    assert found["id"].startswith("nar_")
    assert found["source_kind"] == "run"
    assert http.call("DELETE", f"/v1/sessions/{one}").status == 204
    assert narratives.search("boat") == [red]
    other = stack.http(stack.other_key).call("GET", "/v1/memory/search?q=boat&tiers=narrative")
    assert other.json["results"] == []
