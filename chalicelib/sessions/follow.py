"""Hearing what other processes write: LISTEN on a direct connection, polling where there is none.

RDS Proxy and PgBouncer cannot carry LISTEN (the proxy pins, the pooler loses it), so behind one
the heads of all sessions with a reader here are polled in one query: every 50 ms while one of them
has a turn running elsewhere, every half second otherwise.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import psycopg

from chalicelib.auth import Authenticator
from chalicelib.db import Database, Login
from chalicelib.errors import PalError
from chalicelib.sessions import log
from chalicelib.sessions.hub import WATCH_SECONDS, Feed, Hub

if TYPE_CHECKING:
    from chalicelib.sessions.engine import Engine

_log = logging.getLogger(__name__)

_POLL_BUSY: Final = 0.05
_POLL_IDLE: Final = 0.5
_RETRY: Final = 1.0
PING_SECONDS: Final = 15.0


async def listen(login: Login, hub: Hub, engine: "Engine") -> None:
    """Follow by LISTEN, for ever; after a lost connection every feed is read anew."""
    while True:
        try:
            async with await login.connect() as conn:
                await conn.execute("LISTEN pal_feed")
                await conn.execute("LISTEN pal_cancel")
                for session_id in tuple(hub.feeds):
                    hub.wake(session_id)
                async for note in conn.notifies():
                    if note.channel == "pal_cancel":
                        engine.cancel(note.payload)
                        continue
                    session_id, _, what = note.payload.partition(" ")
                    if what == "deleted":
                        hub.deleted(session_id)
                    else:
                        hub.wake(session_id, int(what))
        except psycopg.OperationalError as exc:
            _log.warning("not listening", extra={"action": "listen_lost", "error": exc.sqlstate})
        await asyncio.sleep(_RETRY)


async def poll(db: Database, hub: Hub) -> None:
    """Follow by polling, for ever."""
    while True:
        busy = False
        wanted = [one.session_id for one in hub.feeds.values() if one.watched_until]
        if wanted:
            try:
                async with db.system() as tx:
                    heads = await log.feed_heads(tx, wanted)
            except PalError as exc:
                _log.warning("not polling", extra={"action": "poll_failed", "error": exc.code})
                await asyncio.sleep(_RETRY)
                continue
            for session_id, next_seq, at_work in heads:
                hub.wake(session_id, next_seq - 1)
                busy = busy or (at_work and session_id not in hub.live)
            for session_id in set(wanted) - {head[0] for head in heads}:
                hub.deleted(session_id)
        await asyncio.sleep(_POLL_BUSY if busy else _POLL_IDLE)


async def heartbeat(db: Database, hub: Hub) -> None:
    """Ping readers that got nothing for 15 s and renew this process's watches, for ever."""
    renewed = time.monotonic()
    while True:
        await asyncio.sleep(1)
        now = time.monotonic()
        for feed in tuple(hub.feeds.values()):
            for reader in tuple(feed.readers):
                if reader.over(now):
                    reader.close()
                # a second early, since the next look comes a second later
                elif now - reader.last_given >= PING_SECONDS - 1:
                    reader.ping()
            if feed.readers and not feed.watched_until and feed.session_id not in hub.live:
                # its turn was to run here and does not: another process may end it
                await _watch(hub, feed)
        if now - renewed < WATCH_SECONDS / 3:
            continue
        try:
            await _renew_watches(db, hub)
            await _renew_streams(db, hub)
            renewed = now
        except PalError as exc:
            _log.warning("not renewed", extra={"action": "renew_failed", "error": exc.code})


async def _renew_watches(db: Database, hub: Hub) -> None:
    watched = [one for one in hub.feeds.values() if one.watched_until]
    if watched:
        until = time.time() + WATCH_SECONDS
        ids = [one.session_id for one in watched]
        async with db.system() as tx:
            await log.renew_watch(tx, ids, process=db.process, until=until)
        for feed in watched:
            feed.watched_until = until


async def _renew_streams(db: Database, hub: Hub) -> None:
    counted: dict[str, list[str]] = {}
    for feed in hub.feeds.values():
        for reader in feed.readers:
            if reader.stream_id is not None:
                counted.setdefault(feed.tenant_id, []).append(reader.stream_id)
    for tenant_id, ids in counted.items():
        async with db.tenant(tenant_id) as tx:
            await log.renew_streams(tx, ids, seconds=WATCH_SECONDS)


async def _watch(hub: Hub, feed: Feed) -> None:
    try:
        await hub.watch(feed.tenant_id, feed.session_id)
    except PalError as exc:
        _log.warning("not watched", extra={"action": "watch_failed", "error": exc.code})


async def check_keys(auth: Authenticator, hub: Hub, *, every: float) -> None:
    """End the streams of keys that have been revoked, for ever."""
    while True:
        await asyncio.sleep(every)
        readers = [one for feed in hub.feeds.values() for one in feed.readers if one.key_id]
        for key_id in {one.key_id for one in readers}:
            try:
                if await auth.still_live(key_id):
                    continue
            except PalError:
                continue
            for reader in readers:
                if reader.key_id == key_id:
                    reader.close()
