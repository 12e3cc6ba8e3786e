"""Episodes: what came of a session, promoted into the memory when it ends.

Which nodes of a session's tree become one is decided without any model. The caller owns the
transaction; the people are locked before the memory's rows, as everywhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from chalicelib.db import Tx, load_queries
from chalicelib.ids import new_id
from chalicelib.memory import people
from chalicelib.memory.distill.refusals import refusal
from chalicelib.memory.topics import content_key

_QUERIES: Final = load_queries(__file__, "episodes.sql")

EpisodeKind = Literal["decision", "outcome", "commitment", "answer"]

READ_AT_MOST: Final = 200
_CONTENT_AT_MOST: Final = 2_000


class TreeNode(Protocol):
    """A node of an execution tree, as far as it matters here; see `context.shapes.Node`."""

    @property
    def number(self) -> int:
        """Its number in the session."""

    @property
    def kind(self) -> str:
        """`topic`, `decision`, `open_question` or `task`."""

    @property
    def text(self) -> str:
        """What it is."""

    @property
    def status(self) -> str:
        """`open`, `resolved` or `abandoned`."""

    @property
    def outcome(self) -> str | None:
        """What came of it."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the messages it came from."""

    @property
    def opened_at(self) -> datetime:
        """Since when there is one."""

    @property
    def closed_at(self) -> datetime | None:
        """When it was closed."""


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """What may become an episode, with the messages and the node that it rests on."""

    kind: EpisodeKind
    content: str
    occurred_at: datetime
    sources: tuple[str, ...] = ()
    node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Episode:
    """An episode as a session is told of it."""

    id: str
    kind: EpisodeKind
    content: str
    occurred_at: datetime
    session_id: str


@dataclass(frozen=True, kw_only=True)
class Held(Episode):
    """An episode as callers see it: the session's person, also in a group, and its messages."""

    person_id: str | None
    group_id: str | None
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The episode that a proposed one is now; not `fresh`: it was known before."""

    id: str
    fresh: bool


def eligible(nodes: Iterable[TreeNode]) -> list[Proposed]:
    """What of a tree may outlive its session, in the order of the nodes, nothing twice.

    What was given up or is merely open does not, nor what holds a secret or reads as an order.
    """
    found: dict[bytes, Proposed] = {}
    for node in nodes:
        if (told := _told(node)) is None:
            continue
        kind, content = told
        content = content.strip()[:_CONTENT_AT_MOST]
        if not content or refusal("", content) is not None:
            continue
        found[content_key(content)] = Proposed(
            kind=kind,
            content=content,
            occurred_at=node.closed_at or node.opened_at,
            sources=tuple(node.sources),
            node=node.number,
        )
    return list(found.values())


async def promote(
    tx: Tx,
    *,
    session_id: str,
    person_id: str | None,
    group_id: str | None,
    proposed: Sequence[Proposed],
    now: datetime,
) -> int:
    """Write a session's episodes: how many had not been known. Raises Unavailable."""
    kept = await write_episodes(
        tx,
        session_id=session_id,
        person_id=person_id,
        group_id=group_id,
        proposed=proposed,
        now=now,
    )
    return sum(1 for one in kept if one is not None and one.fresh)


async def write_episodes(
    tx: Tx,
    *,
    session_id: str,
    person_id: str | None,
    group_id: str | None,
    proposed: Sequence[Proposed],
    now: datetime,
) -> list[Kept | None]:
    """What became of each; None where it has been forgotten since it was said.

    What the same group or, outside of groups, the same person is known to have stays and has the
    newer time. Raises Unavailable while its person is being merged.
    """
    if not proposed:
        return []
    person_id = await hold_person(tx, person_id)
    await hold_groups(tx, [] if group_id is None else [group_id])
    keys = [content_key(one.content) for one in proposed]
    owner = {"session_id": session_id, "person_id": person_id, "group_id": group_id}
    values = {**owner, "keys": keys, "times": [one.occurred_at for one in proposed]}
    gone = {bytes(row[0]) for row in await _all(tx, "forgotten", values)}
    known = {bytes(row[0]): row[1] for row in await _all(tx, "known_episodes", values)}
    kept: list[Kept | None] = []
    fresh: list[tuple[str, bytes, Proposed]] = []
    again: list[tuple[str, datetime]] = []
    for key, one in zip(keys, proposed, strict=True):
        if key in gone:
            kept.append(None)
        elif key in known:
            again.append((known[key], one.occurred_at))
            kept.append(Kept(id=known[key], fresh=False))
        else:
            known[key] = new_id("epi")
            fresh.append((known[key], key, one))
            kept.append(Kept(id=known[key], fresh=True))
    if fresh:
        await tx.execute(_QUERIES["insert_episodes"], {**owner, "now": now, **_columns(fresh)})
    if again:
        newer = {"ids": [one for one, _ in again], "times": [at for _, at in again]}
        await tx.execute(_QUERIES["renew_episodes"], newer)
    return kept


async def session_episodes(
    tx: Tx, *, person_id: str | None, group_id: str | None, most: int = READ_AT_MOST
) -> list[Episode]:
    """The newest that may be told in a session of this person and group; of neither, none."""
    if person_id is None and group_id is None:
        return []
    values = {"person_id": person_id, "group_id": group_id, "most": most}
    found: dict[bytes, Episode] = {}
    for row in await _all(tx, "session_episodes", values):
        # of two people who were merged, both may have come to the same
        found.setdefault(
            bytes(row[5]),
            Episode(id=row[0], kind=row[1], content=row[2], occurred_at=row[3], session_id=row[4]),
        )
    return list(found.values())


async def list_episodes(
    tx: Tx,
    *,
    person_id: str | None,
    group_id: str | None,
    kind: EpisodeKind | None,
    before: tuple[datetime, str] | None,
    most: int,
) -> list[Held]:
    """Episodes below the place `before`, (occurred_at, id), the newest first."""
    values = {
        "person_id": person_id,
        "group_id": group_id,
        "kind": kind,
        "occurred": before and before[0],
        "id": before and before[1],
        "most": most,
    }
    return [
        Held(
            id=row[0],
            kind=row[1],
            content=row[2],
            occurred_at=row[3],
            session_id=row[4],
            person_id=row[5],
            group_id=row[6],
            sources=tuple(row[7]),
        )
        for row in await _all(tx, "list_episodes", values)
    ]


async def forget_episode(tx: Tx, episode_id: str) -> bool:
    """Delete an episode and leave a tombstone without its words; False if there is none.

    Raises Unavailable while its person is being merged.
    """
    found = await _all(tx, "owner_of", {"id": episode_id})
    if not found:
        return False
    [(person_id, group_id)] = found
    await hold_person(tx, person_id)
    await hold_groups(tx, [] if group_id is None else [group_id])
    # a merge that this waited for has given it to the one who is held
    [(gone,)] = await _all(tx, "forget_episode", {"id": episode_id})
    return bool(gone)


async def hold_groups(tx: Tx, groups: Iterable[str]) -> None:
    """Be the one writer of these groups' episodes; people come before, and all rows behind."""
    for group_id in sorted(set(groups)):
        await tx.execute(_QUERIES["hold_group"], {"group_id": group_id})


async def hold_person(tx: Tx, person_id: str | None) -> str | None:
    """Who that is by now, locked against a merge and their end; None if they are gone."""
    return (
        None if person_id is None else (await people.hold_survivors(tx, [person_id])).get(person_id)
    )


def _told(node: TreeNode) -> tuple[EpisodeKind, str] | None:
    text, outcome = node.text.strip(), (node.outcome or "").strip()
    if node.status == "abandoned":
        return None
    if node.kind == "decision":
        return "decision", text
    if node.status == "open":
        return ("commitment", text) if node.kind == "task" else None
    if not outcome:
        return None
    return "answer" if node.kind == "open_question" else "outcome", f"{text} — {outcome}"


def _columns(fresh: Sequence[tuple[str, bytes, Proposed]]) -> dict[str, list[Any]]:
    return {
        "ids": [episode_id for episode_id, _, _ in fresh],
        "keys": [key for _, key, _ in fresh],
        "kinds": [one.kind for _, _, one in fresh],
        "contents": [one.content for _, _, one in fresh],
        "sources": [" ".join(one.sources) for _, _, one in fresh],
        "nodes": [one.node for _, _, one in fresh],
        "times": [one.occurred_at for _, _, one in fresh],
    }


async def _all(tx: Tx, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await tx.execute(_QUERIES[query], values)).fetchall()
