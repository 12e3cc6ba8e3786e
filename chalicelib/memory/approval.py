"""What callers do with candidates: list them, approve them, deny them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal

import psycopg

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx
from chalicelib.errors import Conflict, NotFound, Unavailable
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.memory import candidates, facts, people
from chalicelib.memory.candidates import Candidate, Shown, Status
from chalicelib.memory.distill.shapes import Fact
from chalicelib.memory.episodes import hold_groups, write_episodes
from chalicelib.memory.narrative.keeping import touch
from chalicelib.memory.narrative.shapes import owners_of
from chalicelib.memory.narrative.store import mark_stale
from chalicelib.texts import rfc3339

Decision = Literal["approve", "deny"]

_TRIES: Final = 5
_BECOMES: Final[dict[Decision, Status]] = {"approve": "approved", "deny": "denied"}


class Candidates:
    """What waits for approval."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(
        self,
        caller: Principal,
        *,
        status: Status | None,
        person_id: str | None,
        before: str | None,
        most: int,
    ) -> list[dict[str, Any]]:
        """Candidates below the id `before`, the newest first.

        A person may be named by the id of one who was merged into them; an unknown one has none.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if person_id is not None:
                person_id = (await people.survivors(tx, [person_id])).get(person_id, person_id)
            found = await candidates.list_candidates(
                tx, status=status, person_id=person_id, before=before, most=most
            )
        return [_body(one) for one in found]

    async def decide(
        self,
        caller: Principal,
        *,
        ids: Sequence[str],
        decision: Decision,
        once: Once | None = None,
    ) -> dict[str, Any]:
        """Write these into the memory, or never; all of them or, where it raises, none.

        What was decided so before is told again. Raises NotFound for an unknown one, Conflict for
        one that was decided otherwise, Unavailable.
        """
        ids, status = list(dict.fromkeys(ids)), _BECOMES[decision]
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            held = await _held(tx, ids, forming=decision == "approve")
            if other := next((one for one in held if one.status not in ("pending", status)), None):
                raise Conflict(f"{other.id} is {other.status} already.", code="already_decided")
            fresh = [one for one in held if one.status == "pending"]
            changed: list[Fact] = []
            formed = await _form(tx, fresh, changed) if decision == "approve" else {}
            decided = [(one.id, formed.get(one.id)) for one in fresh]
            await candidates.close_candidates(tx, decided, status=status, key_id=caller.key_id)
            await _retell(tx, [one for one in fresh if formed.get(one.id) is not None], changed)
            memories = {one.id: one.memory_id for one in held} | dict(decided)
            answer = {"decided": [_decided(one, status, memories[one]) for one in ids]}
            await finish_once(tx, once, answer)
        return answer


async def _held(tx: Tx, ids: Sequence[str], *, forming: bool) -> list[Candidate]:
    """These candidates until the transaction ends, behind the locks that others take first."""
    for _ in range(_TRIES):
        async with tx.transaction():  # what it locked is let go of where it has to be tried again
            seen = _all_of(await candidates.read_candidates(tx, ids), ids)
            named = {person for one in seen for person in one.people}
            now = await people.hold_survivors(tx, named)
            if forming and any(one.person_id is None for one in seen):
                await facts.hold_unattached(tx)
            if forming:
                in_groups = [one.group_id for one in seen if one.tier == "episodic"]
                await hold_groups(tx, [one for one in in_groups if one is not None])
            sessions = [one.session_id for one in seen if one.session_id is not None]
            held = _all_of(await candidates.lock_candidates(tx, ids, sessions=sessions), ids)
            # a merge that this waited for has given them to the one who is left
            if all(one.people <= named | set(now.values()) for one in held):
                return held
            raise psycopg.Rollback
    raise Unavailable("These people are being merged; try again.", retry_after=1)


def _all_of(found: list[Candidate], ids: Sequence[str]) -> list[Candidate]:
    if len(found) < len(ids):
        raise NotFound("There is no such candidate.")
    return found


async def _form(tx: Tx, pending: Sequence[Candidate], changed: list[Fact]) -> dict[str, str | None]:
    """Write what these propose: the memory of each, None where what is known stands instead.

    Rows are locked in everyone's order: all facts, then episodes, and narratives behind this.
    """
    named = {(one.proposal or {}).get("event_id") for one in pending} - {None}
    events = await candidates.events_there(tx, [str(one) for one in named])
    facts_of = {
        one.id: candidates.fact_of(one, events=events) for one in pending if one.tier == "semantic"
    }
    await facts.hold_rows(tx, list(facts_of.values()))
    formed: dict[str, str | None] = {}
    for candidate_id, fact in facts_of.items():
        formed[candidate_id] = await _form_fact(tx, fact, changed)
    for one in pending:
        if one.tier == "episodic":
            formed[one.id] = await _form_episode(tx, one)
    return formed


async def _form_fact(tx: Tx, fact: Fact, changed: list[Fact]) -> str | None:
    dropped: Counter[str] = Counter()
    ids: list[str] = []
    await facts.write_facts(tx, [fact], dropped=dropped, ids=ids, changed=changed)
    if dropped["gone"]:
        raise Unavailable("What this rests on is being deleted; try again.", retry_after=1)
    return ids[0] if ids else None


async def _form_episode(tx: Tx, one: Candidate) -> str | None:
    assert one.session_id is not None
    [kept] = await write_episodes(
        tx,
        session_id=one.session_id,
        person_id=one.person_id,
        group_id=one.group_id,
        proposed=[candidates.episode_of(one)],
        now=await facts.read_clock(tx),
    )
    return None if kept is None else kept.id


async def _retell(tx: Tx, formed: Sequence[Candidate], changed: Sequence[Fact]) -> None:
    """Bring the narratives of those up to date whose memory has grown, in their order of locks."""
    now = await facts.read_clock(tx)
    persons = {one.person_id for one in formed if one.person_id is not None}
    groups = {one.group_id for one in formed if one.group_id is not None}
    others, places = owners_of(changed)
    await mark_stale(tx, people=persons | others, groups=groups | places)
    for person_id in sorted(persons):
        await touch(tx, person_id=person_id, group_id=None, now=now)
    for group_id in sorted(groups):
        await touch(tx, person_id=None, group_id=group_id, now=now)


def _decided(candidate_id: str, status: Status, memory_id: str | None) -> dict[str, Any]:
    told = {"id": candidate_id, "status": status}
    return told if memory_id is None else {**told, "memory_id": memory_id}


def _body(one: Shown) -> dict[str, Any]:
    refs = {"session": one.session_id, "events": one.event_id}
    body = {
        "id": one.id,
        "tier": one.tier,
        "kind": one.kind,
        "topic": one.topic,
        "content": one.content,
        "origin": one.origin,
        "person_id": one.person_id,
        "group_id": one.group_id,
        "source_kind": one.source_kind,
        "source_ref": refs.get(one.source_kind or ""),
        "status": one.status,
        "created_at": rfc3339(one.created_at),
        "decided_at": None if one.decided_at is None else rfc3339(one.decided_at),
        "memory_id": one.memory_id,
    }
    return {name: value for name, value in body.items() if value is not None}
