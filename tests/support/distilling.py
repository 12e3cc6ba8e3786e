"""A tenant's memory as tests drive it: what is said, what a model reads in it, what is known."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from chalicelib.auth import Principal
from chalicelib.ids import new_id
from chalicelib.memory import people
from chalicelib.memory.distill.passes import Distiller
from chalicelib.memory.distill.shapes import Fact, Slice
from chalicelib.memory.distillates import Distillates
from chalicelib.memory.facts import write_facts
from chalicelib.memory.handles import read_handle
from chalicelib.memory.timeline import NewEvent
from chalicelib.memory.topics import fold_topic
from chalicelib.providers import Finished, ModelEvent, ModelRequest, TextDelta
from tests.support.stack import Stack

T = TypeVar("T")

MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Memory:
    """A tenant's memory, driven as passes and callers do."""

    def __init__(self, stack: Stack, caller: Principal) -> None:
        self.stack, self.caller = stack, caller
        self.service = Distillates(stack.node.services.db)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.stack.node.run(work)

    def person(self, name: str) -> str:
        async def make() -> str:
            person_id = new_id("per")
            async with self.stack.node.services.db.tenant(self.caller.tenant_id) as tx:
                await people.insert_person(tx, person_id=person_id, name=name, metadata=None)
            return person_id

        return str(self.run(make()))

    async def writing(self, *facts: Fact, dropped: Counter[str] | None = None) -> int:
        async with self.stack.node.services.db.tenant(self.caller.tenant_id) as tx:
            return await write_facts(tx, facts, dropped=dropped)

    def write(self, *facts: Fact, dropped: Counter[str] | None = None) -> int:
        return int(self.run(self.writing(*facts, dropped=dropped)))

    def active(self, **filters: Any) -> list[dict[str, Any]]:
        wanted = {"person_id": None, "topic": None, "text": None, "before": None, "most": 100}
        return list(self.run(self.service.list(self.caller, **{**wanted, **filters})))

    def contents(self, **filters: Any) -> set[str]:
        return {one["content"] for one in self.active(**filters)}

    def history(self, distillate_id: str) -> list[dict[str, Any]]:
        return list(self.run(self.service.history(self.caller, distillate_id)))

    def forget(self, distillate_id: str) -> None:
        self.run(self.service.forget(self.caller, distillate_id))

    def remember(self, content: str, **more: Any) -> dict[str, Any]:
        wanted = {"topic": None, "person_id": None, "group_id": None}
        told = self.service.remember(self.caller, content=content, **{**wanted, **more})
        return dict(self.run(told))

    def merge(self, source: str, target: str) -> None:
        directory = self.stack.node.services.people
        self.run(directory.merge(self.caller, source=source, target=target))

    def say(self, content: str, by: str | None, day: float = 0, **more: Any) -> None:
        """Ingest a message of the person whose handle on channel `user` is `by`."""
        self.ingest(self.event(content, by, day, **more))

    def event(
        self, content: str, by: str | None, day: float = 0, *, name: str | None = None, **more: Any
    ) -> NewEvent:
        """A message that came in."""
        return NewEvent(
            channel=more.pop("channel", "chat"),
            kind="message",
            content=content,
            occurred_at=MONDAY + timedelta(days=day),
            direction=more.pop("direction", "inbound"),
            person=None if by is None else read_handle("user", by),
            name=name,
            **more,
        )

    def ingest(self, *events: NewEvent) -> None:
        """Put these on the timeline in one transaction."""
        self.run(self.stack.node.services.timeline.ingest(self.caller, events))

    def whose(self, handle: str) -> str:
        """The person who has this handle on channel `user`."""
        query = "SELECT person_id FROM pal.person_handles WHERE tenant_id = %s AND handle = %s"
        return str(self.stack.database.one(query, self.caller.tenant_id, handle))

    def distil(self, models: "ScriptedModels", **how: Any) -> Slice:
        """Run one slice."""
        return self.run(self.distiller(models, **how).run(self.caller.tenant_id))

    def distiller(self, models: "ScriptedModels", **how: Any) -> Distiller:
        """The first node's, with other models."""
        return Distiller(self.stack.node.services.db, models, **how)


def fact(content: str, person_id: str | None, day: float = 0, **more: Any) -> Fact:
    topic = more.pop("topic", "home")
    wanted: dict[str, Any] = {
        "topic": topic,
        "topic_key": fold_topic(topic),
        "content": content,
        "confidence": 0.8,
        "origin": "stated",
        "source_kind": "events",
        "said_at": MONDAY + timedelta(days=day),
        "person_id": person_id,
        "said_by": person_id,
    }
    return Fact(**{**wanted, **more})


def rows(stack: Stack) -> list[tuple[Any, ...]]:
    """Every distillate, byte for byte."""
    return stack.database.rows("SELECT d.*::text FROM pal.memory_distillates d ORDER BY id")


def item(topic: str, content: str, **more: Any) -> dict[str, Any]:
    """A fact as a model gives it."""
    return {"topic": topic, "content": content, "confidence": 0.9, **more}


def told(*items: dict[str, Any]) -> str:
    """A model's whole answer."""
    return json.dumps({"distillates": items})


class ScriptedModels:
    """Chains of one model that reads what it was told to in the texts that hold a phrase.

    `script` answers before that, in the order of the calls: with texts, or by raising.
    """

    name = model = "scripted"

    def __init__(self, **reads: Any) -> None:
        self.reads: dict[str, list[dict[str, Any]]] = {}
        self.script: list[str | Exception | Callable[[ModelRequest], Awaitable[str]]] = []
        self.asked: list[ModelRequest] = []
        self.chains: list[dict[str, Any]] = []
        self.longest = 0  # characters that an answer may have; 0: any number

    def read(self, phrase: str, *items: dict[str, Any]) -> None:
        """Read these in every text that holds the phrase."""
        self.reads[phrase] = list(items)

    async def chain(self, **chosen: Any) -> "ScriptedModels":
        """See `Models.chain`."""
        self.chains.append(chosen)
        return self

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked.append(request)
        step = self.script.pop(0) if self.script else self.answer
        if isinstance(step, Exception):
            raise step
        text = step if isinstance(step, str) else await step(request)
        if self.longest and len(text) > self.longest:
            yield TextDelta(text=text[: self.longest])
            yield Finished(reason="length", provider=self.name, model=self.model)
            return
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            if piece:
                yield TextDelta(text=piece)
        yield Finished(reason="stop", provider=self.name, model=self.model)

    async def answer(self, request: ModelRequest) -> str:
        """What is to be read in this."""
        text = text_of(request)
        return told(
            *(one for phrase, all_of in self.reads.items() if phrase in text for one in all_of)
        )

    async def close(self) -> None:
        """Nothing to close."""


def text_of(request: ModelRequest) -> str:
    """What people said of what a model was asked."""
    return request.messages[-1].content.partition("# Messages")[2]


def known_of(request: ModelRequest) -> str:
    """What a model was told that is known."""
    return request.messages[-1].content.partition("# Messages")[0]
