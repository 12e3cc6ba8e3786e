"""The Lambda loop against a Runtime API that is read byte by byte."""

import asyncio
import base64
import contextvars
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chalicelib.stream.response import LambdaContext, Streamed
from chalicelib.stream.runtime import serve
from chalicelib.stream.runtime_api import RuntimeApiError
from tests.fakes.runtime_api import FakeRuntimeApi, patiently
from tests.fakes.stream_handler import SECRET
from tests.support.lambda_api import with_api

TEXT = [("Content-Type", "text/plain")]
PRELUDE = b'{"statusCode":200,"headers":{"content-type":"text/plain"},"cookies":[]}' + bytes(8)
ERROR = {
    "errorMessage": "The answer broke off in the middle; what came of it is void.",
    "stackTrace": [],
}


@asynccontextmanager
async def serving(
    api: FakeRuntimeApi, body: Callable[[], AsyncIterator[bytes]], **more: Any
) -> AsyncIterator[None]:
    """The loop at work with a handler that answers `body()`; waits for its end."""

    async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
        after = more["after"]() if "after" in more else None
        return Streamed(status=200, headers=TEXT, body=body(), after=after)

    async with loop_of(api, handler, more.get("invocations", 1)):
        yield


@asynccontextmanager
async def loop_of(api: FakeRuntimeApi, handler: Any, invocations: int) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(handler, api=api.address, invocations=invocations))
    try:
        yield
        await patiently(task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hello() -> AsyncIterator[bytes]:
    yield b"hello"


def error_in(trailers: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """The error's type, and its object out of the base64."""
    (first, error_type), (second, body) = trailers
    assert first == "Lambda-Runtime-Function-Error-Type"
    assert second == "Lambda-Runtime-Function-Error-Body"
    return error_type, json.loads(base64.b64decode(body, validate=True))


@with_api
async def test_answer_is_framed_to_the_byte(api: FakeRuntimeApi) -> None:
    """Lambda would refuse every answer, or hand its status, cookies or text on wrong."""

    async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
        async def body() -> AsyncIterator[bytes]:
            for piece in (b"data: \xc3\xa9\n\n", b"", b"\0\r\n0\r\n\r\n", b"x" * 300_000):
                yield piece

        headers = [
            ("Content-Type", "text/event-stream"),
            ("Set-Cookie", "a=1; Path=/"),
            ("Vary", "Accept"),
            ("vary", "Origin"),
            ("set-cookie", "b=2"),
            ("X-Text", "é\n"),
            ("Content-Length", "3"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close"),
        ]
        return Streamed(status=202, headers=headers, body=body())

    call = api.invoke({})
    async with loop_of(api, handler, 1):
        head = await call.head()
        chunks = await call.body()
        await call.closed()
    prelude = (
        b'{"statusCode":202,"headers":{"content-type":"text/event-stream","vary":"Accept, Origin",'
        b'"x-text":"\\u00e9\\n"},"cookies":["a=1; Path=/","b=2"]}\0\0\0\0\0\0\0\0'
    )
    assert (head.method, sorted(head.headers)) == (
        "POST",
        [
            ("Content-Type", "application/vnd.awslambda.http-integration-response"),
            ("Host", api.address),
            ("Lambda-Runtime-Function-Response-Mode", "streaming"),
            (
                "Trailer",
                "Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body",
            ),
            ("Transfer-Encoding", "chunked"),
        ],
    )
    assert chunks == [prelude, b"data: \xc3\xa9\n\n", b"\0\r\n0\r\n\r\n", b"x" * 300_000]
    assert call.raw == (
        b"%x\r\n%b\r\n" % (len(prelude), prelude)
        + b"a\r\ndata: \xc3\xa9\n\n\r\n"
        + b"8\r\n\0\r\n0\r\n\r\n\r\n"
        + b"493e0\r\n%b\r\n" % (b"x" * 300_000)
        + b"0\r\n\r\n"
    )
    assert await call.trailers() == []
    assert call.asked_on == call.answered_on == 1


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        pytest.param(200, [b"\n"], id="a-line-break-where-http-allows"),
        pytest.param(302, [b"\n"], id="redirect"),
        pytest.param(204, [], id="no-content-is-without-a-body"),
        pytest.param(304, [], id="not-modified-is-without-a-body"),
    ],
)
@with_api
async def test_empty_answer_ends_for_its_reader(
    api: FakeRuntimeApi, status: int, sent: list[bytes]
) -> None:
    """Function URLs are known never to end an empty answer: its reader would wait for minutes."""

    async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
        async def body() -> AsyncIterator[bytes]:
            yield b""

        return Streamed(status=status, headers=[], body=body())

    call = api.invoke({})
    async with loop_of(api, handler, 1):
        _, *body = await call.body()
    assert body == sent


@with_api
async def test_each_piece_is_on_the_wire_before_the_next_is_made(api: FakeRuntimeApi) -> None:
    """Tokens would reach the reader in clumps, or all at the end, instead of as they come."""
    gates = [asyncio.Event() for _ in range(3)]

    async def body() -> AsyncIterator[bytes]:
        for number, gate in enumerate(gates):
            await gate.wait()
            yield b"token %d" % number

    call = api.invoke({})
    async with serving(api, body):
        assert await call.chunk() == PRELUDE
        for number, gate in enumerate(gates):
            gate.set()
            assert await call.chunk() == b"token %d" % number
        assert await call.chunk() is None


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError(SECRET), id="value"),
        pytest.param(ConnectionResetError(SECRET), id="a-connection-that-is-not-lambdas"),
        pytest.param(asyncio.CancelledError(SECRET), id="something-it-awaited-was-cancelled"),
    ],
)
@with_api
async def test_failing_body_ends_in_error_trailers(
    api: FakeRuntimeApi, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """A cut answer would look whole, the exception's text would leak, or the function would die."""
    closed = []

    class Body:
        """Not a generator: those are closed by their own failure."""

        pieces = iter([b"data: 1\n\n"])

        def __aiter__(self) -> "Body":
            return self

        async def __anext__(self) -> bytes:
            for piece in self.pieces:
                return piece
            raise error

        async def aclose(self) -> None:
            closed.append("body")

    async def after() -> None:
        api.journal.append("after")

    first, second = api.invoke({}), api.invoke({})
    bodies = iter([Body, hello])
    async with serving(api, lambda: next(bodies)(), after=after, invocations=2):
        assert await first.body() == [PRELUDE, b"data: 1\n\n"]
        error_type, shape = error_in(await first.trailers())
        assert await second.body() == [PRELUDE, b"hello"]
        assert await second.trailers() == []
    name = type(error).__name__
    assert (error_type, shape) == (f"Function.{name}", {**ERROR, "errorType": name})
    assert closed == ["body"]
    assert api.journal.count("after") == 2
    assert [(r.levelname, r.action) for r in caplog.records] == [("ERROR", "body_failed")]  # type: ignore[attr-defined]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "event",
    [pytest.param({"fail": True}, id="it-raises"), pytest.param(b"{", id="an-event-not-json")],
)
@with_api
async def test_failing_handler_answers_500_in_our_shape(
    api: FakeRuntimeApi, event: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller would get Lambda's 502 without a code to branch on or a request id to quote."""

    async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
        raise RuntimeError(SECRET)

    first = api.invoke(event)
    async with loop_of(api, handler, 1):
        prelude, body = await first.body()
    head, nuls = json.loads(prelude[:-8]), prelude[-8:]
    assert (head["statusCode"], nuls) == (500, bytes(8))
    assert head["headers"] == {
        "content-type": "application/json",
        "x-request-id": first.request_id,
    }
    assert json.loads(body) == {
        "error": "Something went wrong on our side.",
        "code": "internal",
        "requestId": first.request_id,
    }
    assert [r.action for r in caplog.records] == ["handler_failed"]  # type: ignore[attr-defined]
    assert "hunter2" not in caplog.text


@with_api
async def test_invocations_share_a_process_and_nothing_else(
    api: FakeRuntimeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's identity or trace would leak into the next caller's request."""
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "left over")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "pal-stream")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen = []

    async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
        seen.append((event, context, tenant.get(), os.environ.get("_X_AMZN_TRACE_ID")))
        tenant.set("first")
        return Streamed(status=200, headers=TEXT, body=hello())

    told = {
        "Lambda-Runtime-Deadline-Ms": str(time.time_ns() // 1_000_000 + 60_000),
        "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-west-1:1:function:pal-stream",
        "Lambda-Runtime-Trace-Id": "Root=1-2-3;Sampled=1",
    }
    api.invoke({"n": 1, "é": "\0"}, told)
    second = api.invoke({"n": 2, "text": "x" * 500_000}, chunked=True)
    async with loop_of(api, handler, 2):
        assert await second.body() == [PRELUDE, b"hello"]
    (event, context, who, trace), (event_2, context_2, who_2, trace_2) = seen
    assert event == {"n": 1, "é": "\0"}
    assert context == LambdaContext(
        aws_request_id="request-1",
        deadline_ms=int(told["Lambda-Runtime-Deadline-Ms"]),
        invoked_function_arn=told["Lambda-Runtime-Invoked-Function-Arn"],
        trace_id=trace,
        function_name="pal-stream",
        memory_limit_in_mb=512,
    )
    assert 0 < context.get_remaining_time_in_millis() <= 60_000
    assert (who, trace) == ("nobody", "Root=1-2-3;Sampled=1")
    assert event_2 == {"n": 2, "text": "x" * 500_000}
    assert (context_2.trace_id, context_2.get_remaining_time_in_millis()) == (None, 0)
    assert (who_2, trace_2) == ("nobody", None)


@with_api
async def test_next_is_asked_only_when_the_work_after_the_answer_is_done(
    api: FakeRuntimeApi,
) -> None:
    """A frozen function would keep a reply's commit or compaction back until someone else calls."""
    gate = asyncio.Event()

    async def after() -> None:
        await gate.wait()
        api.journal.append("after")

    first, second = api.invoke({}), api.invoke({})
    async with serving(api, hello, after=after, invocations=2):
        await first.body()
        await first.closed()  # the caller does not wait for that work
        await api.round_trip()
        assert api.journal == ["next", "answer to request-1", "end of request-1"]
        gate.set()
        await second.body()
    assert api.journal[3:5] == ["after", "next"]
    assert (api.journal.count("after"), api.asked) == (2, 2)


@with_api
async def test_work_after_the_answer_does_not_wait_for_lambda(api: FakeRuntimeApi) -> None:
    """A caller who reads slowly would hold a session's turn open until the lease lapses."""
    api.acknowledge.clear()
    done = asyncio.Event()

    async def after() -> None:
        done.set()

    call = api.invoke({})
    async with serving(api, hello, after=after):
        await call.body()
        await patiently(done.wait())
        api.acknowledge.set()
        await call.closed()


@pytest.mark.parametrize("error", [ValueError(SECRET), asyncio.CancelledError(SECRET)])
@with_api
async def test_failing_work_after_the_answer_is_logged_and_survived(
    api: FakeRuntimeApi, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """One failed compaction would end the process and cost the next caller a cold start."""

    async def after() -> None:
        raise error

    first, second = api.invoke({}), api.invoke({})
    async with serving(api, hello, after=after, invocations=2):
        assert await first.trailers() == []
        assert await second.body() == [PRELUDE, b"hello"]
    assert [r.action for r in caplog.records] == ["after_failed"] * 2  # type: ignore[attr-defined]
    assert "hunter2" not in caplog.text


@with_api
async def test_caller_who_left_costs_the_turn_nothing(
    api: FakeRuntimeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """A turn whose reader hung up would never be stored, or the function would stop serving."""
    hung_up = asyncio.Event()
    made, closed = [], []

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await hung_up.wait()
            for number in range(2, 100):
                made.append(number)
                yield b"data: %d\n\n" % number
                await asyncio.sleep(0)
                await api.round_trip()
        finally:
            closed.append("body")

    async def after() -> None:
        api.journal.append("after")

    first, second = api.invoke({}), api.invoke({})
    bodies = iter([body, hello])
    async with serving(api, lambda: next(bodies)(), after=after, invocations=2):
        assert await first.chunk() == PRELUDE
        assert await first.chunk() == b"data: 1\n\n"
        first.hang_up()
        hung_up.set()
        assert await second.body() == [PRELUDE, b"hello"]
    assert closed == ["body"]
    assert len(made) < 4
    assert api.journal[:4] == ["next", "answer to request-1", "after", "next"]
    assert [r.action for r in caplog.records] == ["caller_gone"]  # type: ignore[attr-defined]


@with_api
async def test_question_for_an_invocation_is_repeated_when_its_connection_breaks(
    api: FakeRuntimeApi,
) -> None:
    """A thawed function whose connection died in the freeze would die with the caller's call."""
    api.break_next = 3
    call = api.invoke({})
    async with serving(api, hello):
        assert await call.body() == [PRELUDE, b"hello"]
    assert api.journal[:5] == ["next"] * 4 + ["answer to request-1"]


@with_api
async def test_loop_ends_when_the_runtime_api_refuses(api: FakeRuntimeApi) -> None:
    """A process Lambda has given up on would spin and bill instead of being replaced."""
    api.refuse_next = True
    with pytest.raises(RuntimeApiError, match="403"):
        async with serving(api, hello):
            pass
    assert api.asked == 1
