"""Async tests with a fake Runtime API of their own."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.fakes.runtime_api import FakeRuntimeApi


def with_api(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test with a fake API as its first argument, on both event loops."""

    @functools.wraps(test)
    def sync(*, loop: str, **fixtures: Any) -> None:
        async def run() -> None:
            async with asyncio.timeout(30), FakeRuntimeApi() as api:
                await test(api, **fixtures)

        factory = uvloop.new_event_loop if loop == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())

    _, *rest = inspect.signature(test).parameters.values()
    own = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    sync.__signature__ = inspect.Signature([own, *rest])  # type: ignore[attr-defined]
    both: Callable[..., None] = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])(sync)
    return both
