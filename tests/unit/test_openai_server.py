"""The fake provider's own promises, as a plain client sees them on the wire."""

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import pytest

from tests.fakes.openai_server import FakeOpenAI, Reply


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def call(fake: FakeOpenAI, *, stream: bool = True) -> tuple[int, bytes, str | None]:
    """Status, the body as far as it came, and the name of the error that cut it."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "zwei Wörter"}],
        "stream": stream,
        "stream_options": {"include_usage": True},
    }

    async def run() -> tuple[int, bytes, str | None]:
        url, got = f"{fake.base_url}/chat/completions", b""
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            try:
                async for data in response.content.iter_any():
                    got += data
            except aiohttp.ClientError as exc:
                return response.status, got, type(exc).__name__
            return response.status, got, None

    return asyncio.run(run())


def chunks(body: bytes) -> list[dict[str, object]]:
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def text(body: bytes) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks(body)
        for choice in chunk.get("choices", [])
    )


def test_unscripted_call_streams_the_echo_with_usage(fake):
    status, body, error = call(fake)
    assert (status, error, text(body)) == (200, None, "echo: zwei Wörter")
    role, *_, finish, usage = chunks(body)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 5)
    assert body.endswith(b"data: [DONE]\n\n")
    assert fake.requests[0].headers["content-type"] == "application/json"
    assert fake.requests[0].last_user == "zwei Wörter"


def test_call_without_stream_gets_one_object(fake):
    answer = json.loads(call(fake, stream=False)[1])
    assert answer["choices"][0]["message"]["content"] == "echo: zwei Wörter"


@pytest.mark.parametrize(
    ("reply", "status", "seen", "error"),
    [
        pytest.param(Reply(status=503, retry_after="2"), 503, "", None, id="status"),
        pytest.param(
            Reply(pieces=["a", "b"], cut_after=1), 200, "a", "ClientPayloadError", id="cut"
        ),
        pytest.param(Reply(pieces=["a", "b"], truncate_after=1), 200, "a", None, id="truncated"),
        pytest.param(Reply(pieces=["a", "b"], error_after=1), 200, "a", None, id="error-event"),
    ],
)
def test_failures(fake, reply, status, seen, error):
    fake.script(reply)
    got_status, body, got_error = call(fake)
    assert (got_status, got_error) == (status, error)
    assert status != 200 or text(body) == seen
    assert b"[DONE]" not in body
    assert call(fake)[0] == 200, "a script element is for one call"


def test_raw_bytes_go_out_verbatim(fake):
    fake.script(Reply(raw=b"data: \xc3\xa9\r\n\r\n:", raw_cuts=[7]))
    assert call(fake)[1] == b"data: \xc3\xa9\r\n\r\n:"


def test_held_stream_waits_for_its_gate_and_notices_a_client_that_left(fake):
    held, hanging = Reply(pieces=["a", "b"], hold_at=1), Reply(hang=True)
    fake.script(held, hanging)

    async def release() -> bytes:
        running = asyncio.create_task(asyncio.to_thread(call, fake))
        assert await asyncio.to_thread(held.held.wait, 5)
        assert not running.done()
        held.gate.set()
        return (await running)[1]

    assert text(asyncio.run(release())) == "ab"

    async def leave() -> None:
        async with aiohttp.ClientSession() as http:
            body = {"messages": []}
            post = asyncio.create_task(http.post(f"{fake.base_url}/chat/completions", json=body))
            assert await asyncio.to_thread(hanging.started.wait, 5)
            post.cancel()

    asyncio.run(leave())
    assert hanging.gone.wait(5)
    assert len(fake.wait_requests(2)) == 2
