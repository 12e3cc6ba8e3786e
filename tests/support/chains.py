"""Asking a chain of models in a test: one call, what came of it, and what the log says."""

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
import uvloop

from chalicelib.config import Settings, load_settings
from chalicelib.errors import ProviderError
from chalicelib.providers import (
    AttemptFailed,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Models,
    Provider,
    TextDelta,
)
from tests.fakes.openai_server import FakeOpenAI

T = TypeVar("T")
Answer = tuple[list[ModelEvent], ProviderError | None]

REQUEST = ModelRequest(system="", messages=(ModelMessage(role="user", content="hello"),))
PLATFORM_KEY = "sk-the-platforms"


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result, on the loop that production has; nothing may be left behind on it."""
    left: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: left.append(told))
        async with asyncio.timeout(30):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(watched())
    gc.collect()
    assert left == []
    return result


def settings_for(
    fake: FakeOpenAI, providers: str = "openai:one,openai:two", **more: str
) -> Settings:
    """Settings that lead to this fake, read from variables."""
    return load_settings(
        {
            "PAL_PROVIDERS": providers,
            "OPENAI_BASE_URL": fake.base_url,
            "OPENAI_API_KEY": PLATFORM_KEY,
            "PAL_PROVIDER_RETRIES": "0",
            **more,
        }
    )


async def follow(chain: Provider, request: ModelRequest = REQUEST) -> Answer:
    """The events of one answer and the error that ended it."""
    events: list[ModelEvent] = []
    try:
        async with aclosing(chain.stream(request)) as stream:
            async for event in stream:
                events.append(event)
    except ProviderError as exc:
        return events, exc
    return events, None


def ask(settings: Settings, *, times: int = 1, **chosen: Any) -> Answer:
    """The last answer of a chain of these settings; Models end with it."""

    async def call() -> Answer:
        models = Models(settings)
        try:
            for _ in range(times):
                answer = await follow(await models.chain(**chosen))
            return answer
        finally:
            await models.close()

    return run(call())


def text_of(events: Sequence[ModelEvent]) -> str:
    """The text that came."""
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def reasons(events: Sequence[ModelEvent]) -> list[str]:
    """Why attempts failed, in order."""
    return [one.reason for one in events if isinstance(one, AttemptFailed)]


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log's lines say that was done."""
    return [getattr(one, "action", "") for one in caplog.records]
