"""What a narrative is written from: the facts and episodes of its person or group."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chalicelib.db import Tx
from chalicelib.memory.episodes import Episode, session_episodes
from chalicelib.memory.narrative import store
from chalicelib.memory.notes import Note
from chalicelib.memory.session_facts import session_facts

_EPISODES_AT_MOST: Final = 200


@dataclass(frozen=True, kw_only=True)
class Material:
    """The newest facts and episodes, and since when each is there."""

    facts: tuple[Note, ...]
    episodes: tuple[Episode, ...]
    since: Mapping[str, datetime]

    def after(self, moment: datetime | None) -> "Material":
        """What has come after this; all of it, if None."""
        if moment is None:
            return self
        new = {one for one, since in self.since.items() if since > moment}
        return Material(
            facts=tuple(one for one in self.facts if one.id in new),
            episodes=tuple(one for one in self.episodes if one.id in new),
            since=self.since,
        )


async def read_material(tx: Tx, *, person_id: str | None, group_id: str | None) -> Material:
    """Of a group what was said there, else what may be told to the person in private."""
    if group_id is not None:
        person_id = None
    facts = await session_facts(tx, person_id=person_id, group_id=group_id)
    episodes = await session_episodes(
        tx, person_id=person_id, group_id=group_id, most=_EPISODES_AT_MOST
    )
    ids = [*(one.id for one in facts), *(one.id for one in episodes)]
    since = await store.own_sources(tx, ids) if ids else {}
    return Material(
        facts=tuple(one for one in facts if one.id in since),
        episodes=tuple(one for one in episodes if one.id in since),
        since=since,
    )
