"""What is done when a provider refuses reasoning that it has signed itself."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from chalicelib.errors import ProviderRejected
from chalicelib.providers.base import ModelEvent, ModelRequest, Provider

_log = logging.getLogger(__name__)


async def answer_with_reasoning(
    provider: Provider,
    request: ModelRequest,
    *,
    answer: Callable[[ModelRequest], AsyncGenerator[ModelEvent, None]],
    body: Callable[[ModelRequest], object],
) -> AsyncGenerator[ModelEvent, None]:
    """The answer; a request that is refused with reasoning in its `body` is sent without, once."""
    given = False
    try:
        async with aclosing(answer(request)) as events:
            async for event in events:
                given = True
                yield event
        return
    except ProviderRejected:
        bare = tuple(replace(message, reasoning=None) for message in request.messages)
        without = replace(request, messages=bare)
        # what it signed it may no longer know; kept in, it would be refused for ever
        if given or body(without) == body(request):
            raise
    _log.warning(
        "a request was refused with its reasoning; it is sent without",
        extra={"action": "reasoning_dropped", "provider": provider.name, "model": provider.model},
    )
    async with aclosing(answer(without)) as events:
        async for event in events:
            yield event
