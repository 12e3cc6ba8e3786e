"""What the tests of the Bedrock adapter share: AWS's variables, and an adapter that is driven."""

import asyncio
import gc
import os
import threading
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from chalicelib.errors import ProviderError
from chalicelib.providers.base import (
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    ToolSpec,
)
from chalicelib.providers.bedrock import BedrockProvider

T = TypeVar("T")

KEY = "ABSK-a-secret"
ACCESS, SECRET = "AKIAEXAMPLE", "a/secret/of/aws"
LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
WAITED = 15.0  # what is awaited comes at once or never


def set_aws_variables(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """AWS's variables as a deploy has them, and none of this machine's."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result, on the loop that production has; nothing may be left behind on it."""
    left: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: left.append(told))
        async with asyncio.timeout(90):  # uvloop would not hear pytest's own alarm
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(watched())
    gc.collect()
    assert left == []
    return result


def adapter(base_url: str, *, model: str = "m", **options: Any) -> BedrockProvider:
    return BedrockProvider(
        ProviderOptions(name="bedrock", model=model, base_url=base_url, **options)
    )


def asking(*messages: ModelMessage, **fields: Any) -> ModelRequest:
    said = messages or (ModelMessage(role="user", content="Hi."),)
    return ModelRequest(**({"system": "Be kind.", "messages": said} | fields))


async def follow(
    provider: BedrockProvider, request: ModelRequest
) -> tuple[list[ModelEvent], ProviderError | None]:
    """The events of one answer and the error that ended it."""
    events: list[ModelEvent] = []
    try:
        async with aclosing(provider.stream(request)) as stream:
            async for one in stream:
                events.append(one)
    except ProviderError as exc:
        return events, exc
    return events, None


def ask(
    provider: BedrockProvider, request: ModelRequest | None = None
) -> tuple[list[ModelEvent], ProviderError | None]:
    """The same as a whole call, with the provider's end."""

    async def call() -> tuple[list[ModelEvent], ProviderError | None]:
        try:
            return await follow(provider, request or asking())
        finally:
            await provider.close()

    return run(call())


def text_of(events: list[ModelEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def end_of(events: list[ModelEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def tells_nothing_it_should_not(message: str) -> bool:
    secrets = (KEY, ACCESS, SECRET, "what the service wrote", "http", "127.0.0.1", "{", "\n")
    return not any(word in message for word in secrets)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "bedrock"]


async def no_threads() -> None:
    """Return once no call has a thread any more."""
    while threads():
        await asyncio.sleep(0.01)
