"""Stamped tokens at a steady cadence, cheap enough for hundreds of streams on part of a core."""

import asyncio
import os
import time
from typing import Any, NamedTuple

from aiohttp import web

from tests.fakes.openai_wire import Wire, json_answer, open_stream

LATENESS_KEPT = 200_000


class Cadence(NamedTuple):
    """When tokens leave: milliseconds to the first, milliseconds between, and how many."""

    first_ms: float
    inter_ms: float
    tokens: int


class Stats:
    """What the program counted since the last reset; times in milliseconds."""

    def __init__(self, active: int = 0) -> None:
        self.requests = self.done = self.aborted = self.tokens = 0
        self.active = self.max_active = active
        self.last_own_ms = 0.0
        self.lateness: list[float] = []  # seconds behind the cadence, one per token write

    def as_dict(self) -> dict[str, Any]:
        late = sorted(self.lateness)

        def at(share: float) -> float:
            return round(late[int(share * (len(late) - 1))] * 1e3, 3) if late else 0.0

        counts = {k: v for k, v in vars(self).items() if k != "lateness"}
        marks = {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": at(1.0)}
        return {**counts, "write_lateness_ms": marks, "cpu_s": time.process_time()}


class Ticker:
    """The tokens of one stream in cadence mode, written past the event loop's own buffers."""

    def __init__(
        self, transport: asyncio.Transport, wire: Wire, cadence: Cadence, began: float, stats: Stats
    ) -> None:
        before, after = wire.chunk({"content": "\x01"}).split(b"\\u0001")
        self._before, self._after, self._overhead = before, after, len(before) + len(after)
        self._transport, self._stats = transport, stats
        self._fd = transport.get_extra_info("socket").fileno()
        self._tokens, self._sent = cadence.tokens, 0
        self._first, self._inter = began + cadence.first_ms / 1e3, cadence.inter_ms / 1e3
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not self._tokens:
            self.ended.set_result(True)

    def _token(self) -> bytes:
        stamp = b"t%d@%d " % (self._sent, time.monotonic_ns())
        self._sent += 1
        self._stats.tokens += 1
        size = self._overhead + len(stamp)
        return b"%x\r\n%b%b%b\r\n" % (size, self._before, stamp, self._after)

    def due(self) -> float:
        """When the next token is to leave, on time.monotonic()."""
        return self._first + self._sent * self._inter

    def fire(self) -> bool:
        """Write what is due, at once if nothing is queued before it; False when it was the last."""
        if self.ended.done():  # the client left, and the handler was cancelled
            return False
        if self._transport.is_closing():
            self.ended.set_result(False)
            return False
        if len(self._stats.lateness) < LATENESS_KEPT:
            self._stats.lateness.append(time.monotonic() - self.due())
        if self._inter:
            data = self._token()
        else:
            data = b"".join(self._token() for _ in range(self._tokens))
        written = 0
        if not self._transport.get_write_buffer_size():
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                pass
            except OSError:
                self.ended.set_result(False)
                return False
        if written < len(data):
            self._transport.write(data[written:])
        if self._sent < self._tokens:
            return True
        self.ended.set_result(True)
        return False


class Wheel:
    """All tickers in slots of one millisecond behind a single timer of the loop."""

    def __init__(self) -> None:
        self._slots: dict[int, list[Ticker]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def add(self, ticker: Ticker) -> None:
        slot = int(ticker.due() * 1e3) + 1
        self._slots.setdefault(slot, []).append(ticker)
        self._arm(slot)

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            if self._armed_for <= slot:
                return
            self._timer.cancel()
        self._armed_for = slot
        # Never less than a grain of uvloop's timers, which would fire at once, and again.
        delay = max(0.001, slot / 1e3 - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = int(time.monotonic() * 1e3)
        for slot in sorted(s for s in self._slots if s <= now):
            for ticker in self._slots.pop(slot):
                if ticker.fire():
                    self.add(ticker)
        if self._slots:
            self._arm(min(self._slots))


async def beat(
    request: web.Request, wire: Wire, cadence: Cadence, streaming: bool, wheel: Wheel, stats: Stats
) -> tuple[web.StreamResponse, bool]:
    """Answer a call at a cadence; the second value is False if its client left early."""
    began = time.monotonic()
    usage = (wire.tokens_in, cadence.tokens)
    if not streaming:
        await asyncio.sleep((cadence.first_ms + cadence.inter_ms * (cadence.tokens - 1)) / 1e3)
        text = "".join(f"t{n}@{time.monotonic_ns()} " for n in range(cadence.tokens))
        stats.tokens += cadence.tokens
        return json_answer(200, wire.whole(text, "stop", usage)), True
    await asyncio.sleep(cadence.first_ms / 1e3)
    response = await open_stream(request)
    await response.write(wire.role())
    transport = request.transport
    if transport is None or transport.is_closing():
        return response, False
    await asyncio.sleep(0)  # lets the head leave the transport, so that tokens go straight out
    ticker = Ticker(transport, wire, cadence, began, stats)
    if not ticker.ended.done() and ticker.fire():
        wheel.add(ticker)
    if not await ticker.ended:
        return response, False
    await response.write(wire.tail("stop", usage))
    await response.write_eof()
    return response, True
