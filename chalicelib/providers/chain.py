"""Several providers as one: the first that begins to answer gives the whole answer.

A provider has one try and `retries` more. A repeat is the same request, so that body and
Idempotency-Key are the same, and comes after a short pause or the provider's own Retry-After.
There is none, and the next provider has its turn, when the failure says that trying again is in
vain (a timeout, a refused key), when the Retry-After is longer than `retry_wait`, or when the
breaker has opened and a later provider may be tried. The last one is given up by the same rules.

A provider whose breaker is open is left out, and has its turn when all others have failed: it may
be well again, and no answer fails while anyone was not asked.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from chalicelib.errors import ProviderDenied, ProviderUnavailable, ProviderUnsupported
from chalicelib.providers.base import AttemptFailed, ModelEvent, ModelRequest, Provider, TextDelta
from chalicelib.providers.link import Link

_log = logging.getLogger(__name__)

_PAUSE: Final = (0.1, 0.3)


class Chain:
    """Tries its providers in order until one has sent a delta; then there is no going back.

    A bare Provider is closed with the chain and never left out; a Link is its maker's to retire.
    `retry_wait` is the longest Retry-After, in seconds, that is waited for.
    """

    def __init__(
        self,
        providers: Sequence[Provider | Link],
        *,
        retries: int = 0,
        retry_wait: float = 2.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if not providers:
            raise ValueError("a chain needs a provider")
        self._links = tuple(one if isinstance(one, Link) else _linked(one) for one in providers)
        self._own = [link for link in self._links if link not in providers]
        self._retries, self._retry_wait = retries, retry_wait
        self._sleep, self._uniform = sleep, uniform
        self.name, self.model = providers[0].name, providers[0].model

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`. ProviderRejected ends the walk: it would be refused everywhere.

        When all fail, the error names the reason of each, and is ProviderUnsupported if no model
        of the chain could take the request.
        """
        failures: list[ProviderUnavailable] = []
        for link, pause in self._tries(failures):
            if pause:
                await self._sleep(pause)
            begun = False
            try:
                # closed with the chain, so that a reader who leaves frees the provider at once
                async with aclosing(link.stream(request)) as events:
                    async for event in events:
                        begun = begun or isinstance(event, TextDelta)
                        yield event
                return
            except ProviderUnavailable as exc:
                _tell(link, exc)
                if begun:
                    raise
                failures.append(exc)
            yield AttemptFailed(provider=link.name, model=link.model, reason=failures[-1].message)
        raise _all_of(failures)

    async def close(self) -> None:
        """Close the providers that were given bare."""
        for link in self._own:
            await link.retire()

    def _tries(self, failures: list[ProviderUnavailable]) -> Iterator[tuple[Link, float]]:
        """Each try to be made and the pause before it; between two, the caller adds a failure."""
        left_out: list[Link] = []
        for at, link in enumerate(self._links):
            if link.breaker.admits():
                yield from self._tries_of(link, self._links[at + 1 :], failures)
            else:
                left_out.append(link)
        for link in left_out:
            yield from self._tries_of(link, (), failures)

    def _tries_of(
        self, link: Link, later: Sequence[Link], failures: list[ProviderUnavailable]
    ) -> Iterator[tuple[Link, float]]:
        yield link, 0.0
        for _ in range(self._retries):
            failure = failures[-1]
            opened = not link.breaker.admits() and any(one.breaker.admits() for one in later)
            if opened or not failure.again or (failure.wait or 0.0) > self._retry_wait:
                return
            yield link, max(failure.wait or 0.0, self._uniform(*_PAUSE))


def _linked(provider: Provider) -> Link:
    return Link(lambda: provider, name=provider.name, model=provider.model)


def _all_of(failures: Sequence[ProviderUnavailable]) -> Exception:
    told = dict.fromkeys(one.message for one in failures)
    unsupported = all(isinstance(one, ProviderUnsupported) for one in failures)
    return (ProviderUnsupported if unsupported else ProviderUnavailable)(" ".join(told))


def _tell(link: Link, exc: ProviderUnavailable) -> None:
    denied = isinstance(exc, ProviderDenied)
    if denied and link.denied:
        return  # until it has worked again, once is enough
    link.denied = link.denied or denied
    _log.warning(
        "provider denied" if denied else "provider attempt failed",
        extra={
            "action": "provider_denied" if denied else "provider_attempt_failed",
            "provider": link.name,
            "model": link.model,
            "reason": exc.message,
        },
    )
