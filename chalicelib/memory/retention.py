"""How long each tier is kept: what is past its tenant's time is deleted, a batch a transaction.

A batch takes what no one holds right now and leaves the rest to the next time, so that no turn and
no pass ever waits for it. What the sweep was cut off from, the next one finds.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from chalicelib.db import Database, Tx, load_queries
from chalicelib.db.connections import name_of
from chalicelib.errors import PalError
from chalicelib.memory.facts import read_clock
from chalicelib.memory.policy import Kept, read_policy

_QUERIES: Final = load_queries(__file__, "retention.sql")
_log = logging.getLogger(__name__)

_TENANTS: Final = 100
_BATCH: Final = 2_000
_SESSIONS: Final = 50  # each has its nodes beside it
_SECONDS: Final = 5.0

Step = Callable[[Tx, datetime, int], Awaitable[tuple[int, bool]]]
"""A batch of so many at most of what is older than that: how many went, and whether to go on."""


class Retention:
    """Deletes what tenants keep for a time only.

    While `distilling`, what no pass has read yet stays, whatever its age. `seconds` bounds a sweep:
    the sweep of turns waits behind it.
    """

    def __init__(
        self,
        db: Database,
        *,
        distilling: bool = True,
        seconds: float = _SECONDS,
        batch: int = _BATCH,
    ) -> None:
        self._db, self._distilling, self._seconds, self._batch = db, distilling, seconds, batch

    async def sweep(self, *, every: float = 3_600.0) -> int:
        """Look at each tenant that has not been looked at for `every` seconds: how many rows went.

        One tenant's trouble is not the others'. Raises Unavailable without a database.
        """
        ends = time.monotonic() + self._seconds
        async with self._db.system() as tx:
            due = await _all(tx, "tenants_keeping", {"every": every, "most": _TENANTS})
        total = 0
        for (tenant_id,) in due:
            if time.monotonic() >= ends:
                break
            try:
                total += await self._sweep_tenant(tenant_id, every=every, ends=ends)
            except (PalError, psycopg.Error) as exc:
                told = {"action": "retention_skipped", "error": name_of(exc)}
                _log.warning("retention skipped", extra={**told, "tenant_id": tenant_id})
        if total:
            _log.info("retention swept", extra={"action": "retention_swept", "rows": total})
        return total

    async def _sweep_tenant(self, tenant_id: str, *, every: float, ends: float) -> int:
        async with self._db.tenant(tenant_id) as tx:
            # marked before the work: of two processes one does it, and a fault waits its turn too
            if not (await tx.execute(_QUERIES["begin_sweep"], {"every": every})).rowcount:
                return 0
            policy, now = await read_policy(tx), await read_clock(tx)
        total = 0
        for kept, days in policy.keep_days.items():
            before = now - timedelta(days=days)
            for step in _steps(kept, distilling=self._distilling):
                more = True
                while more:
                    async with self._db.tenant(tenant_id) as tx:
                        if time.monotonic() >= ends:
                            await tx.execute(_QUERIES["put_back"])
                            return total
                        gone, more = await step(tx, before, self._batch)
                    total += gone
        return total


def _steps(kept: Kept, *, distilling: bool) -> tuple[Step, ...]:
    """What is deleted of a tier."""
    match kept:
        case "sealed":
            return (_clear_sealed,)
        case "episodic":
            return _expiring_events(distilling=distilling), _expire_episodes, _expire_outcomes
        case "semantic":
            return _expire_superseded, _expire_unchanged, _expire_facts
        case "narrative":
            return (_expire_narratives,)
        case "audit":
            return (_expire_decided,)


def _expiring_events(*, distilling: bool) -> Step:
    place = ("0", "")

    async def expire_events(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
        nonlocal place
        values = {"read_tx": place[0], "read_id": place[1], "unread": not distilling}
        page = await _all(tx, "expire_events", {**values, "before": before, "most": most})
        if not page:
            return 0, False
        [(gone, *ends, more)] = page
        place = (ends[0], ends[1])
        return gone, more

    return expire_events


async def _expire_episodes(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    gone = await _all(tx, "expire_episodes", {"before": before, "most": most})
    return len(gone), len(gone) == most


async def _expire_superseded(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    held = dict(await _all(tx, "hold_superseded", {"before": before, "most": most}))
    gone = await _expire_chains(tx, [one for one, above in held.items() if above not in held])
    return gone, gone > 0 and len(held) == most


async def _expire_unchanged(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    held = await _all(tx, "hold_unchanged", {"before": before, "most": most})
    gone = await _expire_chains(tx, [row[0] for row in held])
    return gone, gone > 0 and len(held) == most


async def _expire_chains(tx: Tx, heads: Sequence[str]) -> int:
    return len(await _all(tx, "expire_chains", {"ids": list(heads)})) if heads else 0


async def _expire_outcomes(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    gone = await _all(tx, "expire_pending", {"tier": "episodic", "before": before, "most": most})
    return len(gone), len(gone) == most


async def _expire_facts(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    gone = await _all(tx, "expire_pending", {"tier": "semantic", "before": before, "most": most})
    return len(gone), len(gone) == most


async def _expire_narratives(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    gone = await _all(tx, "expire_narratives", {"before": before, "most": most})
    return len(gone), len(gone) == most


async def _expire_decided(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    gone = await _all(tx, "expire_decided", {"before": before, "most": most})
    return len(gone), len(gone) == most


async def _clear_sealed(tx: Tx, before: datetime, most: int) -> tuple[int, bool]:
    most = min(most, _SESSIONS)
    rows = await _all(tx, "hold_sealed", {"before": before, "most": most})
    values = {"ids": [row[0] for row in rows]}
    cleared = (await tx.execute(_QUERIES["clear_states"], values)).rowcount
    await tx.execute(_QUERIES["clear_nodes"], values)
    await tx.execute(_QUERIES["clear_contexts"], values)
    return cleared, len(rows) == most


async def _all(tx: Tx, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await tx.execute(_QUERIES[query], values)).fetchall()
