"""A transcript through the real thing: its people and messages go in, what is known comes out."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from chalicelib.auth import Principal
from chalicelib.memory.directory import People
from chalicelib.memory.distill.shapes import Slice
from chalicelib.memory.distillates import Distillates
from chalicelib.memory.handles import Handle, read_handle
from chalicelib.memory.timeline import NewEvent, Timeline
from tests.distillation.corpus import NOBODY, Conversation, Transcript
from tests.distillation.judge import Told

_PATIENCE: Final = 20.0
_PAGE: Final = 200


class Passes(Protocol):
    """What distils a tenant's next slice."""

    async def run(self, tenant_id: str) -> Slice:
        """See `Distiller.run`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The services that a transcript goes through."""

    people: People
    timeline: Timeline
    distillates: Distillates
    passes: Passes


async def know_people(parts: Parts, caller: Principal, transcript: Transcript) -> dict[str, str]:
    """Make the transcript's people known: the id of each, by their key."""
    ids = {}
    for key, one in transcript.people.items():
        handle = _handle(one.handle)
        made = await parts.people.create(caller, name=one.name, handles=[handle], metadata=None)
        ids[key] = str(made["id"])
    return ids


async def read_conversation(
    parts: Parts, caller: Principal, transcript: Transcript, number: int
) -> list[Slice]:
    """Ingest one conversation of a transcript and distil it: the slices until all was read."""
    events = events_of(transcript, transcript.conversations[number], name=f"{number}")
    await parts.timeline.ingest(caller, events)
    return await read_all(parts, caller, events=len(events))


async def read_all(parts: Parts, caller: Principal, *, events: int) -> list[Slice]:
    """Distil until so many events were read: the slices. Raises TimeoutError."""
    slices: list[Slice] = []
    ends = time.monotonic() + _PATIENCE
    while sum(one.events for one in slices) < events:
        slices.append(await parts.passes.run(caller.tenant_id))
        if slices[-1].events == 0:
            # a transaction that is open somewhere on the server holds the reader back
            if time.monotonic() > ends:
                raise TimeoutError(f"{caller.tenant_id}: its events are not read")
            await asyncio.sleep(0.01)
    return slices


async def known_facts(parts: Parts, caller: Principal, ids: Mapping[str, str]) -> list[Told]:
    """The active facts of a tenant, each with the key of whom it is about."""
    keys: dict[str | None, str] = {value: key for key, value in ids.items()} | {None: NOBODY}
    rows: list[dict[str, Any]] = []
    before: tuple[datetime, str] | None = None
    while True:
        page = await parts.distillates.list(
            caller, person_id=None, topic=None, text=None, before=before, most=_PAGE
        )
        rows += page
        if len(page) < _PAGE:
            break
        before = datetime.fromisoformat(page[-1]["updated_at"]), page[-1]["id"]
    return [
        Told(of=keys[one.get("person_id")], topic=one["topic"], content=one["content"])
        for one in rows
    ]


def events_of(transcript: Transcript, talk: Conversation, *, name: str) -> list[NewEvent]:
    """The conversation as a channel would tell it.

    In private every event is the person's, the assistant's words are outbound; in a group an event
    is its speaker's.
    """
    speakers = [one.who for one in talk.messages if one.role == "user"]
    made = []
    for place, said in enumerate(talk.messages):
        who = said.who if said.role == "user" else None if talk.group else speakers[0]
        person = transcript.people[who] if who else None
        made.append(
            NewEvent(
                channel="chat",
                kind="tool_result" if said.role == "tool" else "message",
                content=said.text,
                occurred_at=said.at,
                direction="inbound" if said.role == "user" else "outbound",
                external_id=f"{transcript.id}/{name}/{place}",
                group_id=talk.group,
                person=None if person is None else _handle(person.handle),
                name=None if person is None else person.name,
            )
        )
    return made


def _handle(text: str) -> Handle:
    channel, _, given = text.partition(":")
    return read_handle(channel, given)
