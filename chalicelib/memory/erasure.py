"""Erasure: a person goes with all that is held on them, in steps that may be taken again."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import psycopg

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import NotFound, Unavailable
from chalicelib.memory import people
from chalicelib.memory.directory import survivor
from chalicelib.memory.facts import hold_unattached

_log = logging.getLogger(__name__)
_QUERIES: Final = load_queries(__file__, "erasure.sql")

_BATCH: Final = 2_000
_TRIES: Final = 5
_SCOPES: Final = ["POST /v1/people", "POST /v1/people/merge", "POST /v1/memory/remember"]

DeleteSession = Callable[[Principal, str], Awaitable[None]]
"""As `Sessions.delete`: raises NotFound for one that is gone already."""


class Erasure:
    """Deletes people. What they have is deleted in batches, so no statement is ever a long one.

    What is known of them goes first and what they are known by with it: from then on they are in no
    answer and no prompt. Cut off after that, the same call goes on where it was.
    """

    def __init__(self, db: Database, delete_session: DeleteSession) -> None:
        self._db, self._delete_session = db, delete_session

    async def erase(self, caller: Principal, person_id: str) -> None:
        """Delete the person whom this id leads to, and all of theirs. Raises NotFound."""
        for _ in range(_TRIES):
            person = await self._forget(caller, person_id)
            if person is None:
                continue  # merged, or heard of by another, while this waited for them
            await self._delete_sessions(caller, person)
            await self._delete_events(caller, person)
            if await self._delete(caller, person):
                _log.info("person erased", extra={"action": "person_erased"})
                return
            # something of theirs was written meanwhile: a turn's end, a fact of a running pass
        raise Unavailable("Something of this person is being written; try again.", retry_after=1)

    async def _forget(self, caller: Principal, person_id: str) -> str | None:
        async with self._db.tenant(caller.tenant_id) as tx:
            person = await survivor(tx, person_id)
            if not await _hold(tx, person):
                return None
            await tx.execute(_QUERIES["erase_answers"], {"person": person, "scopes": _SCOPES})
            await tx.execute(_QUERIES["erase_handles"], {"person": person})
            await _forget_memory(tx, person)
        return person

    async def _delete_sessions(self, caller: Principal, person: str) -> None:
        values = {"person": person, "most": _BATCH}
        while True:
            async with self._db.tenant(caller.tenant_id) as tx:
                found = await (await tx.execute(_QUERIES["sessions_of"], values)).fetchall()
            for (session_id,) in found:
                with suppress(NotFound):
                    await self._delete_session(caller, session_id)
            if not found:
                return

    async def _delete_events(self, caller: Principal, person: str) -> None:
        values = {"person": person, "most": _BATCH}
        gone = _BATCH
        while gone == _BATCH:
            async with self._db.tenant(caller.tenant_id) as tx:
                await people.lock_people(tx, [person])  # a merge moves the same events
                gone = (await tx.execute(_QUERIES["erase_events"], values)).rowcount

    async def _delete(self, caller: Principal, person: str) -> bool:
        try:
            async with self._db.tenant(caller.tenant_id) as tx:
                if not await _hold(tx, person):
                    return False
                # a merge may have moved more here; who uses one is waited for here, and not below
                await tx.execute(_QUERIES["erase_handles"], {"person": person})
                if await _is_used(tx, person):
                    return False
                await _forget_memory(tx, person)
                await tx.execute(_QUERIES["erase_tombstones"], {"person": person})
                await tx.execute(_QUERIES["erase_person"], {"person": person})
        except psycopg.errors.ForeignKeyViolation:
            return False
        return True


async def _hold(tx: Tx, person: str) -> bool:
    """Lock the person, and those whose facts change with theirs; False if these are others now."""
    others, _ = await _told_of(tx, person)
    locked = {person, *others}
    if not await people.lock_whole_people(tx, locked):
        return False
    others, of_no_one = await _told_of(tx, person)
    if of_no_one:
        await hold_unattached(tx)
    return {person, *others} <= locked


async def _told_of(tx: Tx, person: str) -> tuple[set[str], bool]:
    """Whom the person told something of in private, and whether of no one known as well."""
    cur = await tx.execute(_QUERIES["told_of"], {"person": person})
    others = {row[0] for row in await cur.fetchall()}
    return others - {None}, None in others


async def _is_used(tx: Tx, person: str) -> bool:
    """Whether a session or an event of the person is left, once those being deleted are gone.

    Looked at before the memory's rows are locked, as whoever deletes a session does: the person's
    own end would look at them behind those, and the two would wait for one another.
    """
    values = {"person": person}
    session = await (await tx.execute(_QUERIES["session_left"], values)).fetchone()
    event = await (await tx.execute(_QUERIES["event_left"], values)).fetchone()
    return session is not None or event is not None


async def _forget_memory(tx: Tx, person: str) -> None:
    """Delete what is remembered of the person; what others heard them say is theirs no more."""
    values = {"person": person}
    await tx.execute(_QUERIES["hold_facts"], values)
    await tx.execute(_QUERIES["hold_episodes"], values)
    await tx.execute(_QUERIES["hold_candidates"], values)
    await tx.execute(_QUERIES["hold_narratives"], values)
    await tx.execute(_QUERIES["erase_episodes"], values)
    cur = await tx.execute(_QUERIES["erase_facts"], values)
    gone = [row[0] for row in await cur.fetchall()]
    if gone:
        await tx.execute(_QUERIES["mend_chains"], {"gone": gone})
    await tx.execute(_QUERIES["unname_facts"], values)
    await tx.execute(_QUERIES["erase_candidates"], values)
    await tx.execute(_QUERIES["unname_candidates"], values)
    await tx.execute(_QUERIES["erase_narrative"], values)
