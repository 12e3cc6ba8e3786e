"""Compaction: a summary takes the place of a session's older messages, behind a reply.

What it takes them from is what the model sees; the transcript keeps every message. No transaction
is open while a model is asked, and what it says is written only where nothing but new messages
came meanwhile. Whatever fails before leaves the session as it was.
"""

import asyncio
import logging
from datetime import datetime
from typing import Final, Protocol

import orjson

from chalicelib.context import compaction_store as store
from chalicelib.context.compaction_store import Cut, Long
from chalicelib.context.summary import (
    INPUT_TOKENS,
    KEPT,
    PAST,
    Entry,
    SummaryRefused,
    accept_summary,
    count_messages,
    plain_summary,
    plan_cut,
    render_summary,
    summary_request,
)
from chalicelib.db import Database
from chalicelib.errors import ProviderError
from chalicelib.providers import ModelRequest, Provider
from chalicelib.providers.asking import ask_text
from chalicelib.providers.counting import estimate_tokens

SECONDS: Final = 60.0
"""For how long a summary is waited for."""

_WAIT: Final = 10
"""Messages that come before a summary is tried for again, once one was refused."""
_CHARACTERS: Final = 40_000
_REFUSING: Final = ("refusal", "content_filter")

_log = logging.getLogger(__name__)


class Readers(Protocol):
    """Whoever reads the sessions' events in this process; see `Hub`."""

    def wake(self, session_id: str, seq: int | None = None) -> None:
        """The log has events up to `seq`."""
        ...


class Compactor:
    """Makes long sessions short. A summary is asked for with `input_tokens` at most."""

    def __init__(
        self,
        db: Database,
        hub: Readers,
        *,
        input_tokens: int = INPUT_TOKENS,
        seconds: float = SECONDS,
    ) -> None:
        self._db, self._hub = db, hub
        self._input_tokens, self._seconds = input_tokens, seconds

    async def run(
        self,
        *,
        tenant_id: str,
        session_id: str,
        lease: str,
        provider: Provider | None,
        now: datetime,
        force: bool = False,
    ) -> bool:
        """Compact the session if it is time to: whether it was.

        The caller is its worker, `lease` says so. Without a provider the summary is made of the
        messages' own sentences. `force`: from more than KEPT messages, and also where a refused
        summary told to wait. Raises Unavailable where the database is; then nothing is known.
        """
        past = KEPT if force else PAST
        async with self._db.tenant(tenant_id) as tx:
            long = await store.read_long(tx, session_id, lease=lease, past=past, force=force)
        if long is None:
            return False
        entries: list[Entry] = orjson.loads(long.entries)
        at = plan_cut(entries, input_tokens=self._input_tokens, past=past)
        if at is None:
            return False
        leaving = entries[:at]
        try:
            summary = await self._summarise(provider, long.summary, leaving, now)
        except SummaryRefused as exc:
            _log.warning(
                "summary refused", extra={"action": "summary_refused", "reason": exc.reason}
            )
            compact_at = long.messages + _WAIT
            async with self._db.tenant(tenant_id) as tx:
                await store.put_off(tx, session_id, lease=lease, compact_at=compact_at)
            return False
        except (ProviderError, TimeoutError) as exc:
            code = exc.code if isinstance(exc, ProviderError) else "summary_timeout"
            _log.warning("no summary", extra={"action": "compaction_failed", "error": code})
            return False
        cut = Cut(
            cut=at,
            removed=count_messages(leaving),
            next_id=entries[at]["id"],
            summary=summary,
            tokens=estimate_tokens(render_summary(summary)),
        )
        return await self._write(tenant_id, session_id, cut, long, lease)

    async def _summarise(
        self, provider: Provider | None, previous: str, leaving: list[Entry], now: datetime
    ) -> str:
        if provider is None:
            return accept_summary(plain_summary(previous, leaving), previous, leaving)
        request = summary_request(previous, leaving, now, input_tokens=self._input_tokens)
        async with asyncio.timeout(self._seconds):
            text = await _answer_of(provider, request)
        return accept_summary(text, previous, leaving)

    async def _write(
        self, tenant_id: str, session_id: str, cut: Cut, long: Long, lease: str
    ) -> bool:
        written = None
        async with self._db.tenant(tenant_id) as tx:
            if await store.lock_head(tx, session_id):
                written = await store.cut_messages(
                    tx, session_id, cut, lease=lease, compactions=long.compactions
                )
        if written is None:
            _log.info("not compacted", extra={"action": "compaction_lost"})
            return False
        seq, kept = written
        self._hub.wake(session_id, seq)
        told = {"removed": cut.removed, "kept": kept, "summary_tokens": cut.tokens}
        _log.info("compacted", extra={"action": "compacted", **told})
        return True


async def _answer_of(provider: Provider, request: ModelRequest) -> str:
    """The answer's text; of one that was cut off, the lines that are whole.

    Raises SummaryRefused for one that has no end, or where the model will not.
    """
    text, reason = await ask_text(provider, request, at_most=_CHARACTERS)
    if len(text) > _CHARACTERS:
        raise SummaryRefused("too_long")
    if reason in _REFUSING:
        raise SummaryRefused("refusal")
    return text.rpartition("\n")[0] if reason == "length" else text
