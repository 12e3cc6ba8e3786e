"""What callers do with people: make, find, add handles, merge, look for duplicates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.errors import Conflict, InvalidField, NotFound, Unavailable
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import is_id, new_id
from chalicelib.memory import people
from chalicelib.memory.facts import hold_unattached
from chalicelib.memory.handles import Handle
from chalicelib.memory.people import Person
from chalicelib.texts import rfc3339

_TRIES: Final = 5
_GROUPS_MOST: Final = 50
_IN_A_GROUP: Final = 10


class People:
    """The people whom tenants know, each by any number of handles."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def create(
        self,
        caller: Principal,
        *,
        name: str | None,
        handles: Sequence[Handle],
        metadata: dict[str, Any] | None,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """A new person, as `get` shows them. Raises Conflict for a handle that has an owner."""
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            made = new_id("per")
            await people.insert_person(tx, person_id=made, name=name, metadata=metadata)
            fields = {f"handles.{place}": one for place, one in enumerate(handles)}
            await _claim(tx, fields, person_id=made)
            answer = await shown(tx, made)
            await finish_once(tx, once, answer)
        return answer

    async def get(self, caller: Principal, person_id: str) -> dict[str, Any]:
        """The person, or the one whom that id was merged into. Raises NotFound."""
        async with self._db.tenant(caller.tenant_id) as tx:
            now = await _survivors(tx, person_id)
            return await shown(tx, now[person_id])

    async def resolve(self, caller: Principal, person_id: str) -> str:
        """The id of who that is by now. Raises NotFound."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return await survivor(tx, person_id)

    async def find(
        self,
        caller: Principal,
        *,
        before: str | None,
        text: str | None,
        channel: str | None,
        handle: Handle | None,
        most: int,
    ) -> list[dict[str, Any]]:
        """The newest people below the id `before`, by part of a name or handle, or by a handle.

        Without a `handle`, `channel` asks for those who have any there.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            found = await people.list_people(
                tx,
                before=before,
                text=text,
                channel=channel if handle is None else handle.channel,
                handle=None if handle is None else handle.value,
                most=most,
            )
        return [_body(one) for one in found]

    async def add_handle(
        self, caller: Principal, person_id: str, handle: Handle, *, once: Once | None = None
    ) -> dict[str, Any]:
        """Give a person one more handle; fine if they have it.

        Raises NotFound, Conflict if it has another owner.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            now = await _locked(tx, person_id)
            await _claim(tx, {"handle": handle}, person_id=now[person_id])
            await people.touch_person(tx, now[person_id])
            answer = await shown(tx, now[person_id])
            await finish_once(tx, once, answer)
        return answer

    async def merge(
        self, caller: Principal, *, source: str, target: str, once: Once | None = None
    ) -> dict[str, Any]:
        """Make two people one: the person who `target` is now, with all that `source` had.

        Doing it again, or the other way round, changes nothing. Raises NotFound.
        """
        if source == target:
            raise InvalidField.of("into", "must be another person than from")
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            await people.wait_for_merges(tx)
            now = await _locked(tx, source, target)
            if now[source] != now[target]:
                if await people.told_of_no_one(tx, now[source]):
                    await hold_unattached(tx)
                await people.merge_person(tx, source=now[source], target=now[target])
            answer = await shown(tx, now[target])
            await finish_once(tx, once, answer)
        return answer

    async def duplicates(self, caller: Principal) -> list[dict[str, Any]]:
        """Groups of people who are likely one: `{reason, value, people}`, bounded both ways."""
        async with self._db.tenant(caller.tenant_id) as tx:
            groups = await people.find_duplicates(tx, most=_GROUPS_MOST, each=_IN_A_GROUP)
            wanted = sorted({one for _, _, ids in groups for one in ids})
            found = {one.id: _body(one) for one in await people.read_people(tx, wanted)}
        return [
            {"reason": reason, "value": value, "people": [found[one] for one in ids]}
            for reason, value, ids in groups
        ]


async def survivor(tx: Tx, person_id: str) -> str:
    """The id of who that is by now: itself, or whom it was merged into. Raises NotFound."""
    return (await _survivors(tx, person_id))[person_id]


async def _claim(tx: Tx, fields: Mapping[str, Handle], *, person_id: str) -> None:
    by_key = {one.key: one for one in fields.values()}
    owners = await people.claim_handles(tx, by_key.values(), person_id=person_id)
    taken = {field: one for field, one in fields.items() if owners[one.key] != person_id}
    if taken:
        told = [f"{one.value} on {one.channel}" for one in taken.values()]
        details = [
            {"field": field, "reason": f"belongs to {owners[one.key]}"}
            for field, one in taken.items()
        ]
        raise Conflict(
            f"Someone else has {', '.join(told)} already.", code="handle_taken", details=details
        )


async def _locked(tx: Tx, *ids: str) -> dict[str, str]:
    """Who these are by now, locked against a merge until the transaction ends."""
    for _ in range(_TRIES):
        # a savepoint: where one was merged while this waited, what it locked is let go of, or two
        # of these would wait for one another
        async with tx.transaction():
            now = await _survivors(tx, *ids)
            if await people.lock_whole_people(tx, now.values()):
                return now
            raise psycopg.Rollback
    raise Unavailable("These people are being merged; try again.", retry_after=1)


async def _survivors(tx: Tx, *ids: str) -> dict[str, str]:
    now = await people.survivors(tx, [one for one in ids if is_id(one, "per")])
    if set(now) != set(ids):
        raise NotFound("There is no such person.")
    return now


async def shown(tx: Tx, person_id: str) -> dict[str, Any]:
    """The person as callers see them; must be there."""
    [found] = await people.read_people(tx, [person_id])
    return _body(found)


def _body(person: Person) -> dict[str, Any]:
    body: dict[str, Any] = {"id": person.id}
    if person.name is not None:
        body["name"] = person.name
    body["handles"] = person.handles
    if person.metadata is not None:
        body["metadata"] = person.metadata
    return {
        **body,
        "created_at": rfc3339(person.created_at),
        "updated_at": rfc3339(person.updated_at),
    }
