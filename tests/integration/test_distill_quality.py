"""The quality set through the pipeline: of what a model says, what is right comes out, and no more.

The model is scripted, since here it is the pipeline that is judged. `scripts/eval-memory` asks a
real one.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from chalicelib.auth import Principal, create_tenant
from chalicelib.db import Database
from chalicelib.memory.directory import People
from chalicelib.memory.distill.passes import Distiller
from chalicelib.memory.distillates import Distillates
from chalicelib.memory.timeline import Timeline
from chalicelib.providers import Finished, ModelEvent, ModelRequest, TextDelta
from tests.distillation.corpus import Conversation, Transcript, load_corpus
from tests.distillation.judge import Told, judge
from tests.distillation.reading import Parts, know_people, known_facts, read_conversation
from tests.support.postgres import Cluster, TestDatabase
from tests.support.scripted import FixedModels
from tests.support.stack import Loop

CORPUS = load_corpus()


def bad_items(talk: Conversation) -> list[dict[str, Any]]:
    """The items of an answer that the pipeline has to stop."""
    return [item for item in talk.items if "bad" in item]


class Answering:
    """A provider that gives `answer`, and remembers what it was asked."""

    name = "scripted"
    model = "scripted"

    def __init__(self) -> None:
        self.answer = ""
        self.asked: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked.append(request)
        yield TextDelta(text=self.answer)
        yield Finished(reason="stop", provider=self.name, model=self.model)

    async def close(self) -> None:
        """Nothing to close."""


class Reader:
    """Reads transcripts, each in a tenant of its own, on one database."""

    def __init__(self, database: TestDatabase) -> None:
        self._loop = Loop()
        self.model = Answering()
        self._owner = Database(database.owner, size=1)
        self._db = Database(database.app, size=4)
        self._parts = Parts(
            people=People(self._db),
            timeline=Timeline(self._db),
            distillates=Distillates(self._db),
            passes=Distiller(self._db, FixedModels(self.model)),
        )
        self._tenants = 0
        self._last: tuple[Principal, dict[str, str]]
        self._loop.run(self._open())

    async def _open(self) -> None:
        await self._owner.open()
        await self._db.open()

    def read(self, transcript: Transcript, *answers: str) -> list[Told]:
        """The active facts in the end; `answers` in place of the transcript's own."""
        return self._loop.run(self._read(transcript, answers))

    async def _read(self, transcript: Transcript, answers: tuple[str, ...]) -> list[Told]:
        self.model.asked.clear()
        self._tenants += 1
        tenant_id = await create_tenant(self._owner, name=f"{self._tenants}")
        caller = Principal(tenant_id=tenant_id, key_id="", scopes=frozenset({"memory"}))
        ids = await know_people(self._parts, caller, transcript)
        for number, talk in enumerate(transcript.conversations):
            self.model.answer = answers[number] if answers else talk.answer
            await read_conversation(self._parts, caller, transcript, number)
        self._last = caller, ids
        return await known_facts(self._parts, caller, ids)

    def read_once_more(self) -> tuple[int, list[Told]]:
        """A pass after the last transcript: how much it found, and the active facts."""
        return self._loop.run(self._read_once_more())

    async def _read_once_more(self) -> tuple[int, list[Told]]:
        caller, ids = self._last
        done = await self._parts.passes.run(caller.tenant_id)
        return done.found, await known_facts(self._parts, caller, ids)

    async def _close(self) -> None:
        await self._db.close()
        await self._owner.close()

    def close(self) -> None:
        """Disconnect."""
        self._loop.run(self._close())
        self._loop.close()


@pytest.fixture(scope="module")
def reader(postgres: Cluster) -> Iterator[Reader]:
    database = postgres.create()
    made = Reader(database)
    yield made
    made.close()
    postgres.drop(database)


@pytest.mark.parametrize("transcript", CORPUS, ids=lambda one: one.id)
def test_what_is_right_comes_out_and_nothing_else(reader: Reader, transcript: Transcript) -> None:
    """Lost if red: a true fact of someone, or that what is not so is never said of them."""
    facts = reader.read(transcript)
    verdict = judge(transcript, facts)
    assert [transcript.must[n].says for n in verdict.missing] == []
    assert [transcript.must[n].supersedes for n in verdict.stale] == []
    assert [one.text for _, one in verdict.forbidden] == []
    assert [one.text for one in verdict.extra] == []
    bad = {item.get("content") for talk in transcript.conversations for item in bad_items(talk)}
    assert [one.text for one in facts if one.content in bad] == []
    assert len(reader.model.asked) == len(transcript.conversations)


OTHERS_WORDS = [
    pytest.param(one, number, id=one.id)
    for one in CORPUS
    for number, talk in enumerate(one.conversations)
    if any(item["bad"].startswith("said by") for item in bad_items(talk))
]


@pytest.mark.parametrize("named", ["where-it-stands", "none", "reply"])
@pytest.mark.parametrize(("transcript", "number"), OTHERS_WORDS)
def test_words_of_others_stay_out_whatever_line_is_named(
    reader: Reader, transcript: Transcript, number: int, named: str
) -> None:
    """Lost if red: an assistant's guess or a tool's page, kept as if the person had said it.

    The model may name the line where it stands, none, or what the person replied to it, which is
    not a yes in any of these.
    """
    talk = transcript.conversations[number]
    answer = []
    for item in bad_items(talk):
        if item["bad"].startswith("said by"):
            place = next(n for n, said in enumerate(talk.messages, 1) if said.role != "user")
            replies = [n for n, one in enumerate(talk.messages, 1) if one.role == "user"]
            lines = {
                "where-it-stands": item.get("line", place),
                "none": None,
                "reply": next((n for n in replies if n > place), None),
            }
            told = {key: value for key, value in item.items() if key != "bad"}
            answer.append({**told, "line": lines[named]})
    answers = [json.dumps({"distillates": []})] * len(transcript.conversations)
    answers[number] = json.dumps({"distillates": answer})
    assert [one.text for one in reader.read(transcript, *answers)] == []


def test_reading_again_finds_nothing(reader: Reader) -> None:
    """Lost if red: a model that is paid for the same words with every pass."""
    transcript = next(one for one in CORPUS if one.id == "en-group-allergies")
    before, again = reader.read(transcript), reader.read_once_more()
    assert again == (0, before)
    assert len(reader.model.asked) == 1
