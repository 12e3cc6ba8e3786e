"""What callers do with what came of sessions: list it, forget it."""

from datetime import datetime
from typing import Any

from chalicelib.auth import Principal
from chalicelib.db import Database
from chalicelib.errors import NotFound
from chalicelib.ids import is_id
from chalicelib.memory import people
from chalicelib.memory.episodes import EpisodeKind, Held, forget_episode, list_episodes
from chalicelib.texts import rfc3339


class Episodes:
    """The episodes that sessions have left."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(
        self,
        caller: Principal,
        *,
        person_id: str | None,
        group_id: str | None,
        kind: EpisodeKind | None,
        before: tuple[datetime, str] | None,
        most: int,
    ) -> list[dict[str, Any]]:
        """Episodes below the place `before`, (occurred_at, id), the newest first.

        A person may be named by the id of one who was merged into them; an unknown one has none.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if person_id is not None:
                person_id = (await people.survivors(tx, [person_id])).get(person_id, person_id)
            found = await list_episodes(
                tx, person_id=person_id, group_id=group_id, kind=kind, before=before, most=most
            )
        return [_body(one) for one in found]

    async def forget(self, caller: Principal, episode_id: str) -> None:
        """Delete an episode for good, and what narratives say of it. Raises NotFound.

        No session that has come to the same before now brings it back when it ends.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if not (is_id(episode_id, "epi") and await forget_episode(tx, episode_id)):
                raise NotFound("There is no such episode.")


def _body(one: Held) -> dict[str, Any]:
    whose = {"person_id": one.person_id, "group_id": one.group_id}
    return {
        "id": one.id,
        "kind": one.kind,
        "content": one.content,
        "origin": "promoted",
        "occurred_at": rfc3339(one.occurred_at),
        **{name: value for name, value in whose.items() if value is not None},
        "source_kind": "session",
        "source_ref": one.session_id,
        "sources": list(one.sources),
        "visible_to": "person" if one.group_id is None else "group",
    }
