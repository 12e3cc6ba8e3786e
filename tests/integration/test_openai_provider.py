"""The OpenAI adapter over real HTTP, alone and in a chain: what it says, asks and reports."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from chalicelib.config import Secret, Settings
from chalicelib.errors import ProviderError, ProviderRejected, ProviderUnavailable
from chalicelib.providers import (
    AttemptFailed,
    Chain,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    build_chain,
)
from chalicelib.providers.base import Provider
from chalicelib.providers.openai import OpenAIProvider
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.postgres import free_port

T = TypeVar("T")

KEY = "sk-a-secret"
BODY = "what the provider wrote"
WHOLE = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def asking(text: str = "hello") -> ModelRequest:
    return ModelRequest(system="Be kind.", messages=(ModelMessage(role="user", content=text),))


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result, on the loop that production has; nothing may be left behind on it.

    A future whose exception no one took, or a connection no one closed, is told here alone.
    """
    left: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: left.append(told))
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(watched())
    gc.collect()
    assert left == []
    return result


def adapter(
    base_url: str, *, model: str = "m", key: str = KEY, timeout: float = 20
) -> OpenAIProvider:
    return OpenAIProvider(
        ProviderOptions(model=model, base_url=base_url, api_key=key, timeout=timeout)
    )


async def follow(
    provider: Provider, request: ModelRequest
) -> tuple[list[ModelEvent], ProviderError | None]:
    """The events of one answer and the error that ended it."""
    events: list[ModelEvent] = []
    try:
        async with aclosing(provider.stream(request)) as stream:
            async for event in stream:
                events.append(event)
    except ProviderError as exc:
        return events, exc
    return events, None


def ask(
    provider: Provider, request: ModelRequest | None = None
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


def tells_nothing_it_should_not(message: str) -> bool:
    return not any(word in message for word in (KEY, BODY, "http", "127.0.0.1", "chat", "{"))


Answerer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Answers each request by what a test writes, and counts the connections."""

    def __init__(self, answer: Answerer) -> None:
        self._answer = answer
        self.connections = 0
        self.base_url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(length)
                await self._answer(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(answer: Answerer) -> AsyncIterator[RawServer]:
    made = RawServer(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def always(data: bytes, *, then_close: bool = False) -> Answerer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            await writer.drain()
            writer.close()

    return answer


# ── an answer ────────────────────────────────────────────────────────────────────────────────


def test_answer_streams_with_what_it_cost(provider: FakeOpenAI) -> None:
    """Lost if red: every conversation."""
    provider.script(Reply(pieces=["café ", "你好 ", "🌍"], usage=(11, 3)))
    events, error = ask(adapter(provider.base_url))
    assert error is None
    assert events == [
        TextDelta(text="café "),
        TextDelta(text="你好 "),
        TextDelta(text="🌍"),
        Finished(reason="stop", provider="openai", model="m", tokens_in=11, tokens_out=3),
    ]
    sent = provider.requests[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["accept"] == "text/event-stream"
    assert sent.body["model"] == "m"
    assert sent.body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
    ]


def test_delta_is_given_while_the_next_is_still_to_come(provider: FakeOpenAI) -> None:
    """Lost if red: streaming; everything would come at the end."""
    held = Reply(pieces=["a", "b"], hold_at=1)
    provider.script(held)

    async def call() -> None:
        made = adapter(provider.base_url)
        async with aclosing(made.stream(asking())) as stream:
            assert await anext(stream) == TextDelta(text="a")
            assert not held.gate.is_set()
            held.gate.set()
            assert await anext(stream) == TextDelta(text="b")
        await made.close()

    run(call())


def test_reader_who_leaves_early_leaves_the_provider(provider: FakeOpenAI) -> None:
    """Lost if red: tokens that are paid for and read by no one."""
    held = Reply(pieces=["a", "b"], hold_at=1)
    provider.script(held)

    async def call() -> None:
        made = Chain([adapter(provider.base_url)])
        stream = made.stream(asking())
        assert await anext(stream) == TextDelta(text="a")
        await stream.aclose()
        assert await asyncio.to_thread(held.gone.wait, 15)
        await made.close()

    run(call())
    assert not held.finished.is_set()


@pytest.mark.parametrize(
    ("key", "header"), [(KEY, f"Bearer {KEY}"), (Secret(KEY), f"Bearer {KEY}"), ("", None)]
)
def test_authorization_is_sent_only_when_there_is_a_key(
    provider: FakeOpenAI, key: str, header: str | None
) -> None:
    """Lost if red: local servers that refuse an empty key, or all others."""
    ask(adapter(provider.base_url, key=key))
    assert provider.requests[0].headers.get("authorization") == header


def test_equal_requests_have_one_idempotency_key_in_any_process(
    provider: FakeOpenAI, root: Path
) -> None:
    """Lost if red: a turn that is taken up by another process is paid for twice."""
    program = (
        "import asyncio, sys\n"
        "from tests.integration.test_openai_provider import adapter, asking, follow\n"
        "async def call():\n"
        "    made = adapter(sys.argv[1], key='another')\n"
        "    await follow(made, asking())\n"
        "    await made.close()\n"
        "asyncio.run(call())\n"
    )
    subprocess.run([sys.executable, "-c", program, provider.base_url], cwd=root, check=True)
    ask(adapter(provider.base_url))
    ask(adapter(provider.base_url, model="another"))
    ask(adapter(provider.base_url), asking("hello!"))
    there, here, *others = [one.headers["idempotency-key"] for one in provider.requests]
    assert there == here
    assert len({here, *others}) == 3


def test_connection_is_used_again_though_it_ends_after_the_answer() -> None:
    """Lost if red: a TLS handshake before the first token of every turn."""

    async def call() -> None:
        may_end = asyncio.Event()

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunked(WHOLE))
            await may_end.wait()
            writer.write(LAST_CHUNK)

        async with raw_server(answer) as server:
            made = adapter(server.base_url)
            for _ in range(3):
                may_end.clear()
                async with aclosing(made.stream(asking())) as stream:
                    assert await anext(stream) == TextDelta(text="Hi")
                    assert isinstance(await anext(stream), Finished), "told before the line ends"
                    may_end.set()
                    assert [event async for event in stream] == []
            await made.close()
            assert server.connections == 1

    run(call())


@pytest.mark.parametrize("end", ["stays-open", "closes", "resets", "garbage"])
def test_whole_answer_is_not_spoiled_by_how_its_line_ends(end: str) -> None:
    """Lost if red: good answers of servers and proxies that do not end a stream properly."""

    async def call() -> tuple[list[ModelEvent], int]:
        may_end = asyncio.Event()

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunked(WHOLE))
            await may_end.wait()
            if end == "closes":
                writer.close()
            elif end == "resets":
                writer.transport.abort()
            elif end == "garbage":
                writer.write(b"garbage\r\n")

        async with raw_server(answer) as server:
            made = adapter(server.base_url)
            events: list[ModelEvent] = []
            for _ in range(2):
                may_end.clear()
                async with aclosing(made.stream(asking())) as stream:
                    async for event in stream:
                        events.append(event)
                        if isinstance(event, Finished):
                            may_end.set()
            await made.close()
            return events, server.connections

    events, connections = run(call())
    assert text_of(events) == "HiHi"
    assert connections == 2, "what did not end well is not used again"


# ── failures ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, ProviderRejected) for status in (400, 404, 413, 422)),
        *((status, ProviderUnavailable) for status in (401, 403, 408, 409, 429)),
        *((status, ProviderUnavailable) for status in (500, 502, 503, 504, 520, 529, 201)),
    ],
)
def test_status_says_whether_another_provider_may_do_better(
    provider: FakeOpenAI, status: int, kind: type[ProviderError]
) -> None:
    """Lost if red: turns that the next provider would answer, or calls that no one will."""
    provider.script(Reply(status=status, error=BODY, error_code="some_code"))
    events, error = ask(adapter(provider.base_url))
    assert events == []
    assert type(error) is kind
    assert error.message == f"openai:m answered {status} (some_code)."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>" + BODY.encode(),
        b'{"error": "' + BODY.encode() + b'"}',
        b'{"error": {"code": "' + BODY.encode() + b'", "type": "{}"}}',
        b'{"error": {"code": ["x"], "type": null}}',
        b'{"error": {"code": "' + b"x" * 20_000 + b'"}}',
        b"[1]",
        b"\xff\0",
    ],
    ids=lambda body: repr(body[:40]),
)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "cut"])
def test_refusal_tells_its_status_and_nothing_of_its_text(body: bytes, whole: bool) -> None:
    """Lost if red: a vendor's text, which may hold the key or the prompt, in someone's chat."""
    length = len(body) if whole else len(body) + 10
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%b" % (length, body)

    async def call() -> ProviderError | None:
        async with raw_server(always(answer, then_close=not whole)) as server:
            made = adapter(server.base_url)
            try:
                return (await follow(made, asking()))[1]
            finally:
                await made.close()

    error = run(call())
    assert type(error) is ProviderRejected
    assert error.message == "openai:m answered 400."


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(Reply(pieces=["a"], cut_after=0), "broke the connection", id="cut"),
        pytest.param(
            Reply(pieces=["a"], truncate_after=0),
            "ended in the middle of its answer",
            id="truncated",
        ),
        pytest.param(
            Reply(pieces=["a"], error_after=0, error=BODY),
            "reported an error (server_error)",
            id="error-event",
        ),
        pytest.param(Reply(hang=True), "timed out", id="silent-from-the-start"),
        pytest.param(Reply(pieces=["a"], hold_at=0), "timed out", id="silent-after-its-head"),
        pytest.param(Reply(raw=b"data: <html>\n\n"), "sent what is no JSON", id="junk"),
    ],
)
def test_failure_is_named_without_its_secrets(
    provider: FakeOpenAI, reply: Reply, told: str
) -> None:
    """Lost if red: the turn hangs or ends in a 500, and the next provider is not tried."""
    provider.script(reply)
    events, error = ask(adapter(provider.base_url, timeout=0.2 if told == "timed out" else 20))
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == f"openai:m {told}."
    assert tells_nothing_it_should_not(error.message)


def test_silence_between_two_deltas_times_out_and_leaves(provider: FakeOpenAI) -> None:
    """Lost if red: a turn that waits for a dead provider until its own time is up."""
    held = Reply(pieces=["a", "b"], hold_at=1)
    provider.script(held)
    events, error = ask(adapter(provider.base_url, timeout=1))
    assert events == [TextDelta(text="a")]
    assert isinstance(error, ProviderUnavailable)
    assert error.message == "openai:m timed out."
    assert held.gone.wait(15)


def test_connection_refused_is_unavailable() -> None:
    """Lost if red: the chain does not walk on from a provider that is not there."""
    events, error = ask(adapter(f"http://127.0.0.1:{free_port()}/v1"))
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == "openai:m broke the connection."


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="closes-at-once"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another-protocol"),
        pytest.param(b"\0" * 100, id="zeros"),
        pytest.param(b"HTTP/1.1 200", id="half-a-head"),
        pytest.param(b"HTTP/1.1 abc OK\r\n\r\n", id="no-status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", id="huge-header"),
        pytest.param(HEAD + b"ZZ\r\nabc", id="no-chunk"),
        pytest.param(HEAD + b"100\r\ndata: ", id="half-a-chunk"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
            id="no-gzip",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
            id="two-lengths",
        ),
    ],
)
def test_garbage_for_http_is_unavailable(answer: bytes) -> None:
    """Lost if red: an exception of the HTTP library's, which no part of the system expects."""

    async def call() -> tuple[list[ModelEvent], ProviderError | None]:
        async with raw_server(always(answer, then_close=True)) as server:
            made = adapter(server.base_url)
            try:
                return await follow(made, asking())
            finally:
                await made.close()

    events, error = run(call())
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == "openai:m broke the connection."


# ── in a chain ───────────────────────────────────────────────────────────────────────────────


def chain_of_two(base_url: str, *, timeout: float = 20) -> Chain:
    first = adapter(base_url, model="first", timeout=timeout)
    return Chain([first, adapter(base_url, model="second")])


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(status=503), id="status"),
        pytest.param(Reply(status=401), id="no-right"),
        pytest.param(Reply(cut_after=0), id="cut"),
        pytest.param(Reply(truncate_after=0), id="truncated"),
        pytest.param(Reply(error_after=0), id="error-event"),
        pytest.param(Reply(hang=True), id="silent"),
        pytest.param(Reply(raw=b"data: <html>\n\n"), id="junk"),
    ],
)
def test_failure_before_the_first_delta_moves_on(provider: FakeOpenAI, reply: Reply) -> None:
    """PRV-3, PRV-5. Lost if red: every answer while the first vendor is down."""
    provider.script(reply, Reply(pieces=["the ", "answer"]))
    events, error = ask(chain_of_two(provider.base_url, timeout=0.2 if reply.hang else 20))
    assert error is None
    failed, *answer, end = events
    assert isinstance(failed, AttemptFailed)
    assert (failed.provider, failed.model) == ("openai", "first")
    assert failed.reason.startswith("openai:first ")
    assert tells_nothing_it_should_not(failed.reason)
    assert text_of(answer) == "the answer"
    assert isinstance(end, Finished)
    assert end.model == "second"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(pieces=["half ", "x"], hold_at=1, cut_after=1), id="cut"),
        pytest.param(Reply(pieces=["half ", "x"], hold_at=1, truncate_after=1), id="truncated"),
        pytest.param(Reply(pieces=["half ", "x"], hold_at=1, error_after=1), id="error-event"),
    ],
)
def test_failure_after_the_first_delta_does_not_move_on(provider: FakeOpenAI, reply: Reply) -> None:
    """PRV-5. Lost if red: half of one answer with the whole of another behind it."""
    provider.script(reply, Reply(pieces=["the ", "answer"]))

    async def call() -> None:
        chain = chain_of_two(provider.base_url)
        async with aclosing(chain.stream(asking())) as stream:
            assert await anext(stream) == TextDelta(text="half ")
            reply.gate.set()
            with pytest.raises(ProviderUnavailable, match=r"^openai:first "):
                await anext(stream)
        await chain.close()

    run(call())
    assert len(provider.requests) == 1


def test_rejection_ends_the_walk(provider: FakeOpenAI) -> None:
    """Lost if red: a request that is wrong is paid for at every provider."""
    provider.script(Reply(status=503), Reply(status=400), Reply())
    chain = Chain([adapter(provider.base_url, model=name) for name in ("a", "b", "c")])
    events, error = ask(chain)
    assert [type(one) for one in events] == [AttemptFailed]
    assert type(error) is ProviderRejected
    assert error.message == "openai:b answered 400 (invalid_request_error)."
    assert len(provider.requests) == 2


def test_error_of_a_chain_that_failed_names_each_attempt(provider: FakeOpenAI) -> None:
    """Lost if red: what to mend when nothing answers."""
    provider.script(Reply(status=429, error=BODY), Reply(truncate_after=0))
    events, error = ask(chain_of_two(provider.base_url))
    assert [one.model for one in events if isinstance(one, AttemptFailed)] == ["first", "second"]
    assert type(error) is ProviderUnavailable
    assert error.message == (
        "openai:first answered 429 (rate_limit_error)."
        " openai:second ended in the middle of its answer."
    )


class Endless:
    """Says one thing for ever, and knows whether it was left."""

    name = model = "endless"
    left = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        try:
            while True:
                yield TextDelta(text="on ")
        finally:
            self.left = True

    async def close(self) -> None:
        """Nothing to close."""


def test_chain_that_is_closed_has_closed_its_provider_by_then() -> None:
    """Lost if red: a stopped turn's call runs on until the garbage is collected."""

    async def call() -> None:
        endless = Endless()
        stream = Chain([endless]).stream(asking())
        await anext(stream)
        await stream.aclose()
        assert endless.left

    run(call())


def test_chain_is_made_of_the_settings(provider: FakeOpenAI) -> None:
    """Lost if red: the key, the URL or the order that an operator set."""
    settings = Settings(
        providers=(("openai", "first"), ("offline", "offline")),
        openai_base_url=provider.base_url + "/",
        openai_api_key=Secret(KEY),
    )
    provider.script(Reply(status=500))
    events, error = ask(build_chain(settings))
    assert error is None
    assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert isinstance(events[-1], Finished)
    assert events[-1].provider == "offline"
    assert text_of(events).endswith("You said: hello")
