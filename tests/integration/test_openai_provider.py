"""The OpenAI adapter over real HTTP, alone and in a chain: what it says, asks and reports."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from chalicelib import config
from chalicelib.config import Secret, Settings
from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
)
from chalicelib.providers.base import (
    AttemptFailed,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderOptions,
    TextDelta,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.chain import Chain
from chalicelib.providers.openai import OpenAIProvider
from tests.fakes.openai_server import Call, FakeOpenAI, Recorded, Reply
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


def asking(text: str = "hello", **fields: Any) -> ModelRequest:
    said = ModelMessage(role="user", content=text)
    return ModelRequest(system="Be kind.", messages=(said,), **fields)


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
    base_url: str, *, name: str = "openai", model: str = "m", key: str = KEY, **options: Any
) -> OpenAIProvider:
    return OpenAIProvider(
        ProviderOptions(name=name, model=model, base_url=base_url, api_key=key, **options)
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
    ask(adapter(provider.base_url, name="openai@another"))
    ask(adapter(provider.base_url), asking("hello!"))
    there, here, *others = [one.headers["idempotency-key"] for one in provider.requests]
    assert there == here
    assert len({here, *others}) == 4


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


@pytest.mark.parametrize("after", ["the-answer", "the-next-request"])
def test_connection_that_the_server_has_ended_is_replaced_unseen(after: str) -> None:
    """Lost if red: now and then a turn's first try, with servers that keep no connection long."""

    async def call() -> None:
        answered = 0

        async def answer(writer: asyncio.StreamWriter) -> None:
            nonlocal answered
            if answered % 2 == 0 or after == "the-answer":
                writer.write(HEAD + chunked(WHOLE) + LAST_CHUNK)
            if answered % 2 == 1 or after == "the-answer":
                await writer.drain()
                writer.close()
            answered += 1

        async with raw_server(answer) as server:
            made = adapter(server.base_url)
            for _ in range(3):
                events, error = await follow(made, asking())
                assert (error, text_of(events)) == (None, "Hi")
            await made.close()
            assert server.connections == 3

    run(call())


# ── failures ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, ProviderRejected) for status in (400, 413, 422)),
        *((status, ProviderDenied) for status in (401, 403, 404)),
        *((status, ProviderUnavailable) for status in (408, 409, 429, 500, 503, 529, 201)),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_status_says_whether_another_provider_may_do_better(
    provider: FakeOpenAI, status: int, kind: type[ProviderError], stream: bool
) -> None:
    """Lost if red: turns that the next provider would answer, or calls that no one will."""
    provider.script(Reply(status=status, error=BODY, error_code="some_code"))
    events, error = ask(adapter(provider.base_url, name="openai@x"), asking(stream=stream))
    assert events == []
    assert type(error) is kind
    assert error.message == f"openai@x:m answered {status} (some_code)."


def test_pause_that_a_server_asks_for_is_passed_on(provider: FakeOpenAI) -> None:
    """Lost if red: a provider at its limit is asked again at once, and refuses again."""
    provider.script(Reply(status=429, retry_after="7"), Reply(status=503))
    for wait in (7.0, None):
        _, error = ask(adapter(provider.base_url))
        assert isinstance(error, ProviderUnavailable)
        assert error.wait == wait


def test_redirect_is_not_followed(provider: FakeOpenAI) -> None:
    """Lost if red: the key and the conversation, to wherever an answer points."""
    told = provider.base_url + "/chat/completions"
    answer = f"HTTP/1.1 307 Temporary\r\nLocation: {told}\r\nContent-Length: 0\r\n\r\n".encode()

    async def call() -> ProviderError | None:
        async with raw_server(always(answer)) as server:
            made = adapter(server.base_url)
            try:
                return (await follow(made, asking()))[1]
            finally:
                await made.close()

    error = run(call())
    assert type(error) is ProviderDenied
    assert error.message == "openai:m answered 307."
    assert provider.requests == []


def test_refusal_whose_body_never_comes_is_one_by_its_status() -> None:
    """Lost if red: a turn that waits for the text of an error which it would not show."""
    answer = b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\nRetry-After: 3\r\n\r\n"

    async def call() -> ProviderError | None:
        async with raw_server(always(answer)) as server:
            made = adapter(server.base_url)
            try:
                return (await follow(made, asking()))[1]
            finally:
                await made.close()

    error = run(call())
    assert isinstance(error, ProviderUnavailable)
    assert (error.message, error.wait) == ("openai:m answered 503.", 3.0)


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
        pytest.param(Reply(raw=b"data: <html>\n\n"), "sent what is no JSON", id="junk"),
    ],
)
def test_failure_is_named_without_its_secrets(
    provider: FakeOpenAI, reply: Reply, told: str
) -> None:
    """Lost if red: the turn hangs or ends in a 500, and the next provider is not tried."""
    provider.script(reply)
    events, error = ask(adapter(provider.base_url))
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == f"openai:m {told}."
    assert tells_nothing_it_should_not(error.message)


def test_server_that_takes_no_connection_is_given_up_in_time() -> None:
    """Lost if red: every turn waits a minute for a provider that is not there."""

    async def call() -> ProviderError | None:
        # a full backlog: the connection is neither taken nor refused
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for one in (first, second):
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            base_url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
            made = adapter(base_url, connect_timeout=0.2)
            try:
                return (await follow(made, asking()))[1]
            finally:
                await made.close()

    error = run(call())
    assert isinstance(error, ProviderUnavailable)
    assert error.message == "openai:m timed out."
    assert not error.again


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
                assert server.connections == 1, "a new connection is asked but once"

    events, error = run(call())
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == "openai:m broke the connection."


def test_key_that_is_no_header_is_not_sent(provider: FakeOpenAI) -> None:
    """Lost if red: an exception of the HTTP library's, with the key in its text."""
    _, error = ask(adapter(provider.base_url, key=KEY + "\nX-Other: 1"))
    assert type(error) is ProviderDenied
    assert error.message == "openai:m was not called. Its key holds a control character."
    assert provider.requests == []


# ── at a tenant's own address ────────────────────────────────────────────────────────────────


@pytest.fixture
def allowed() -> Iterator[Callable[..., None]]:
    """Sets the hosts that an operator lets tenants call, for one test."""
    yield lambda *hosts: config.use(Settings(tool_private_hosts=hosts))
    config.use(None)


def test_tenants_address_must_be_public(provider: FakeOpenAI, allowed: Callable[..., None]) -> None:
    """Lost if red: what only this machine can reach, to whoever may name a base URL."""
    allowed()
    _, error = ask(adapter(provider.base_url, guarded=True))
    assert type(error) is ProviderDenied
    assert error.message.startswith("openai:m was not called. ")
    secure = provider.base_url.replace("http:", "https:")
    _, error = ask(adapter(secure, guarded=True))
    assert type(error) is ProviderDenied
    _, error = ask(adapter(secure.replace("127.0.0.1", "localhost"), guarded=True))
    assert type(error) is ProviderDenied
    _, error = ask(adapter("http://models.example.com/v1", guarded=True))
    assert type(error) is ProviderDenied
    assert error.message == "openai:m was not called. The URL must begin with https://."
    assert provider.requests == []


def test_tenants_address_that_the_operator_allows_is_called(
    provider: FakeOpenAI, allowed: Callable[..., None]
) -> None:
    """Lost if red: a model server in the house, for the tenants of the house."""
    allowed(provider.base_url.removeprefix("http://").removesuffix("/v1"))
    events, error = ask(adapter(provider.base_url, guarded=True))
    assert error is None
    assert text_of(events) == "echo: hello"


# ── whole answers, tools, schemas ────────────────────────────────────────────────────────────

CLOCK = ToolSpec(name="current_time", description="The time.", parameters={"type": "object"})
SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string"}},
    "required": ["topic"],
    "additionalProperties": False,
}


def test_answer_comes_whole_where_it_is_asked_for_whole(provider: FakeOpenAI) -> None:
    """Lost if red: every turn with tools."""
    provider.script(Reply(pieces=["the ", "answer"], usage=(11, 2, 8), finish_reason="length"))
    events, error = ask(adapter(provider.base_url), asking(stream=False))
    assert error is None
    assert events == [
        TextDelta(text="the answer"),
        Finished(
            reason="length",
            provider="openai",
            model="m",
            tokens_in=11,
            tokens_out=2,
            tokens_cached=8,
        ),
    ]
    assert provider.requests[0].headers["accept"] == "application/json"


def test_whole_answer_of_nothing_is_an_end_alone(provider: FakeOpenAI) -> None:
    """Lost if red: an empty delta, which the feed does not know."""
    provider.script(Reply(pieces=[]))
    events, error = ask(adapter(provider.base_url), asking(stream=False))
    assert error is None
    assert [type(event) for event in events] == [Finished]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("fragments", [0, 1, 2, 7])
def test_calls_and_the_turn_after_them(provider: FakeOpenAI, stream: bool, fragments: int) -> None:
    """TOL-1, TOL-2. Lost if red: tools; a strict server takes the history that they make."""
    provider.script(
        Reply(
            pieces=["I will look."],
            tool_calls=[
                Call("current_time", {"zone": "Asia/Jakarta"}, fragments=fragments),
                Call("current_time", "", fragments=fragments),
                Call("current_time", None, id=None),
                Call("current_time", '{"zone": ', fragments=fragments),
            ],
        ),
        Reply(pieces=["It is noon."]),
    )
    events, error = ask(adapter(provider.base_url), asking(tools=(CLOCK,), stream=stream))
    assert error is None
    assert text_of(events) == "I will look."
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason == "tool_calls"
    assert [call.arguments for call in end.tool_calls] == [
        '{"zone":"Asia/Jakarta"}',
        "{}",
        "{}",
        '{"zone": ',
    ]
    calls = tuple(
        ToolCall(id=f"call_{n}", name=call.name, arguments=call.arguments)
        for n, call in enumerate(end.tool_calls)
    )
    results = (
        ModelMessage(role="tool", content="noon", tool_call_id=call.id, is_error=call is calls[3])
        for call in calls
    )
    before = asking(tools=(CLOCK,), stream=stream)
    made = ModelMessage(role="assistant", content=text_of(events), tool_calls=calls)
    after = ModelRequest(
        system=before.system,
        messages=(*before.messages, made, *results),
        tools=(CLOCK,),
        stream=stream,
    )
    events, error = ask(adapter(provider.base_url), after)
    assert provider.refused == []
    assert error is None
    assert text_of(events) == "It is noon."


def test_server_that_does_not_do_as_it_is_asked_is_understood(provider: FakeOpenAI) -> None:
    """Lost if red: servers that stream always, or never."""
    provider.script(Reply(raw=WHOLE))
    events, error = ask(adapter(provider.base_url), asking(stream=False))
    assert (error, text_of(events)) == (None, "Hi")
    body = b'{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
    answer = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async def call() -> tuple[list[ModelEvent], ProviderError | None]:
        async with raw_server(always(answer)) as server:
            made = adapter(server.base_url)
            try:
                return await follow(made, asking())
            finally:
                await made.close()

    events, error = run(call())
    assert (error, text_of(events)) == (None, "Hi")


def test_schema_is_asked_for_and_its_json_given(provider: FakeOpenAI) -> None:
    """Lost if red: distillates and titles."""
    events, error = ask(adapter(provider.base_url), asking(schema=SCHEMA, stream=False))
    assert error is None
    assert json.loads(text_of(events)) == {"topic": "echo: hello"}
    assert provider.requests[0].body["response_format"]["json_schema"]["strict"] is True


def test_schema_that_a_server_does_not_know_is_told_in_words(provider: FakeOpenAI) -> None:
    """Lost if red: distillates with every server that has no structured outputs."""

    def older(recorded: Recorded) -> Reply:
        if "response_format" in recorded.body:
            return Reply(status=400)
        return Reply(pieces=['```json\n{"topic": "tea"}\n```'])

    provider.default(older)

    async def call() -> None:
        made = adapter(provider.base_url)
        for requests in (2, 3):
            events, error = await follow(made, asking(schema=SCHEMA, stream=False))
            assert error is None
            assert text_of(events) == '{"topic": "tea"}'
            assert len(provider.requests) == requests, "it is remembered"
        await made.close()

    run(call())
    system = provider.requests[-1].body["messages"][0]["content"]
    assert system.startswith("Be kind.\n\n")
    assert json.dumps(SCHEMA, separators=(",", ":")) in system


def test_request_that_is_refused_either_way_is_refused(provider: FakeOpenAI) -> None:
    """Lost if red: a wrong request goes on and on."""
    provider.default(Reply(status=400))

    async def call() -> None:
        made = adapter(provider.base_url)
        for _ in range(2):
            events, error = await follow(made, asking(schema=SCHEMA, stream=False))
            assert events == []
            assert type(error) is ProviderRejected
        _, error = await follow(made, asking())
        assert type(error) is ProviderRejected
        await made.close()

    run(call())
    assert len(provider.requests) == 2 + 2 + 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_answer_without_an_end_in_sight_is_given_up(stream: bool) -> None:
    """Lost if red: a process and all its turns, to one server that never stops."""
    head = HEAD if stream else HEAD.replace(b"text/event-stream", b"text/plain")
    piece = chunked(b": " + b"x" * 1_000_000)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    async def call() -> tuple[list[ModelEvent], ProviderError | None]:
        async with raw_server(answer) as server:
            made = adapter(server.base_url)
            try:
                return await follow(made, asking(stream=stream))
            finally:
                await made.close()

    events, error = run(call())
    assert events == []
    assert type(error) is ProviderUnavailable
    assert error.message == "openai:m sent more than an answer holds."


# ── in a chain ───────────────────────────────────────────────────────────────────────────────


def chain_of_two(base_url: str) -> Chain:
    return Chain([adapter(base_url, model="first"), adapter(base_url, model="second")])


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(status=503), id="status"),
        pytest.param(Reply(status=401), id="no-right"),
        pytest.param(Reply(status=404), id="no-such-model"),
        pytest.param(Reply(cut_after=0), id="cut"),
        pytest.param(Reply(truncate_after=0), id="truncated"),
        pytest.param(Reply(error_after=0), id="error-event"),
        pytest.param(Reply(raw=b"data: <html>\n\n"), id="junk"),
        pytest.param(Reply(tool_calls=[Call("current_time")], cut_after=0), id="cut-after-a-call"),
    ],
)
def test_failure_before_the_first_delta_moves_on(provider: FakeOpenAI, reply: Reply) -> None:
    """PRV-3, PRV-5. Lost if red: every answer while the first vendor is down."""
    provider.script(reply, Reply(pieces=["the ", "answer"]))
    events, error = ask(chain_of_two(provider.base_url), asking(tools=(CLOCK,)))
    assert error is None
    failed, *answer, end = events
    assert isinstance(failed, AttemptFailed)
    assert (failed.provider, failed.model) == ("openai", "first")
    assert failed.reason.startswith("openai:first ")
    assert tells_nothing_it_should_not(failed.reason)
    assert text_of(answer) == "the answer"
    assert isinstance(end, Finished)
    assert end.model == "second"
    assert end.tool_calls == (), "a call of the answer that broke is not made"


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
