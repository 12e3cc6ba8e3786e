"""Passes that fail, at each of their steps: nothing is written, and nothing is skipped."""

import asyncio
import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from chalicelib import telemetry
from chalicelib.config import Settings
from chalicelib.errors import InProgress, PalError, ProviderUnavailable
from chalicelib.providers import ModelRequest, Models
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.distilling import Memory, ScriptedModels, fact, item, rows, told
from tests.support.stack import Stack
from tests.support.waiting import until

SECRET_WORDS = ("okapi", "Oslo", "zebra")
PROGRAM = """
import asyncio, sys
from chalicelib.config import load_settings
from chalicelib.db import Database
from chalicelib.memory.distill.passes import Distiller
from chalicelib.providers import Models
import os

async def run():
    db = Database(sys.argv[1])
    await db.open()
    await Distiller(db, Models(load_settings(os.environ))).run(sys.argv[2])

asyncio.run(run())
"""


@pytest.fixture
def memory(stack: Stack) -> Memory:
    """A tenant who is known to live in Oslo, and has said since that they moved."""
    made = Memory(stack, stack.caller)
    models = ScriptedModels()
    made.say("I live in Oslo.", "ann")
    models.script = [told(item("home", "Lives in Oslo", line=1))]
    made.distil(models)
    made.say("I moved to Rome, to the okapi house.", "ann", 1)
    made.say("I play chess.", "ben", 1)
    return made


@pytest.fixture
def models() -> ScriptedModels:
    made = ScriptedModels()
    made.read("moved to Rome", item("home", "Moved to Rome"))
    made.read("play chess", item("hobby", "Plays chess, zebra"))
    return made


Fault = Callable[[Stack, ScriptedModels], None]


def says(*steps: Any) -> Fault:
    """What the model does for the first calls."""

    def prepare(stack: Stack, models: ScriptedModels) -> None:
        models.script = list(steps)

    return prepare


def breaks(table: str, when: tuple[str, str], what: str) -> Fault:
    """What the database does when it comes to that table."""

    def prepare(stack: Stack, models: ScriptedModels) -> None:
        event, rest = when
        kind = "CONSTRAINT TRIGGER" if "DEFERRED" in rest else "TRIGGER"
        for statement in (
            "CREATE FUNCTION pal.fault() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$BEGIN {what}; RETURN NEW; END$$",
            f"CREATE {kind} fault {event} ON pal.{table} {rest} EXECUTE FUNCTION pal.fault()",
        ):
            stack.database.rows(statement)  # type: ignore[arg-type]

    return prepare


def mend(stack: Stack) -> None:
    """Take the database's fault away."""
    drop: LiteralString = "DROP FUNCTION IF EXISTS pal.fault() CASCADE"
    stack.database.rows(drop)


RAISES = "RAISE EXCEPTION 'okapi'"
RESETS = "PERFORM pg_terminate_backend(pg_backend_pid())"
GARBAGE = "Here are the facts about the okapi: none."
DOWN = ProviderUnavailable("The okapi server is down.")
HALF = [told(item("home", "Moved to Rome", line=1)), '{"distillates": [{"topic"', "{"]
FACTS, PASSES = "memory_distillates", "memory_passes"
INSERT, UPDATE = ("BEFORE INSERT", "FOR EACH ROW"), ("BEFORE UPDATE", "FOR EACH ROW")
COMMIT = ("AFTER INSERT", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW")
MOVE = ("BEFORE UPDATE", "FOR EACH ROW WHEN (OLD.read_id IS DISTINCT FROM NEW.read_id)")

FAULTS = [
    pytest.param(says(DOWN), "provider_unavailable", id="model-down"),
    pytest.param(says(LookupError("okapi")), "LookupError", id="model-broken"),
    pytest.param(says(GARBAGE, GARBAGE), "unreadable_answer", id="garbage"),
    pytest.param(says("", ""), "unreadable_answer", id="empty"),
    pytest.param(says(*HALF), "unreadable_answer", id="second-chunk-cut-off"),
    pytest.param(breaks(FACTS, INSERT, RAISES), "RaiseException", id="insert"),
    pytest.param(breaks(FACTS, UPDATE, RAISES), "RaiseException", id="supersede"),
    pytest.param(breaks(FACTS, COMMIT, RAISES), "RaiseException", id="commit"),
    pytest.param(breaks(PASSES, MOVE, RAISES), "RaiseException", id="watermark"),
    pytest.param(breaks(FACTS, INSERT, RESETS), "unavailable", id="reset-at-insert"),
    pytest.param(breaks(FACTS, UPDATE, RESETS), "unavailable", id="reset-at-supersede"),
    pytest.param(breaks(FACTS, COMMIT, RESETS), "unavailable", id="reset-at-commit"),
    pytest.param(breaks(PASSES, MOVE, RESETS), "unavailable", id="reset-at-watermark"),
]


def whole(stack: Stack) -> list[Any]:
    """Everything that a pass writes, but for who runs it and how it went."""
    return [
        rows(stack),
        stack.database.rows("SELECT f.*::text FROM pal.memory_forgotten f ORDER BY id"),
        stack.database.rows("SELECT read_tx::text, read_id FROM pal.memory_passes"),
        stack.database.rows("SELECT p.*::text FROM pal.people p ORDER BY id"),
    ]


def state(stack: Stack) -> tuple[Any, ...]:
    return stack.database.rows(
        "SELECT lease, failures, error_code, ended_at IS NULL FROM pal.memory_passes"
    )[0]


@pytest.mark.parametrize(("fault", "code"), FAULTS)
def test_failure_leaves_all_as_it_was(
    memory: Memory,
    models: ScriptedModels,
    stack: Stack,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    code: str,
) -> None:
    """Lost if red: half of what was said, or all of it twice, after any trouble (MEM-4)."""
    before = whole(stack)
    fault(stack, models)
    with caplog.at_level(logging.INFO), pytest.raises(Exception):  # noqa: B017, PT011
        memory.distil(models)
    assert whole(stack) == before
    assert state(stack) == (None, 1, code, False)
    [line] = [one for one in caplog.records if getattr(one, "action", "") == "distill_failed"]
    assert (line.levelname, line.code) == ("WARNING", code)  # type: ignore[attr-defined]
    assert not [word for word in SECRET_WORDS if word in str(vars(line))]
    mend(stack)
    models.script = []
    models.asked.clear()
    done = memory.distil(models)
    assert (done.found, done.events, len(models.asked)) == (2, 2, 2)
    assert memory.contents() == {"Moved to Rome", "Plays chess, zebra"}
    assert state(stack) == (None, 0, None, False)


def test_failures_are_counted_in_a_row(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: the pause between tries, which grows with each of them."""
    for count in (1, 2, 3):
        models.script = [DOWN]
        with pytest.raises(ProviderUnavailable):
            memory.distil(models)
        assert state(stack)[1] == count
    assert stack.node.run(memory.distiller(models).due(3_600, 10)) == []


def test_answer_that_cannot_be_read_is_asked_for_again_once(
    memory: Memory, models: ScriptedModels
) -> None:
    """Lost if red: a pass, for one slip of the model; or its price without end."""

    async def slip(request: ModelRequest) -> str:
        again = "could not be read" in request.system
        return await models.answer(request) if again else GARBAGE

    models.script = [slip] * 4
    assert memory.distil(models).found == 2
    assert len(models.asked) == 4
    assert len({one.system + one.messages[0].content for one in models.asked}) == 4


def test_answer_that_is_too_long_is_asked_for_in_halves(
    memory: Memory, models: ScriptedModels
) -> None:
    """Lost if red: every pass of a tenant, from the first hour in which much was said."""
    texts = [f"I keep {number} goats there." for number in range(10, 20)]
    memory.ingest(*(memory.event(text, "zoe", n / 100) for n, text in enumerate(texts)))
    for number, text in enumerate(texts):
        models.read(text, item(f"goats {number}", text))
    models.longest = len(told(*(item("goats 0", text) for text in texts[:3])))
    done = memory.distil(models)
    assert (done.found, done.more) == (len(texts) + 2, False)
    assert memory.contents() >= set(texts)


def test_message_whose_answer_is_always_too_long_fails_the_pass(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: a loop without end, or a fact that was cut in the middle."""
    before = whole(stack)
    models.longest = 5
    with pytest.raises(PalError, match="could not be read"):
        memory.distil(models)
    assert whole(stack) == before


def test_without_a_model_nothing_is_read(memory: Memory, models: ScriptedModels) -> None:
    """Lost if red: all that was said before there was a model, read by the stand-in for nothing."""
    for places in ((), (("offline", "offline"),)):
        stand_in = Models(Settings(providers=places))
        done = memory.distil(stand_in)  # type: ignore[arg-type]
        assert (done.found, done.more, done.events) == (0, False, 0)
    assert memory.distil(models).found == 2


def test_bad_confidence_never_stops_the_rest(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: a batch of facts, for one that is not a number (MEM-12)."""
    bad = [math.nan, math.inf, -1, 1.5, 85, True, None, "high", "80%", [0.9]]
    items = [item(f"topic {n}", f"Moved {n}", confidence=one) for n, one in enumerate(bad)]
    models.read("moved to Rome", *items, item("home", "Moved to Rome", confidence="0.8"))
    done = memory.distil(models)
    assert done.found == 2
    assert memory.contents() == {"Moved to Rome", "Plays chess, zebra"}
    assert sum(done.dropped.values()) == len(bad)


def test_store_refuses_what_is_no_confidence(memory: Memory, stack: Stack) -> None:
    """Lost if red: the last line of defence, and with it every comparison by confidence."""
    before = whole(stack)
    good = fact("Plays go", memory.whose("ann"), 3, topic="game")
    for bad in (math.nan, math.inf, 1.01, -0.01):
        wrong = replace(good, topic="x", topic_key="x", confidence=bad)
        with pytest.raises(psycopg.errors.CheckViolation):
            memory.write(good, wrong)
    assert whole(stack) == before


def test_cancelled_pass_gives_its_lease_back(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: six minutes of waiting after each deploy, or a failure that was none."""
    asked = asyncio.Event()
    before = whole(stack)

    async def hang(request: ModelRequest) -> str:
        asked.set()
        await asyncio.sleep(3_600)
        return ""

    async def cancel() -> None:
        run = asyncio.create_task(memory.distiller(models).run(stack.tenant))
        await asked.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    models.script = [hang, hang]
    stack.node.run(cancel())
    assert (whole(stack), state(stack)[:3]) == (before, (None, 0, None))
    models.script = []
    assert memory.distil(models).found == 2


def test_killed_process_leaves_the_material_to_the_next(
    memory: Memory, models: ScriptedModels, stack: Stack, provider: FakeOpenAI, root: Path
) -> None:
    """Lost if red: a tenant's memory, from the moment a machine is lost in the middle of a pass."""
    before = whole(stack)
    held = [Reply(pieces=["x"], hold_at=0) for _ in range(2)]
    provider.script(*held)
    environment = {
        "PAL_PROVIDERS": "openai:fake",
        "OPENAI_BASE_URL": provider.base_url,
        "OPENAI_API_KEY": "sk-fake",
    }
    command = [sys.executable, "-c", PROGRAM, stack.database.app, stack.tenant]
    process = subprocess.Popen(command, cwd=root, env=environment)
    try:
        assert held[0].held.wait(20)
        with pytest.raises(InProgress):
            memory.distil(models)
    finally:
        process.kill()
        process.wait(20)
        for one in held:
            one.gate.set()
    assert whole(stack) == before
    assert models.asked == []
    with pytest.raises(InProgress):
        memory.distil(models)
    assert stack.node.run(memory.distiller(models).due(0, 10)) == []
    stack.database.rows("UPDATE pal.memory_passes SET lease_until = now() - interval '1 second'")
    assert stack.node.run(memory.distiller(models).due(0, 10)) == [stack.tenant]
    done = memory.distil(models)
    assert (done.found, done.events) == (2, 2)


def test_pass_whose_lease_was_taken_writes_nothing(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: one slice by two, when the first of them was only slow."""

    async def lose(request: ModelRequest) -> str:
        await asyncio.to_thread(
            stack.database.rows,
            "UPDATE pal.memory_passes SET lease = 'another', lease_until = now() + interval '1 h'",
        )
        return await models.answer(request)

    before = whole(stack)
    models.script = [lose]
    with pytest.raises(InProgress):
        memory.distil(models)
    assert whole(stack) == before
    assert state(stack)[:2] == ("another", 0)


def test_writer_that_waits_for_a_lock_holds_no_one_up(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: a deadlock between a pass, a merge and the deletion of a session."""
    people = [memory.person(f"P{n}") for n in range(6)]
    for n, one in enumerate(people):
        memory.write(*(fact(f"is {n}", one, k, topic=f"t{k}") for k in range(5)))

    async def all_at_once() -> None:
        directory = stack.node.services.people
        await asyncio.gather(
            *(
                memory.writing(*(fact(f"new {n}", one, 9, topic=f"t{k}") for one in order))
                for n in range(6)
                for k in range(2)
                for order in (people, people[::-1])
            ),
            *(
                directory.merge(memory.caller, source=source, target=people[0])
                for source in people[1:3]
            ),
            memory.distiller(models).run(stack.tenant),
        )

    stack.node.run(all_at_once())
    active = memory.active(person_id=people[0])
    assert len({one["topic"] for one in active}) == len(active) == 5


def test_pass_waits_for_its_own_row_before_it_locks_others(
    memory: Memory, models: ScriptedModels, stack: Stack
) -> None:
    """Lost if red: a pass and the deletion of a person, that wait for one another."""
    memory.say("I moved to Oslo.", "ann")
    models.read("Oslo", item("home", "Moved to Oslo.", line=1))
    memory.write(fact("Lyon", memory.whose("ann"), 0))
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(stack.database.direct, prepare_threshold=None) as held:
        held.execute("SELECT pal.enter(%s, '')", (stack.tenant,))

        async def hold(request: ModelRequest) -> str:
            held.execute("SELECT FROM memory_passes FOR UPDATE")
            return await models.answer(request)

        models.script = [hold]
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(memory.distil, models)
            until(lambda: stack.database.one(waiting, stack.database.name) == 1)
            held.execute("SELECT FROM memory_distillates FOR UPDATE NOWAIT")
            held.commit()
            assert done.result(20).found == 3


@pytest.fixture
def metrics(capsys: pytest.CaptureFixture[str], stack: Stack) -> Iterator[Callable[[], list[Any]]]:
    """What the process tells of its passes; afterwards logging is as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    telemetry.configure(replace(stack.settings, metrics=True))
    yield lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    telemetry.configure(stack.settings)
    root.handlers[:], root.level = before


def test_pass_is_measured(
    memory: Memory, models: ScriptedModels, metrics: Callable[[], list[Any]]
) -> None:
    """Lost if red: word of passes that fail, to whoever runs this."""
    metrics()
    models.script = [DOWN]
    with pytest.raises(ProviderUnavailable):
        memory.distil(models)
    memory.distil(models)
    failed, done = metrics()
    assert (failed["PassesFailed"], failed["FactsFound"]) == ([1], [0])
    assert (done["PassesFailed"], done["FactsFound"], done["PassChunks"]) == ([0], [2], [2])
    assert done["PassDuration"][0] >= 0
