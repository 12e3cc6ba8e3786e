"""The fake provider's own promises, as a plain client sees them on the wire."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.openai_server import Call, FakeOpenAI, Reply


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as fake:
        yield fake


def asking(*, stream: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "zwei Wörter"}],
        "stream": stream,
    }
    return {**body, "stream_options": {"include_usage": True}} if stream else body


def call(
    fake: FakeOpenAI, *, stream: bool = True, **fields: object
) -> tuple[int, bytes, str | None]:
    """Status, the body as far as it came, and the name of the error that cut it."""
    body = asking(stream=stream) | fields

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


def test_call_with_a_schema_gets_json_that_fits(fake):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = json.loads(call(fake, stream=False, response_format=form)[1])
    said = json.loads(answer["choices"][0]["message"]["content"])
    assert said == {"a": ["echo: zwei Wörter"]}


def test_tool_calls_come_in_fragments_or_whole(fake):
    calls = [Call("f", {"a": 1}, fragments=3), Call("g", None, id=None, index=None)]
    fake.script(*[Reply(tool_calls=calls)] * 2)
    deltas = [c["choices"][0] for c in chunks(call(fake)[1]) if c["choices"]]
    first, *rest, last, end = deltas[1:]
    entry = first["delta"]["tool_calls"][0]
    assert entry["index"] == 0
    assert entry["id"].startswith("call_")
    assert entry["function"] == {"name": "f", "arguments": ""}
    pieces = [one["delta"]["tool_calls"][0]["function"]["arguments"] for one in rest]
    assert pieces == ['{"a', '":1', "}"]
    assert last["delta"]["tool_calls"] == [{"type": "function", "function": {"name": "g"}}]
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")

    choice = json.loads(call(fake, stream=False)[1])["choices"][0]
    f, g = choice["message"]["tool_calls"]
    assert f["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert "index" not in f
    assert "id" not in g
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_request_that_no_strict_server_takes_is_refused_and_uses_up_no_reply(fake):
    fake.script(Reply(pieces=["scripted"]))
    status, body, _ = call(fake, messages=[{"role": "assistant", "content": "first"}])
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert fake.refused == [json.loads(body)["error"]["message"]]
    assert text(call(fake)[1]) == "scripted"
    assert len(fake.requests) == 2


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
            body = asking()
            post = asyncio.create_task(http.post(f"{fake.base_url}/chat/completions", json=body))
            assert await asyncio.to_thread(hanging.started.wait, 5)
            post.cancel()

    asyncio.run(leave())
    assert hanging.gone.wait(5)
    assert len(fake.wait_requests(2)) == 2
