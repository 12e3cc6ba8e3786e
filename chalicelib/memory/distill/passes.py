"""A slice of a pass: from a tenant's timeline to its facts, by way of a model.

One pass a tenant runs at a time, in whatever process: it holds a lease. No transaction is open
while a model is asked. All that a slice comes to is written in one transaction, with the place it
was read up to; whatever fails before leaves everything as it was, to be read again.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import psycopg

from chalicelib import telemetry
from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import InProgress, NoModel, PalError, ProviderError, Unavailable
from chalicelib.memory.candidates import hold_back
from chalicelib.memory.distill.answers import read_answer
from chalicelib.memory.distill.asking import distill_request
from chalicelib.memory.distill.attribution import Said, attribute
from chalicelib.memory.distill.chunks import Slicer
from chalicelib.memory.distill.evidence import find_evidence
from chalicelib.memory.distill.material import Place, read_material
from chalicelib.memory.distill.refusals import refusal
from chalicelib.memory.distill.shapes import Answer, Chunk, Known, Slice
from chalicelib.memory.facts import KNOWN_AT_MOST, active_facts, write_facts
from chalicelib.providers import Provider
from chalicelib.providers.asking import CutOff, UnreadableAnswer, ask_whole

_QUERIES: Final = load_queries(__file__, "passes.sql")

SECONDS: Final = 300.0
"""For how long a slice asks models; what is not answered then is left to the next."""

LEASE_SECONDS: Final = 360.0
_AT_ONCE: Final = 4
_AGAIN: Final = (
    "\n\nYour last answer could not be read. Answer with the one JSON object and nothing else."
)

_log = logging.getLogger(__name__)


class Chains(Protocol):
    """Whoever makes chains of models; see `Models`."""

    async def chain(
        self, *, tenant_id: str, role: Literal["primary", "fast"], own_keys: bool, stand_in: bool
    ) -> Provider:
        """The chain of the settings for this role; raises NoModel."""
        ...


@dataclass(kw_only=True)
class _Material:
    """What a slice was given to read. `known` is what was known before, a list a chunk."""

    chunks: Sequence[Chunk] = ()
    known: list[list[Known]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    more: bool = False


class Distiller:
    """Runs passes. `now` tells models the date; `seconds` bounds the asking of a slice."""

    def __init__(
        self,
        db: Database,
        models: Chains,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: float = SECONDS,
    ) -> None:
        self._db, self._models, self._now, self._seconds = db, models, now, seconds

    async def due(self, every: float, most: int) -> list[str]:
        """Tenants with something to read whose last pass was `every` seconds ago, or failed."""
        async with self._db.system() as tx:
            cur = await tx.execute(_QUERIES["tenants_due"], {"every": every, "most": most})
            return [row[0] for row in await cur.fetchall()]

    async def run(self, tenant_id: str) -> Slice:
        """Read one slice and write what it says.

        Without a model nothing is read, so that it is still there once there is one. Raises
        InProgress while another pass of the tenant runs, PalError for what failed: then nothing
        was written.
        """
        lease, began = secrets.token_hex(8), time.monotonic()
        place, own_keys = await self._take(tenant_id, lease)
        try:
            done = await self._slice(tenant_id, lease, place, own_keys=own_keys)
        except NoModel as exc:
            async with self._db.tenant(tenant_id) as tx:
                await tx.execute(_QUERIES["put_off"], {"lease": lease})
            _log.warning(exc.message, extra={"action": "distill_no_model", "tenant_id": tenant_id})
            return Slice(found=0, more=False)
        except BaseException as exc:
            await self._give_up(tenant_id, lease, exc)
            if isinstance(exc, Exception):
                spent = time.monotonic() - began
                telemetry.record_pass(duration=spent, failed=True, chunks=0, found=0)
            raise
        spent = time.monotonic() - began
        telemetry.record_pass(duration=spent, failed=False, chunks=done.chunks, found=done.found)
        told = {"found": done.found, "more": done.more, "chunks": done.chunks}
        extra = {"action": "distilled", **told, "dropped": dict(done.dropped)}
        _log.info("slice distilled", extra=extra)
        return done

    async def _take(self, tenant_id: str, lease: str) -> tuple[Place, bool]:
        values = {"lease": lease, "seconds": LEASE_SECONDS}
        async with self._db.tenant(tenant_id) as tx:
            row = await (await tx.execute(_QUERIES["take_lease"], values)).fetchone()
        if row is None:
            raise InProgress("A pass of this tenant is running.", retry_after=1)
        return (int(row[0]), row[1]), row[2]

    async def _give_up(self, tenant_id: str, lease: str, exc: BaseException) -> None:
        """Give the lease back; where that fails as well, it lapses."""
        code = exc.code if isinstance(exc, PalError) else type(exc).__name__
        with suppress(PalError, psycopg.Error):
            async with self._db.tenant(tenant_id) as tx:
                if isinstance(exc, Exception):
                    await tx.execute(_QUERIES["fail_slice"], {"lease": lease, "code": code})
                else:  # no failure: the process is asked to end
                    await tx.execute(_QUERIES["give_lease_back"], {"lease": lease})
        if isinstance(exc, Exception):
            told = {"action": "distill_failed", "error": type(exc).__name__, "code": code}
            _log.warning("pass failed", extra={**told, "tenant_id": tenant_id})

    async def _slice(self, tenant_id: str, lease: str, place: Place, *, own_keys: bool) -> Slice:
        async with self._db.tenant(tenant_id) as tx:
            material = await _read(tx, place)
        answers: dict[int, Answer] = {}
        if material.chunks:
            # the stand-in finds nothing in anything, and what it has read would be lost
            provider = await self._models.chain(
                tenant_id=tenant_id, role="fast", own_keys=own_keys, stand_in=False
            )
            answers = await self._ask_all(provider, material)
        read = _read_whole(material, answers)
        if material.places and not read:
            raise Unavailable("The models took too long.", code="distill_timeout")
        dropped: Counter[str] = Counter()
        said = _said(material.chunks, answers, dropped)
        more = material.more or len(read) < len(material.places)
        last = read[-1] if read else place
        async with self._db.tenant(tenant_id) as tx:
            facts = await attribute(tx, said, unsure=dropped)
            found = await write_facts(tx, facts, dropped=dropped, in_pass=True, gate=hold_back)
            end = {"lease": lease, "read_tx": str(last[0]), "read_id": last[1], "more": more}
            if not (await tx.execute(_QUERIES["end_slice"], end)).rowcount:
                raise InProgress("Another pass of this tenant has taken over.", retry_after=1)
        return Slice(found=found, more=more, chunks=len(answers), events=len(read), dropped=dropped)

    async def _ask_all(self, provider: Provider, material: _Material) -> dict[int, Answer]:
        """The answers of the chunks there was time for, by their numbers.

        The chunks of one person or group are asked about in turn, so that each is told of the
        topics before it; those of several at a time. Raises what the first failure was.
        """
        answers: dict[int, Answer] = {}
        gate = asyncio.Semaphore(_AT_ONCE)
        owners: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for number, chunk in enumerate(material.chunks):
            owners[chunk.person_id, chunk.group_id].append(number)

        async def ask_in_turn(numbers: Sequence[int]) -> None:
            found: list[Known] = []
            for number in numbers:
                chunk = material.chunks[number]
                known = (found[::-1] + material.known[number])[:KNOWN_AT_MOST]
                async with gate:
                    answers[number] = await _ask(provider, chunk, known, self._now())
                found += _learnt(answers[number], chunk)

        tasks = [asyncio.create_task(ask_in_turn(one)) for one in owners.values()]
        try:
            await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_EXCEPTION)
            failed = [exc for one in tasks if one.done() and (exc := one.exception())]
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failed:
            raise failed[0]
        return answers


async def _read(tx: Tx, place: Place) -> _Material:
    slicer, material = Slicer(), _Material()
    while not slicer.full and (batch := await read_material(tx, place)):
        for event in batch:
            if not slicer.add(event):
                break
            place = event.place
            material.places.append(place)
    material.chunks, material.more = slicer.chunks(), slicer.full
    for chunk in material.chunks:
        people = {*chunk.people, chunk.person_id or ""}
        material.known.append(await active_facts(tx, person_ids=people, group_id=chunk.group_id))
    return material


async def _ask(provider: Provider, chunk: Chunk, known: Sequence[Known], now: datetime) -> Answer:
    if not any(line.evidence for line in chunk.lines):
        return Answer(items=())  # whatever a model made of it, no one said it
    request = distill_request(chunk, known, now)
    try:
        return read_answer(await ask_whole(provider, request))
    except CutOff:
        if len(chunk.lines) > 1:
            return await _ask_halves(provider, chunk, known, now)
    except UnreadableAnswer:
        pass
    # not the same request: a provider may give the same answer to that
    request = replace(request, system=request.system + _AGAIN)
    try:
        return read_answer(await ask_whole(provider, request))
    except UnreadableAnswer as exc:
        told = "The model's answer could not be read."
        raise ProviderError(told, code="unreadable_answer") from exc


async def _ask_halves(
    provider: Provider, chunk: Chunk, known: Sequence[Known], now: datetime
) -> Answer:
    middle = len(chunk.lines) // 2
    first = await _ask(provider, replace(chunk, lines=chunk.lines[:middle]), known, now)
    known = (_learnt(first, chunk)[::-1] + list(known))[:KNOWN_AT_MOST]
    second = await _ask(provider, replace(chunk, lines=chunk.lines[middle:]), known, now)
    return Answer(items=first.items + second.items, dropped=first.dropped + second.dropped)


def _learnt(answer: Answer, chunk: Chunk) -> list[Known]:
    return [
        Known(
            topic=one.topic,
            content=one.content,
            person_id=None if one.person_hint else chunk.person_id,
            person_name=one.person_hint or chunk.person_name,
        )
        for one in answer.items
        if refusal(one.topic, one.content) is None
    ]


def _read_whole(material: _Material, answers: dict[int, Answer]) -> list[Place]:
    """The places up to the first event of a chunk that was not answered."""
    undone = [one.first for number, one in enumerate(material.chunks) if number not in answers]
    return [one for one in material.places if not undone or one < min(undone)]


def _said(chunks: Sequence[Chunk], answers: dict[int, Answer], dropped: Counter[str]) -> list[Said]:
    said = []
    for number, answer in sorted(answers.items()):
        dropped.update(answer.dropped)
        for item in answer.items:
            if reason := refusal(item.topic, item.content):
                dropped[reason] += 1
            elif (line := find_evidence(item, chunks[number])) is None:
                dropped["no_evidence"] += 1
            else:
                said.append(Said(item=item, line=line, chunk=chunks[number]))
    return said
