"""Several providers as one: the first that begins to answer gives the whole answer."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from chalicelib.errors import ProviderUnavailable
from chalicelib.providers.base import AttemptFailed, ModelEvent, ModelRequest, Provider, TextDelta

_log = logging.getLogger(__name__)


class Chain:
    """Tries its providers in order until one has sent a delta; then there is no going back."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        if not providers:
            raise ValueError("a chain needs a provider")
        self._providers = tuple(providers)
        self.name, self.model = providers[0].name, providers[0].model

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`. ProviderRejected ends the walk: it would be refused everywhere."""
        reasons = []
        for provider in self._providers:
            begun = False
            try:
                # closed with the chain, so that a reader who leaves frees the provider at once
                async with aclosing(provider.stream(request)) as events:
                    async for event in events:
                        begun = begun or isinstance(event, TextDelta)
                        yield event
                return
            except ProviderUnavailable as exc:
                if begun:
                    raise
                reasons.append(exc.message)
                _log.warning(
                    "provider attempt failed",
                    extra={"action": "provider_attempt_failed", "provider": provider.name},
                )
                yield AttemptFailed(
                    provider=provider.name, model=provider.model, reason=exc.message
                )
        raise ProviderUnavailable(" ".join(reasons))

    async def close(self) -> None:
        """Close every provider."""
        for provider in self._providers:
            await provider.close()
