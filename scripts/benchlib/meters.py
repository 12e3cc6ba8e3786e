"""The parties of a measurement, and the clocks that say what each of them spent."""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from benchlib.processes import Server
from benchlib.turns import Cadence
from benchlib.wire import Client


@dataclass(kw_only=True)
class Bench:
    """What every scenario works with: the server, the provider, and a client for each."""

    server: Server
    provider: Client
    provider_admin: Client
    provider_pid: int
    client: Client

    async def set_cadence(self, cadence: Cadence) -> None:
        first, inter, tokens = cadence
        query = f"first_ms={first}&inter_ms={inter}&tokens={tokens}"
        (await self.provider_admin.call("POST", f"/admin/cadence?{query}")).json(200)
        (await self.provider_admin.call("POST", "/admin/reset")).json(200)

    async def provider_stats(self) -> dict[str, object]:
        return (await self.provider_admin.call("GET", "/admin/stats")).json(200)

    def origin(self, way: str) -> Client:
        return self.provider if way == "baseline" else self.client


@dataclass(frozen=True, kw_only=True)
class Costs:
    """CPU seconds of each party between two moments, and what others took of the machine."""

    server: float
    postgres: float
    provider: float
    client: float
    others_cores: float
    wall: float


class Meter:
    """Reads the processes' CPU clocks before and after."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._before = self._read()

    def _read(self) -> tuple[float, ...]:
        server, postgres = self._bench.server.cpu()
        provider = psutil.Process(self._bench.provider_pid).cpu_times()
        mine = os.times()
        machine = psutil.cpu_times()
        busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0)
        times = (server, postgres, provider.user + provider.system, mine.user + mine.system)
        return (*times, busy, time.monotonic())

    def costs(self) -> Costs:
        server, postgres, provider, client, busy, wall = (
            after - before for before, after in zip(self._before, self._read(), strict=True)
        )
        others = max(0.0, busy - server - postgres - provider - client) / wall
        return Costs(
            server=server,
            postgres=postgres,
            provider=provider,
            client=client,
            others_cores=others,
            wall=wall,
        )


@contextlib.contextmanager
def loop_lag() -> Iterator[list[float]]:
    """Collects how late this process's own loop runs (ms): a busy client is not a slow server."""
    lags: list[float] = []
    loop, step = asyncio.get_running_loop(), 0.02
    handle: asyncio.TimerHandle | None = None
    due = loop.time() + step

    def tick() -> None:
        nonlocal handle, due
        now = loop.time()
        lags.append(max(0.0, now - due) * 1e3)
        due = now + step
        handle = loop.call_at(due, tick)

    handle = loop.call_at(due, tick)
    gc.collect()
    gc.disable()
    try:
        yield lags
    finally:
        gc.enable()
        handle.cancel()
