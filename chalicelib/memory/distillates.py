"""What callers do with distillates: list them, see where they come from, forget, remember."""

from datetime import datetime
from typing import Any, Final

import psycopg

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.errors import InvalidField, NotFound, Unavailable
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import is_id
from chalicelib.memory import candidates, facts, people
from chalicelib.memory.directory import survivor
from chalicelib.memory.distill.refusals import refusal
from chalicelib.memory.distill.shapes import Fact
from chalicelib.memory.embedder import Indexer, embed_quietly
from chalicelib.memory.facts import Distillate, write_facts
from chalicelib.memory.topics import fold_topic
from chalicelib.texts import rfc3339

__all__ = ["CONTENT_AT_MOST", "TOPIC_AT_MOST", "Distillates", "write_facts"]

CONTENT_AT_MOST: Final = 2_000
TOPIC_AT_MOST: Final = 80

_TRIES: Final = 5


class Distillates:
    """What is known, a fact a topic of each person."""

    def __init__(self, db: Database, indexer: Indexer | None = None) -> None:
        self._db, self._indexer = db, indexer

    async def history(self, caller: Principal, distillate_id: str) -> list[dict[str, Any]]:
        """The whole chain that a fact belongs to, the newest first. Raises NotFound."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return [_past(one) for one in await _chain(tx, distillate_id)]

    async def forget(self, caller: Principal, distillate_id: str) -> None:
        """Delete the whole chain that a fact belongs to, for good. Raises NotFound.

        Nothing that was said before now brings it back, whenever it is read.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            chain = await _held_chain(tx, distillate_id)
            await facts.hold_chain(tx, chain)
            await candidates.withdraw(tx, chain)
            await facts.forget_chain(tx, chain)

    async def remember(
        self,
        caller: Principal,
        *,
        content: str,
        topic: str | None,
        person_id: str | None,
        group_id: str | None,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """A fact by the caller's own word, in place of what was known of its topic.

        Without a topic it has its first words for one. Raises NotFound for an unknown person,
        InvalidField, also for a content that holds a secret.
        """
        content = _checked("content", content, most=CONTENT_AT_MOST)
        topic = _first_words(content) if topic is None else _topic(topic)
        if refusal(topic, content) == "secret":
            raise InvalidField.of("content", "holds a password, key or number that is not kept")
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            fact = Fact(
                topic=topic,
                topic_key=fold_topic(topic) or topic,
                content=content,
                confidence=1.0,
                origin="stated",
                source_kind="remember",
                person_id=await _held(tx, person_id),
                group_id=group_id,
                key_id=caller.key_id,
                said_at=await facts.read_clock(tx),
            )
            await write_facts(tx, [fact])
            stands = await facts.read_active(
                tx, person_id=fact.person_id, group_id=group_id, topic_key=fact.topic_key
            )
            assert stands is not None
            answer = _body(stands)
            await finish_once(tx, once, answer)
        if self._indexer is not None:
            await embed_quietly(self._indexer.embed_distillates(caller.tenant_id, [stands.id]))
        return answer

    async def list(
        self,
        caller: Principal,
        *,
        person_id: str | None,
        topic: str | None,
        text: str | None,
        before: tuple[datetime, str] | None,
        most: int,
    ) -> list[dict[str, Any]]:
        """Active facts below the place `before`, (updated_at, id), the last changed first.

        A person may be named by the id of one who was merged into them; an unknown one has none.
        Each word of `text` is part of the topic or the content.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if person_id is not None:
                person_id = (await people.survivors(tx, [person_id])).get(person_id, person_id)
            found = await facts.list_distillates(
                tx,
                person_id=person_id,
                topic_key=None if topic is None else fold_topic(topic),
                text=text,
                before=before,
                most=most,
            )
        return [_body(one) for one in found]


async def _held(tx: Tx, person_id: str | None) -> str | None:
    """Who that is by now, held until the transaction ends: others' words come before or after."""
    if person_id is None:
        await facts.hold_unattached(tx)
        return None
    held = await people.hold_survivors(tx, [await survivor(tx, person_id)])
    if not held:
        raise NotFound("There is no such person.")
    return next(iter(held.values()))


async def _held_chain(tx: Tx, distillate_id: str) -> list[Distillate]:
    for _ in range(_TRIES):
        async with tx.transaction():  # what it locked is let go of where it has to be tried again
            person_id = (await _chain(tx, distillate_id))[0].person_id
            if person_id is None:
                await facts.hold_unattached(tx)
            else:
                await people.lock_people(tx, [person_id])
            # it may have been superseded, merged or forgotten while this waited
            chain = await _chain(tx, distillate_id)
            if chain[0].person_id == person_id:
                return chain
            raise psycopg.Rollback
    raise Unavailable("This person is being merged; try again.", retry_after=1)


async def _chain(tx: Tx, distillate_id: str) -> list[Distillate]:
    chain = await facts.read_chain(tx, distillate_id) if is_id(distillate_id, "mem") else []
    if not chain:
        raise NotFound("There is no such distillate.")
    return chain


def _checked(field: str, text: str, *, most: int) -> str:
    text = text.strip()
    if not text:
        raise InvalidField.of(field, "must not be blank")
    if len(text) > most:
        raise InvalidField.of(field, f"must have at most {most} characters")
    return text


def _topic(topic: str) -> str:
    topic = _checked("topic", topic, most=TOPIC_AT_MOST)
    if not fold_topic(topic):
        raise InvalidField.of("topic", "must not be blank")
    return topic


def _first_words(content: str) -> str:
    words = " ".join(content.split())
    if len(words) <= TOPIC_AT_MOST:
        return words
    whole, _, _ = words[: TOPIC_AT_MOST + 1].rpartition(" ")
    return whole or words[:TOPIC_AT_MOST]


def _body(one: Distillate) -> dict[str, Any]:
    source = {"session": one.session_id, "events": one.event_id}.get(one.source_kind)
    body: dict[str, Any] = {"id": one.id}
    if one.person_id is not None:
        body["person_id"] = one.person_id
    body |= {
        "topic": one.topic,
        "content": one.content,
        "confidence": one.confidence,
        "origin": one.origin,
        "source_kind": one.source_kind,
        "visible_to": one.visible_to,
    }
    if source is not None:
        body["source_ref"] = source
    return {
        **body,
        "created_at": rfc3339(one.created_at),
        "updated_at": rfc3339(one.updated_at),
    }


def _past(one: Distillate) -> dict[str, Any]:
    body = _body(one)
    if one.superseded_by is not None and one.superseded_at is not None:
        body["superseded_by"] = one.superseded_by
        body["superseded_at"] = rfc3339(one.superseded_at)
    return body
