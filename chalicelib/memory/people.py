"""The people's SQL: one function a query, a transaction in, a row object out, no decisions.

The caller owns the transaction. Locks are taken in one order: people, handles, sessions, events,
distillates, episodes, candidates, narratives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from chalicelib.db import Tx, load_queries
from chalicelib.errors import Unavailable
from chalicelib.ids import new_id
from chalicelib.memory.handles import Handle, fold_name

_QUERIES: Final = load_queries(__file__, "people.sql")

_TRIES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Person:
    """A person; each of `handles` is `{channel, handle, as_given}`."""

    id: str
    name: str | None
    metadata: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    handles: list[dict[str, str]]


async def resolve_people(tx: Tx, named: Mapping[Handle, str | None]) -> dict[tuple[str, str], str]:
    """The person of each handle, by the handle's key; who is not known yet is made.

    A name is given to a new person, and to one who has none. The persons stay who they are until
    the transaction ends.
    """
    by_key: dict[tuple[str, str], tuple[Handle, str | None]] = {}
    for handle, name in named.items():
        if name or handle.key not in by_key:
            by_key[handle.key] = (handle, name or None)
    if not by_key:
        return {}
    names = [name for _, name in by_key.values()]
    values = {
        **_columns(handle for handle, _ in by_key.values()),
        "names": names,
        "name_keys": [name and (fold_name(name) or None) for name in names],
        "new_ids": [new_id("per") for _ in by_key],
    }
    cur = await tx.execute(_QUERIES["resolve_people"], values)
    return {(row[0], row[1]): row[2] for row in await cur.fetchall()}


async def insert_person(
    tx: Tx, *, person_id: str, name: str | None, metadata: dict[str, Any] | None
) -> None:
    """Write a person who has no handle yet."""
    values = {
        "id": person_id,
        "name": name,
        "name_key": name and (fold_name(name) or None),
        "metadata": None if metadata is None else Jsonb(metadata),
    }
    await tx.execute(_QUERIES["insert_person"], values)


async def claim_handles(
    tx: Tx, handles: Iterable[Handle], *, person_id: str
) -> dict[tuple[str, str], str]:
    """Give these handles, each key once, to a person: whose each is now, by its key.

    One that someone else had before stays theirs.
    """
    values = {**_columns(handles), "person_id": person_id}
    cur = await tx.execute(_QUERIES["claim_handles"], values)
    return {(row[0], row[1]): row[2] for row in await cur.fetchall()}


async def touch_person(tx: Tx, person_id: str) -> None:
    """Set the time of the last change."""
    await tx.execute(_QUERIES["touch_person"], {"id": person_id})


async def read_people(tx: Tx, ids: Sequence[str]) -> list[Person]:
    """These people, by id, as far as there are such."""
    cur = await tx.execute(_QUERIES["read_people"], {"ids": list(ids)})
    return [_person(row) for row in await cur.fetchall()]


async def list_people(
    tx: Tx,
    *,
    before: str | None,
    text: str | None,
    channel: str | None,
    handle: str | None,
    most: int,
) -> list[Person]:
    """The newest people below the id `before`; `text` is part of a name or of a handle."""
    values = {
        "before": before,
        "name_like": text and like(fold_name(text)),
        "handle_like": text and like(text.strip().lower()),
        "channel": channel,
        "handle": handle,
        "most": most,
    }
    cur = await tx.execute(_QUERIES["list_people"], values)
    return [_person(row) for row in await cur.fetchall()]


async def survivors(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """Who each of these is by now: itself, or whom it was merged into; the unknown are left out."""
    cur = await tx.execute(_QUERIES["survivors"], {"ids": list(ids)})
    return {row[0]: row[1] for row in await cur.fetchall()}


async def lock_people(tx: Tx, ids: Iterable[str]) -> set[str]:
    """Lock these until the transaction ends: those that are there and have not been merged."""
    cur = await tx.execute(_QUERIES["lock_people"], {"ids": sorted(ids)})
    return {row[0] for row in await cur.fetchall()}


async def lock_whole_people(tx: Tx, ids: Iterable[str]) -> bool:
    """Lock these with all who have been merged into them, as whoever merges or ends them must.

    False, and to be rolled back, where one is not there any more, or another was merged into one
    of them while this waited: they are locked in one order, or two of these wait for one another.
    """
    wanted = set(ids)
    cur = await tx.execute(_QUERIES["lock_whole_people"], {"ids": sorted(wanted)})
    held = {row[0]: row[1] for row in await cur.fetchall()}
    cur = await tx.execute(_QUERIES["redirects"], {"ids": sorted(wanted)})
    redirects = {row[0] for row in await cur.fetchall()}
    return {one for one, stands in held.items() if stands} == wanted and redirects <= held.keys()


async def hold_survivors(tx: Tx, ids: Iterable[str]) -> dict[str, str]:
    """Who each of these is by now, locked against a merge and their end; the unknown are left out.

    Raises Unavailable where they are merged again and again.
    """
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    for _ in range(_TRIES):
        # a savepoint: where one was merged while this waited, what it locked is let go of, or two
        # of these would wait for one another
        async with tx.transaction():
            now = await survivors(tx, wanted)
            if not now or await lock_people(tx, set(now.values())) == set(now.values()):
                return now
            raise psycopg.Rollback
    raise Unavailable("These people are being merged; try again.", retry_after=1)


async def told_of_no_one(tx: Tx, person_id: str) -> bool:
    """Whether this person is known to have told of anyone who is not known."""
    cur = await tx.execute(_QUERIES["told_of_no_one"], {"source": person_id})
    return await cur.fetchone() is not None


async def wait_for_merges(tx: Tx) -> None:
    """Be the tenant's only merge until the transaction ends; to be called before all locks."""
    await tx.execute(_QUERIES["wait_for_merges"])


async def merge_person(tx: Tx, *, source: str, target: str) -> None:
    """Move all that refers to `source` to `target`, both locked, and leave a redirect."""
    values = {"source": source, "target": target}
    await tx.execute(_QUERIES["move_handles"], values)
    await tx.execute(_QUERIES["move_sessions"], values)
    await tx.execute(_QUERIES["move_events"], values)
    await tx.execute(_QUERIES["settle_facts"], values)
    await tx.execute(_QUERIES["move_facts"], values)
    await tx.execute(_QUERIES["move_forgotten"], values)
    await tx.execute(_QUERIES["move_episodes"], values)
    await tx.execute(_QUERIES["move_candidates"], values)
    await tx.execute(_QUERIES["join_narratives"], values)
    await tx.execute(_QUERIES["renew_narrative"], values)
    await tx.execute(_QUERIES["inherit"], values)
    await tx.execute(_QUERIES["redirect"], values)


async def find_duplicates(tx: Tx, *, most: int, each: int) -> list[tuple[str, str, list[str]]]:
    """(reason, value, ids) of people who share a number, an address or a name; the first two first.

    At most so many groups, and so many people in each.
    """
    cur = await tx.execute(_QUERIES["duplicates"], {"most": most, "each": each})
    return [(row[0], row[1], row[2]) for row in await cur.fetchall()]


def _columns(handles: Iterable[Handle]) -> dict[str, list[str | None]]:
    all_of = list(handles)
    return {
        "channels": [one.channel for one in all_of],
        "handles": [one.value for one in all_of],
        "givens": [one.given for one in all_of],
        "contacts": [one.contact for one in all_of],
    }


def like(text: str) -> str:
    """The pattern of texts that hold this one."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return f"%{text}%"


def _person(row: tuple[Any, ...]) -> Person:
    return Person(
        id=row[0],
        name=row[1],
        metadata=row[2],
        created_at=row[3],
        updated_at=row[4],
        handles=row[5] or [],
    )
