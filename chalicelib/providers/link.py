"""One provider as chains have it: with its patience, its breaker, and what is known of it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from chalicelib.errors import ProviderRejected, ProviderUnavailable, ProviderUnsupported
from chalicelib.providers.base import Finished, ModelEvent, ModelRequest, Provider
from chalicelib.providers.breaker import Breaker
from chalicelib.providers.prices import cost_usd

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Longest waits, in seconds: for the first event, for each next one, for a whole answer."""

    first: float = 60.0
    idle: float = 30.0
    answer: float = 120.0


class Link:
    """Makes its provider when it is first asked; any number of chains share it.

    Retired, it still answers, and closes its connections when no answer is under way any more.
    """

    def __init__(
        self,
        make: Callable[[], Provider],
        *,
        name: str,
        model: str,
        patience: Patience | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.name, self.model, self.told = name, model, f"{name}:{model}"
        self.breaker = breaker or Breaker()
        self.denied = False  # and the log says so
        self._make, self._patience = make, patience or Patience()
        self._provider: Provider | None = None
        self._answers, self._retired = 0, False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """One try, timed and priced; its end is told to the breaker. See `Provider.stream`."""
        trial = self.breaker.begin()
        self._answers += 1
        try:
            if self._provider is None:
                self._provider = self._make()
            seconds = self._patience.first if request.stream else self._patience.answer
            async with aclosing(self._provider.stream(request)) as events:
                while event := await self._next(events, seconds):
                    if isinstance(event, Finished):
                        self._worked()
                        yield _priced(event)
                        await self._let_end(events)
                        return
                    yield event
                    seconds = self._patience.idle
            raise ProviderUnavailable(f"{self.told} ended in the middle of its answer.")
        except (ProviderUnsupported, ProviderRejected):
            raise  # the provider is well
        except ProviderUnavailable:
            self.breaker.failed(trial)
            raise
        except Exception as exc:
            self.breaker.failed(trial)
            # a fault of the adapter's; its text may hold a message, so only its kind is told
            _log.error(
                "provider broke",
                extra={
                    "action": "provider_broke",
                    "provider": self.name,
                    "model": self.model,
                    "error": type(exc).__name__,
                },
                exc_info=_log.isEnabledFor(logging.DEBUG),
            )
            told = f"{self.told} broke in an unforeseen way."
            raise ProviderUnavailable(told, again=False) from exc
        finally:
            self.breaker.ended(trial)
            self._answers -= 1
            await self._close_if_done()

    async def retire(self) -> None:
        """Close the connections, as soon as no answer is under way."""
        self._retired = True
        await self._close_if_done()

    async def _next(
        self, events: AsyncGenerator[ModelEvent, None], seconds: float
    ) -> ModelEvent | None:
        """The next event, None at the end; ProviderUnavailable if it does not come in time."""
        try:
            async with asyncio.timeout(seconds) as limit:
                return await anext(events)
        except StopAsyncIteration:
            return None
        except TimeoutError as exc:
            if not limit.expired():
                raise
            told = f"{self.told} sent nothing for {seconds:g} s."
            raise ProviderUnavailable(told, again=False) from exc

    async def _let_end(self, events: AsyncGenerator[ModelEvent, None]) -> None:
        # an adapter that runs to its end leaves its connection to the next call; the answer is
        # whole already, and nothing can spoil it
        with suppress(Exception):
            while await self._next(events, self._patience.idle):
                pass

    def _worked(self) -> None:
        self.breaker.succeeded()
        self.denied = False

    async def _close_if_done(self) -> None:
        if self._retired and not self._answers and self._provider is not None:
            provider, self._provider = self._provider, None
            await provider.close()


def _priced(end: Finished) -> Finished:
    cost = cost_usd(
        provider=end.provider,
        model=end.model,
        tokens_in=end.tokens_in,
        tokens_out=end.tokens_out,
        tokens_cached=end.tokens_cached,
        tokens_cache_written=end.tokens_cache_written,
        at=datetime.now(UTC).date(),
    )
    return replace(end, cost_usd=cost)
