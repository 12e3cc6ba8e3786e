"""The timeline: what was said, as it came in. A session's turns are written as they end.

(See `end_turn` of the sessions.) Nothing here looks at what an event says.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import orjson
from psycopg.types.json import Jsonb

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx, load_queries
from chalicelib.idempotency import Once, begin_once, finish_once
from chalicelib.ids import new_id
from chalicelib.memory.embedder import Indexer, embed_quietly
from chalicelib.memory.handles import Handle
from chalicelib.memory.people import resolve_people

_QUERIES: Final = load_queries(__file__, "timeline.sql")

Direction = Literal["inbound", "outbound"]


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event as it came in; `person` is whose it is, `name` what they are called if told."""

    channel: str
    kind: str
    content: str
    occurred_at: datetime
    direction: Direction | None = None
    external_id: str | None = None
    group_id: str | None = None
    person: Handle | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def once(self) -> bytes | None:
        """What another event of the same source is known by; None where it has no id."""
        if self.external_id is None:
            return None
        parts = [self.channel, self.group_id, self.kind, self.external_id]
        return hashlib.sha256(orjson.dumps(parts)).digest()


class Timeline:
    """What tenants ingest."""

    def __init__(self, db: Database, indexer: Indexer | None = None) -> None:
        self._db, self._indexer = db, indexer

    async def ingest(
        self, caller: Principal, events: Sequence[NewEvent], *, once: Once | None = None
    ) -> dict[str, int]:
        """Write all of a batch or, if it raises, nothing: `{inserted, duplicates}`.

        It is found by its words from then on; by its meaning too, if this has an indexer.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            if (before := await begin_once(tx, once)) is not None:
                return dict(before)
            inserted = await _insert_events(tx, events) if events else []
            answer = {"inserted": len(inserted), "duplicates": len(events) - len(inserted)}
            await finish_once(tx, once, answer)
        if self._indexer is not None:
            await embed_quietly(self._indexer.embed_events(caller.tenant_id, inserted))
        return answer


async def _insert_events(tx: Tx, events: Sequence[NewEvent]) -> list[str]:
    """The ids of those that are new."""
    named: dict[Handle, str | None] = {}
    for one in events:
        if one.person is not None:
            named[one.person] = named.get(one.person) or one.name
    people = await resolve_people(tx, named)
    values = {
        "ids": [new_id("evt") for _ in events],
        "occurred": [one.occurred_at for one in events],
        "channels": [one.channel for one in events],
        "kinds": [one.kind for one in events],
        "directions": [one.direction for one in events],
        "external_ids": [one.external_id for one in events],
        "once": [one.once for one in events],
        "groups": [one.group_id for one in events],
        "people": [one.person and people[one.person.key] for one in events],
        "contents": [one.content for one in events],
        "metadata": [None if one.metadata is None else Jsonb(one.metadata) for one in events],
    }
    cur = await tx.execute(_QUERIES["insert_events"], values)
    return [row[0] for row in await cur.fetchall()]
