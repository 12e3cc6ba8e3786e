"""A provider at the port's seam that says what a test hands it, when the test hands it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from chalicelib.providers import Finished, ModelEvent, ModelRequest, Provider, TextDelta


class ScriptedProvider:
    """Say pieces with `say`, end the reply with `finish`; remembers what it was asked."""

    name = "scripted"
    model = "scripted"

    def __init__(self) -> None:
        self.asked: list[ModelRequest] = []
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._said: asyncio.Queue[None] = asyncio.Queue()

    async def say(self, text: str) -> None:
        """Stream this piece; returns when the engine has taken it."""
        await self._pieces.put(text)
        await self._said.get()

    async def finish(self) -> None:
        """End the reply."""
        await self._pieces.put(None)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked.append(request)
        while (text := await self._pieces.get()) is not None:
            yield TextDelta(text=text)
            self._said.put_nowait(None)
        yield Finished(reason="stop", provider=self.name, model=self.model)

    async def close(self) -> None:
        """Nothing to close."""


class FixedModels:
    """In place of `Models`: every chain is this provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def chain(self, **_: Any) -> Provider:
        """The provider, whatever was asked for."""
        return self._provider
