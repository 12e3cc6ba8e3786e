"""What the chain of providers costs by itself, beside two bare clients of the same vendor.

All three send the same request from this process, in turns. Sessions and database are not in it:
`load` has those.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import aiohttp
import orjson

from benchlib.figures import Figure, Spread, Table, spread_figures
from benchlib.processes import provider
from benchlib.turns import Cadence, Turn
from benchlib.wire import Client
from chalicelib.config import load_settings
from chalicelib.providers import ModelMessage, ModelRequest, Models, TextDelta
from chalicelib.providers.openai import to_wire

LIMIT_MS = 2.0
_MODEL = "bench"
_REQUEST = ModelRequest(
    system="You are bench, a helpful assistant.",
    messages=tuple(
        ModelMessage(
            role="user" if n % 2 == 0 else "assistant",
            content=f"Message {n}: how do things stand? A short answer will do.",
        )
        for n in range(21)
    ),
)

Way = Callable[[Turn], Awaitable[None]]


def _raw(client: Client) -> Way:
    body = to_wire(_REQUEST, provider="openai", model=_MODEL)

    async def turn(taken: Turn) -> None:
        def sink(_: bytes, data: bytes, at: int) -> None:
            if data != b"[DONE]":
                for choice in orjson.loads(data)["choices"]:
                    taken.delta(choice["delta"].get("content", ""), at)

        exchange = await client.start("POST", "/chat/completions", body=body, sink=sink)
        await exchange.ended

    return turn


def _aiohttp(http: aiohttp.ClientSession, url: str) -> Way:
    body = to_wire(_REQUEST, provider="openai", model=_MODEL)

    async def turn(taken: Turn) -> None:
        rest = b""
        async with http.post(f"{url}/chat/completions", json=body) as response:
            async for piece in response.content.iter_any():
                at = time.monotonic_ns()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        for choice in orjson.loads(line[6:])["choices"]:
                            taken.delta(choice["delta"].get("content", ""), at)

    return turn


def _chain(models: Models) -> Way:
    async def turn(taken: Turn) -> None:
        chain = await models.chain()
        async with aclosing(chain.stream(_REQUEST)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    taken.delta(event.text, time.monotonic_ns())

    return turn


class _Timed(Turn):
    """Knows what of its time was not the provider's."""

    _last_at = 0

    def delta(self, piece: str, at: int, seq: int | None = None) -> None:
        super().delta(piece, at, seq)
        self._last_at = at

    def own_ms(self, cadence: Cadence) -> float:
        """Until the first token was sent, less its due time, and from when the last one was."""
        if self.first_ms is None:
            return 0.0
        before = self.first_ms - self.late_ms[0] - cadence.first_ms
        after = self.took_ms - (self._last_at - self.began) / 1e6 + self.late_ms[-1]
        return before + after


class _Measured:
    """The turns of one way, and the CPU seconds that they took of this process."""

    def __init__(self) -> None:
        self.turns: list[_Timed] = []
        self.cpu = 0.0

    def own(self, cadence: Cadence) -> Spread:
        return Spread.of(one.own_ms(cadence) for one in self.turns)

    def first_over(self, cadence: Cadence) -> Spread:
        return Spread.of(
            one.first_ms - cadence.first_ms for one in self.turns if one.first_ms is not None
        )

    def late(self) -> Spread:
        return Spread.of(ms for one in self.turns for ms in one.late_ms)


async def _measure(ways: dict[str, Way], turns: int) -> dict[str, _Measured]:
    found = {name: _Measured() for name in ways}
    for number in range(turns + 3):
        for name, way in ways.items():
            taken, cpu = _Timed(), time.process_time()
            await way(taken)
            taken.end(taken.text)
            if number >= 3:  # what came before filled the caches
                found[name].turns.append(taken)
                found[name].cpu += time.process_time() - cpu
            await asyncio.sleep(0.002)  # so that no way pays for what the one before left behind
    return found


async def _at(
    admin: Client, ways: dict[str, Way], cadence: Cadence, turns: int, title: str
) -> Table:
    first, inter, tokens = cadence
    query = f"first_ms={first}&inter_ms={inter}&tokens={tokens}"
    (await admin.call("POST", f"/admin/cadence?{query}")).json(200)
    found = await _measure(ways, turns)
    measured = list(found.values())
    more = {
        name: statistics.median(
            ours.own_ms(cadence) - theirs.own_ms(cadence)
            for ours, theirs in zip(found["chain"].turns, found[name].turns, strict=True)
        )
        for name in ("raw", "aiohttp")
    }
    return Table(
        scenario="overhead",
        title=f"the chain alone, {turns} turns of {title}, cadence {cadence}",
        columns=list(ways),
        figures=[
            *spread_figures(
                "a turn besides the tokens, ms", [one.own(cadence) for one in measured], 3
            ),
            *spread_figures(
                "first token over the provider's, ms",
                [one.first_over(cadence) for one in measured],
                3,
            ),
            Figure(name="added to a delta, ms, p50", values=[one.late().p50 for one in measured]),
            Figure(
                name="CPU of all, ms a turn",
                values=[one.cpu * 1e3 / len(one.turns) for one in measured],
            ),
        ],
        remarks=[
            f"the chain's turn over that before it, p50: {more['raw']:+.2f} ms to the raw client, "
            f"{more['aiohttp']:+.2f} ms to bare aiohttp; the limit is {LIMIT_MS:g} ms"
        ],
        failures=[
            f"{name}, turn {n}: {wrong}"
            for name, one in found.items()
            for n, turn in enumerate(one.turns)
            if (wrong := turn.wrong(tokens))
        ][:5],
        parameters={"turns": turns, "cadence": cadence},
    )


async def overhead(turns: int = 100) -> list[Table]:
    """The chain's own time of a turn: at a model's cadence, and of a vendor that takes no time."""
    with provider() as (url, _):
        # as an operator would have it: the ones behind the first are there and are not asked
        models = Models(
            load_settings(
                {
                    "PAL_PROVIDERS": ",".join(f"openai:{_MODEL}{n}" for n in ("", "-2", "-3")),
                    "OPENAI_BASE_URL": url,
                    "OPENAI_API_KEY": "bench",
                }
            )
        )
        client, admin = Client(url), Client(url.removesuffix("/v1"))
        async with aiohttp.ClientSession() as http:
            ways = {"raw": _raw(client), "aiohttp": _aiohttp(http, url), "chain": _chain(models)}
            tables = [
                await _at(admin, ways, Cadence(20, 2, 50), turns, "50 tokens"),
                await _at(admin, ways, Cadence(0, 0, 50), 3 * turns, "50 tokens at once"),
            ]
        await models.close()
        for one in (client, admin):
            one.close()
        return tables
