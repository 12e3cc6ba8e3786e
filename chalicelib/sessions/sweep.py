"""The sweep: ends turns whose lease lapsed, dispatches turns no one claimed, deletes old events."""

import logging
from typing import Final

from chalicelib.db import Database
from chalicelib.errors import PalError
from chalicelib.sessions import log, store
from chalicelib.sessions.dispatch import Dispatch
from chalicelib.sessions.engine import Engine

_log = logging.getLogger(__name__)

_BATCH: Final = 500
_PURGE_BATCH: Final = 5000


async def sweep(db: Database, engine: Engine, dispatch: Dispatch, *, unclaimed: float) -> int:
    """One round over all tenants: how many turns were found. `unclaimed` in seconds."""
    async with db.system() as tx:
        due = await store.due_sessions(tx, unclaimed=unclaimed, most=_BATCH)
    for tenant_id, session_id, lapsed in due:
        try:
            if not lapsed or await engine.cut(tenant_id, session_id):
                await dispatch(tenant_id, session_id)
        except PalError as exc:
            # one session's trouble is not the others'; it is found again next time
            _log.warning("sweep skipped", extra={"action": "sweep_skipped", "error": exc.code})
    if due:
        _log.info("swept", extra={"action": "swept", "turns": len(due)})
    return len(due)


async def purge(db: Database, *, age: float) -> int:
    """Delete events that can no longer be resumed, in batches of a transaction each."""
    total = 0
    while True:
        async with db.system() as tx:
            gone = await log.purge(tx, age=age, most=_PURGE_BATCH)
        total += gone
        if gone < _PURGE_BATCH:
            return total
