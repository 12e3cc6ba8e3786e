"""The Bedrock adapter where the service fails, and where its reader leaves."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
)
from chalicelib.providers.base import (
    Finished,
    TextDelta,
)
from tests.fakes.bedrock_driver import (
    WAITED,
    adapter,
    ask,
    asking,
    end_of,
    follow,
    no_threads,
    run,
    set_aws_variables,
    tells_nothing_it_should_not,
    text_of,
    threads,
)
from tests.fakes.bedrock_frames import error, event, exception
from tests.fakes.bedrock_server import NO_SUCH_MODEL, FakeBedrock, Reply
from tests.support.postgres import free_port
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """AWS's variables as a deploy has them."""
    set_aws_variables(monkeypatch, tmp_path)
    return monkeypatch


@pytest.fixture
def bedrock() -> Iterator[FakeBedrock]:
    """The service, which greets unless a test scripts it."""
    with FakeBedrock() as fake:
        yield fake


# ── faults ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "meaning", "told"),
    [
        pytest.param(
            Reply(status=400, code="ValidationException"),
            ProviderRejected,
            "answered 400 (ValidationException).",
            id="validation",
        ),
        pytest.param(
            Reply(status=403, code="AccessDeniedException"),
            ProviderDenied,
            "answered 403 (AccessDeniedException).",
            id="access",
        ),
        pytest.param(
            Reply(status=403, code="UnrecognizedClientException"),
            ProviderDenied,
            "answered 403 (UnrecognizedClientException).",
            id="unknown-key",
        ),
        pytest.param(
            Reply(status=429, code="ThrottlingException"),
            ProviderUnavailable,
            "answered 429 (ThrottlingException).",
            id="throttled",
        ),
        pytest.param(
            Reply(status=424, code="ModelErrorException"),
            ProviderUnavailable,
            "answered 424 (ModelErrorException).",
            id="model-error",
        ),
        pytest.param(
            Reply(status=408, code="ModelTimeoutException"),
            ProviderUnavailable,
            "answered 408 (ModelTimeoutException).",
            id="model-timeout",
        ),
        pytest.param(
            Reply(status=500, code="InternalServerException"),
            ProviderUnavailable,
            "answered 500 (InternalServerException).",
            id="internal",
        ),
        pytest.param(
            Reply(status=502, code="<html>"),
            ProviderUnavailable,
            "answered 502.",
            id="a-load-balancer",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_refusal_has_its_meaning(
    bedrock: FakeBedrock,
    reply: Reply,
    meaning: type[ProviderError],
    told: str,
    stream: bool,
) -> None:
    """Lost if red: the right next step, and whose fault it was."""
    bedrock.script(replace(reply))
    events, failed = ask(adapter(bedrock.base_url), asking(stream=stream))
    assert events == []
    assert type(failed) is meaning
    assert failed.message == f"bedrock:m {told}"
    assert len(bedrock.asked) == 1, "it is the chain that tries again"


def test_unknown_model_lets_the_next_one_try(bedrock: FakeBedrock) -> None:
    """Lost if red: the whole chain, for one wrong model id."""
    _, failed = ask(adapter(bedrock.base_url, model=NO_SUCH_MODEL))
    assert type(failed) is ProviderDenied
    assert failed.message.startswith(f"bedrock:{NO_SUCH_MODEL} is no model")


def test_service_says_when_to_come_back(bedrock: FakeBedrock) -> None:
    """Lost if red: `Retry-After`, where a gateway before the service sends it."""
    bedrock.script(Reply(status=429, code="ThrottlingException", retry_after="3"))
    _, failed = ask(adapter(bedrock.base_url))
    assert isinstance(failed, ProviderUnavailable)
    assert failed.wait == 3


LONGER = event("contentBlockDelta", {"delta": {"text": "x" * 99}, "contentBlockIndex": 0})
SPOILT = LONGER[:40] + b"?" + LONGER[41:]


@pytest.mark.parametrize(
    ("ends", "meaning", "told"),
    [
        pytest.param("early", ProviderUnavailable, "ended in the middle", id="truncated"),
        pytest.param(LONGER[:50], ProviderUnavailable, "ended in the middle", id="in-a-frame"),
        pytest.param("reset", ProviderUnavailable, "broke the connection", id="reset"),
        pytest.param("garbage", ProviderUnavailable, "sent what cannot be read", id="garbage"),
        pytest.param(SPOILT, ProviderUnavailable, "sent what cannot be read", id="checksum"),
        pytest.param(
            event("messageStop", {}),
            ProviderUnavailable,
            "sent what is no message",
            id="no-event",
        ),
        pytest.param(
            exception("modelStreamErrorException", {"message": "what the service wrote"}),
            ProviderUnavailable,
            "reported an error (ModelStreamErrorException)",
            id="model-stream-error",
        ),
        pytest.param(
            exception("throttlingException", {"message": "what the service wrote"}),
            ProviderUnavailable,
            "reported an error (ThrottlingException)",
            id="throttled",
        ),
        pytest.param(
            exception("validationException", {"message": "what the service wrote"}),
            ProviderRejected,
            "reported an error (ValidationException)",
            id="validation",
        ),
        pytest.param(
            exception("somethingNewException", {"message": "what the service wrote"}),
            ProviderUnavailable,
            "reported an error",
            id="something-new",
        ),
        pytest.param(
            error("internalError", "what the service wrote"),
            ProviderUnavailable,
            "reported an error (InternalError)",
            id="undescribed",
        ),
    ],
)
@pytest.mark.parametrize("frames", [0, 1, 3])
def test_answer_that_breaks_off_is_none(
    bedrock: FakeBedrock, ends: Any, meaning: type[ProviderError], told: str, frames: int
) -> None:
    """Lost if red: half an answer stored as a whole one, or a turn that never ends."""
    bedrock.script(Reply(pieces=["a", "b", "c"], ends_after=frames, ends=ends))
    events, failed = ask(adapter(bedrock.base_url))
    assert text_of(events) == "ab"[: max(0, frames - 1)]
    assert not any(isinstance(one, Finished) for one in events)
    assert type(failed) is meaning
    assert failed.message.startswith(f"bedrock:m {told}")
    assert tells_nothing_it_should_not(failed.message)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(Reply(ends_after=0), "sent what is no message", id="half-of-it"),
        pytest.param(Reply(ends_after=0, ends="reset"), "broke the connection", id="reset"),
        pytest.param(Reply(body=b"<html>"), "sent what is no message", id="garbage"),
        pytest.param(Reply(body=b"[]"), "", id="no-object"),
        pytest.param(Reply(body=b""), "sent what is no message", id="nothing"),
    ],
)
def test_whole_answer_that_is_none_is_told(bedrock: FakeBedrock, reply: Reply, told: str) -> None:
    """Lost if red: the same for the rounds of tools."""
    bedrock.script(replace(reply))
    events, failed = ask(adapter(bedrock.base_url), asking(stream=False))
    assert events == []
    assert type(failed) is ProviderUnavailable
    assert failed.message.startswith(f"bedrock:m {told}")
    assert tells_nothing_it_should_not(failed.message)


@pytest.mark.parametrize("ends", ["reset", "never", "garbage"])
def test_answer_that_is_told_is_not_spoilt_by_what_follows(bedrock: FakeBedrock, ends: Any) -> None:
    """Lost if red: good answers, for how a server ends its connections."""
    bedrock.script(Reply(ends_after=99, ends=ends))

    async def call() -> None:
        made = adapter(bedrock.base_url)
        async with asyncio.timeout(WAITED):
            events, failed = await follow(made, asking())
            assert failed is None
            assert text_of(events) == "Hello."
            assert end_of(events).tokens_in == 12
            await no_threads()
        await made.close()

    run(call())


def test_service_that_is_not_there_is_unavailable() -> None:
    """Lost if red: the next provider, when this one cannot be reached."""
    events, failed = ask(adapter(f"http://127.0.0.1:{free_port()}"))
    assert events == []
    assert type(failed) is ProviderUnavailable
    assert failed.message == "bedrock:m broke the connection."


# ── leaving ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "stream"),
    [
        pytest.param(lambda: Reply(pieces=["a", "b"], hold_at=2), True, id="between-two-pieces"),
        pytest.param(lambda: Reply(hang=True), True, id="before-the-answer"),
        pytest.param(lambda: Reply(hang=True), False, id="before-a-whole-answer"),
    ],
)
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_reader_who_leaves_early_leaves_the_service(
    bedrock: FakeBedrock, reply: Callable[[], Reply], stream: bool, how: str
) -> None:
    """Lost if red: tokens paid for and read by no one, and a thread for each that hangs."""
    left = reply()
    bedrock.script(left)

    async def call() -> None:
        made = adapter(bedrock.base_url)
        answer = made.stream(asking(stream=stream))
        if left.hold_at:
            assert await anext(answer) == TextDelta(text="a")
        reading = asyncio.ensure_future(anext(answer))
        assert await asyncio.to_thread(left.started.wait, WAITED)
        async with asyncio.timeout(WAITED):
            if how == "cancelled":
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            else:
                await made.close()
                with pytest.raises(ProviderUnavailable):
                    await reading
            await answer.aclose()
            await no_threads()
        assert await asyncio.to_thread(left.gone.wait, WAITED)
        await made.close()

    run(call())
    assert not left.finished.is_set()


def test_process_ends_while_a_call_waits(bedrock: FakeBedrock, root: Path) -> None:
    """Lost if red: deploys and restarts, which would wait for the slowest model."""
    bedrock.script(Reply(hang=True))
    program = (
        "import asyncio, sys, threading\n"
        "from tests.fakes.bedrock_driver import adapter, ask, threads\n"
        "made = adapter(sys.argv[1])\n"
        "threading.Thread(target=ask, args=(made,), daemon=True).start()\n"
        "sys.stdin.readline()\n"
        "assert threads() == ['bedrock']\n"
        "raise SystemExit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, bedrock.base_url], cwd=root, stdin=subprocess.PIPE
    ) as process:
        until(lambda: bedrock.asked)
        process.communicate(b"\n", timeout=WAITED)
    assert process.returncode == 7


def test_more_calls_than_threads_wait_for_their_turn(bedrock: FakeBedrock) -> None:
    """Lost if red: a bound on threads, or the calls beyond it."""
    held = [Reply(pieces=["a"], hold_at=1) for _ in range(105)]
    bedrock.script(*held)

    async def calls() -> None:
        made = adapter(bedrock.base_url)
        asked = [asyncio.ensure_future(follow(made, asking())) for _ in range(105)]
        async with asyncio.timeout(60):
            while len(bedrock.asked) < 100:
                await asyncio.sleep(0.01)
            assert len(threads()) == 100
            for one in held:
                one.gate.set()
            answers = await asyncio.gather(*asked)
        assert [text_of(events) for events, _ in answers] == ["a"] * 105
        await made.close()

    run(calls())
    assert len(bedrock.asked) == 105
