"""What waits for a person's word before it is memory: facts and episodes, as they would be written.

The policy says which. One that was denied leaves the key of its content, by which it is known when
it is proposed once more. The caller owns the transaction, and has locked the people.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from psycopg.types.json import Jsonb

from chalicelib.db import Tx, load_queries
from chalicelib.ids import new_id
from chalicelib.memory.distill.shapes import RANK, Fact, Origin, SourceKind
from chalicelib.memory.episodes import EpisodeKind, Proposed
from chalicelib.memory.policy import read_policy
from chalicelib.memory.supersession import Row, key_of, mark_of
from chalicelib.memory.topics import content_key, fold_content

_QUERIES: Final = load_queries(__file__, "candidates.sql")

Status = Literal["pending", "approved", "denied"]
Tier = Literal["episodic", "semantic"]

PROMOTED: Final[Origin] = "promoted"


class Stated(Protocol):
    """A fact that is written, as far as it matters here; see `facts.Distillate`."""

    @property
    def id(self) -> str:
        """Its row's."""

    @property
    def content(self) -> str:
        """What it says."""

    @property
    def person_id(self) -> str | None:
        """Whom it is about."""

    @property
    def said_by(self) -> str | None:
        """Who said it."""

    @property
    def group_id(self) -> str | None:
        """Where it was said."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One that may be decided. `content` and `proposal` are None once it has been."""

    id: str
    tier: Tier
    person_id: str | None
    group_id: str | None
    session_id: str | None
    content: str | None
    proposal: dict[str, Any] | None
    status: Status
    memory_id: str | None

    @property
    def people(self) -> set[str]:
        """Whom it is about and who said it, as they were called when it was proposed."""
        named = {self.person_id, (self.proposal or {}).get("said_by")}
        return {one for one in named if one is not None}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One as callers see it. What it says is None where it was denied, or forgotten since."""

    id: str
    tier: Tier
    person_id: str | None
    group_id: str | None
    session_id: str | None
    status: Status
    created_at: datetime
    decided_at: datetime | None
    memory_id: str | None
    content: str | None
    topic: str | None
    kind: EpisodeKind | None
    origin: Origin | None
    source_kind: SourceKind | None
    event_id: str | None


async def hold_back(
    tx: Tx, facts: Sequence[Fact], rows: Iterable[Row], dropped: Counter[str]
) -> list[Fact]:
    """The facts that may be written by themselves; the others wait, or are dropped.

    `rows` are those there are of the facts' people and topics. Counts in `dropped` what waits
    (`waiting`), what was `denied` before and what the `policy` never keeps.
    """
    policy, rows = await read_policy(tx), list(rows)
    active = {key_of(one.fact): one.fact for one in rows if one.superseded_by is None}
    read = {mark_of(one.fact): RANK[one.fact.origin] for one in rows if one.superseded_by}
    kept: list[Fact] = []
    asked: dict[tuple[str | None, str | None, bytes], Fact] = {}
    for fact in facts:
        word = policy.forms(fact.origin)
        if word == "never":
            dropped["policy"] += 1
        elif word == "auto" or _is_settled(fact, active.get(key_of(fact))):
            kept.append(fact)
        elif read.get(mark_of(fact), 0) >= RANK[fact.origin]:
            kept.append(fact)  # it is dropped where the facts take their places
        else:
            asked[fact.person_id, fact.group_id, _fact_key(fact)] = fact
    if asked:
        denied = await _propose_facts(tx, list(asked.values()))
        dropped["denied"] += denied
        dropped["waiting"] += len(asked) - denied
    return kept


async def propose_episodes(
    tx: Tx,
    *,
    session_id: str,
    person_id: str | None,
    group_id: str | None,
    proposed: Sequence[Proposed],
) -> int:
    """Let episodes of a session wait for approval: how many are new."""
    if not proposed:
        return 0
    if group_id is not None:
        await tx.execute(_QUERIES["hold_group"], {"group_id": group_id})
    once = {content_key(one.content): one for one in proposed}
    number = len(once)
    values = {
        "tier": "episodic",
        "ids": [new_id("cand") for _ in once],
        "people": [person_id] * number,
        "groups": [group_id] * number,
        "sessions": [session_id] * number,
        "contents": [one.content for one in once.values()],
        "keys": list(once),
        "proposals": [
            Jsonb(
                {
                    "kind": one.kind,
                    "occurred_at": one.occurred_at.isoformat(),
                    "sources": list(one.sources),
                    "node": one.node,
                }
            )
            for one in once.values()
        ],
    }
    row = await (await tx.execute(_QUERIES["propose"], values)).fetchone()
    assert row is not None
    return int(row[0])


async def read_candidates(tx: Tx, ids: Sequence[str]) -> list[Candidate]:
    """Those of these ids that there are."""
    cur = await tx.execute(_QUERIES["read_candidates"], {"ids": list(ids)})
    return [_candidate(row) for row in await cur.fetchall()]


async def lock_candidates(
    tx: Tx, ids: Sequence[str], *, sessions: Sequence[str]
) -> list[Candidate]:
    """The same, held with their sessions until the transaction ends."""
    await tx.execute(_QUERIES["hold_sessions"], {"ids": list(sessions)})
    cur = await tx.execute(_QUERIES["lock_candidates"], {"ids": list(ids)})
    return [_candidate(row) for row in await cur.fetchall()]


async def events_there(tx: Tx, ids: Iterable[str]) -> set[str]:
    """Those of these events that have not been deleted."""
    cur = await tx.execute(_QUERIES["events_there"], {"ids": sorted(ids)})
    return {row[0] for row in await cur.fetchall()}


async def close_candidates(
    tx: Tx, decided: Sequence[tuple[str, str | None]], *, status: Status, key_id: str
) -> None:
    """Mark candidates, each with the id of the memory that came of it, as decided by this key."""
    values = {
        "ids": [one for one, _ in decided],
        "memories": [memory_id for _, memory_id in decided],
        "status": status,
        "key_id": key_id,
    }
    await tx.execute(_QUERIES["close_candidates"], values)


async def withdraw(tx: Tx, chain: Sequence[Stated]) -> None:
    """Delete what waits to be approved of facts that are being forgotten, whose rows are locked."""
    values = {"ids": [one.id for one in chain], "keys": [_fact_key(one) for one in chain]}
    await tx.execute(_QUERIES["withdraw"], values)


async def list_candidates(
    tx: Tx, *, status: Status | None, person_id: str | None, before: str | None, most: int
) -> list[Shown]:
    """Candidates below the id `before`, the newest first."""
    values = {"status": status, "person_id": person_id, "before": before, "most": most}
    cur = await tx.execute(_QUERIES["list_candidates"], values)
    return [_shown(row) for row in await cur.fetchall()]


def fact_of(one: Candidate, *, events: set[str]) -> Fact:
    """The fact that a pending candidate proposes, of the events that are still there."""
    told, event_id = one.proposal or {}, (one.proposal or {}).get("event_id")
    origin: Origin = told["origin"]
    return Fact(
        topic=told["topic"],
        topic_key=told["topic_key"],
        content=one.content or "",
        confidence=told["confidence"],
        # what was concluded has been confirmed by now; what was said needs no one for that
        origin=PROMOTED if origin == "inferred" else origin,
        source_kind=told["source_kind"],
        said_at=datetime.fromisoformat(told["said_at"]),
        person_id=one.person_id,
        said_by=told["said_by"],
        group_id=one.group_id,
        session_id=one.session_id,
        event_id=event_id if event_id in events else None,
    )


def episode_of(one: Candidate) -> Proposed:
    """The episode that a pending candidate proposes."""
    told = one.proposal or {}
    return Proposed(
        kind=told["kind"],
        content=one.content or "",
        occurred_at=datetime.fromisoformat(told["occurred_at"]),
        sources=tuple(told["sources"]),
        node=told["node"],
    )


def _is_settled(fact: Fact, active: Fact | None) -> bool:
    """Whether no one need be asked: it is known already, or would not stand once approved."""
    if active is None:
        return False
    rank = max(RANK[fact.origin], RANK[PROMOTED])
    return fold_content(active.content) == fold_content(fact.content) or rank < RANK[active.origin]


def _fact_key(fact: Fact | Stated) -> bytes:
    """What a proposed fact is known by within its person or group.

    Of neither, who said it is part of that: one stranger's friends are not another's.
    """
    if fact.person_id is None and fact.group_id is None:
        return content_key(f"{fact.said_by} {fact.content}")
    return content_key(fact.content)


async def _propose_facts(tx: Tx, facts: Sequence[Fact]) -> int:
    """Write those that are new; how many were denied before."""
    values = {
        "tier": "semantic",
        "ids": [new_id("cand") for _ in facts],
        "people": [one.person_id for one in facts],
        "groups": [one.group_id for one in facts],
        "sessions": [one.session_id for one in facts],
        "contents": [one.content for one in facts],
        "keys": [_fact_key(one) for one in facts],
        "proposals": [
            Jsonb(
                {
                    "topic": one.topic,
                    "topic_key": one.topic_key,
                    "confidence": one.confidence,
                    "origin": one.origin,
                    "source_kind": one.source_kind,
                    "said_at": one.said_at.isoformat(),
                    "said_by": one.said_by,
                    "event_id": one.event_id,
                }
            )
            for one in facts
        ],
    }
    row = await (await tx.execute(_QUERIES["propose"], values)).fetchone()
    assert row is not None
    return int(row[1])


def _candidate(row: tuple[Any, ...]) -> Candidate:
    return Candidate(
        id=row[0],
        tier=row[1],
        person_id=row[2],
        group_id=row[3],
        session_id=row[4],
        content=row[5],
        proposal=row[6],
        status=row[7],
        memory_id=row[8],
    )


def _shown(row: tuple[Any, ...]) -> Shown:
    told, tier = row[9] or {}, row[1]
    kind = told.get("kind") or row[16]
    episode = tier == "episodic"
    return Shown(
        id=row[0],
        tier=tier,
        person_id=row[2],
        group_id=row[3],
        # an approved fact may have a better source by now
        session_id=row[4] if row[12] is None else row[14],
        status=row[5],
        created_at=row[6],
        decided_at=row[7],
        memory_id=row[8],
        content=row[10],
        topic=told.get("topic") or row[11],
        kind=kind,
        origin=PROMOTED if episode else told.get("origin") or row[12],
        source_kind="session" if episode else told.get("source_kind") or row[13],
        event_id=told.get("event_id") or row[15],
    )
