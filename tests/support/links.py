"""Providers at the port's seam that play scripts, the links and chains made of them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from chalicelib.errors import ProviderUnavailable
from chalicelib.providers import (
    AttemptFailed,
    Chain,
    Finished,
    ModelEvent,
    ModelRequest,
    Provider,
    TextDelta,
)
from chalicelib.providers.breaker import Breaker
from chalicelib.providers.link import Link, Patience
from tests.support.chains import REQUEST, Answer, follow, run

END = Finished(reason="stop", provider="p", model="m")


class Hang:
    """In a script: say nothing from here on."""


Script = Sequence[ModelEvent | Exception | type[Hang]]


class Scripted:
    """Plays a script a call; with none left, the last one again."""

    def __init__(self, model: str, *scripts: Script) -> None:
        self.name, self.model = "p", model
        self.scripts = list(scripts)
        self.asked: list[ModelRequest] = []
        self.silent = asyncio.Event()
        self.left = self.ended = 0
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            for one in script:
                if isinstance(one, Exception):
                    raise one
                if isinstance(one, type):
                    self.silent.set()
                    await asyncio.Event().wait()
                else:
                    yield one
            self.ended += 1
        finally:
            self.left += 1

    async def close(self) -> None:
        """See `Provider.close`."""
        self.closed = True


class Pauses:
    """Stands for the sleep and the dice: notes what was asked of them."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note it and go on."""
        self.slept.append(seconds)

    def chain(self, *providers: Provider | Link, retries: int = 1) -> Chain:
        """A chain with these; its dice show the most, its longest Retry-After is 2 s."""
        return Chain(
            providers, retries=retries, retry_wait=2.0, sleep=self.sleep, uniform=lambda a, b: b
        )


def down(model: str = "one", told: str = "is down", **more: Any) -> ProviderUnavailable:
    """The failure of a model that is down."""
    return ProviderUnavailable(f"p:{model} {told}.", **more)


def says(*texts: str) -> Script:
    """A whole answer."""
    return [*(TextDelta(text=text) for text in texts), END]


def link(provider: Scripted, *, breaker: Breaker | None = None, **patience: float) -> Link:
    """A link to this provider, which a chain does not close."""
    return Link(
        lambda: provider,
        name=provider.name,
        model=provider.model,
        breaker=breaker,
        patience=Patience(**patience),
    )


def opened(provider: Scripted) -> Link:
    """A link whose breaker is open."""
    made = link(provider, breaker=Breaker(failures=1, rest=100))
    made.breaker.failed(None)
    return made


def half_open(provider: Scripted) -> Link:
    """A link whose next try is its breaker's trial; failed, it rests."""
    now = [0.0]
    made = link(provider, breaker=Breaker(failures=1, rest=50, clock=lambda: now[0]))
    made.breaker.failed(None)
    now[0] = 50.0
    return made


def seen(events: list[ModelEvent]) -> str:
    """`!one ` for a failed try of model one, the text, `.` for the end."""
    told = {
        AttemptFailed: lambda one: f"!{one.model} ",
        TextDelta: lambda one: one.text,
        Finished: lambda one: ".",
    }
    return "".join(told[type(one)](one) for one in events)


def ask(chain: Provider, request: ModelRequest = REQUEST) -> Answer:
    """What comes of one call."""
    return run(follow(chain, request))
