"""The Anthropic adapter over real HTTP, against a server as strict as the vendor's."""

import asyncio
import base64
import gc
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import uvloop

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.anthropic import AnthropicProvider
from chalicelib.providers.base import (
    AttemptFailed,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderOptions,
    Reasoning,
    TextDelta,
    ToolCall,
    ToolSpec,
)
from chalicelib.providers.chain import Chain
from chalicelib.providers.history import PENDING_RESULT
from tests.fakes.anthropic_server import Call, FakeAnthropic, Reply
from tests.support.postgres import free_port

T = TypeVar("T")

KEY = "sk-ant-a-secret"
SECRET = "what the provider wrote"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()
LOOK = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
NOW = ToolSpec(name="now", description="", parameters={"type": "object"})


@pytest.fixture
def fake() -> Iterator[FakeAnthropic]:
    """The vendor, which lets in the test's key alone."""
    with FakeAnthropic(key=KEY) as made:
        yield made


def user(content: str, *attachments: dict[str, Any]) -> ModelMessage:
    return ModelMessage(role="user", content=content, attachments=attachments)


def said(content: str, *calls: ToolCall, reasoning: Reasoning | None = None) -> ModelMessage:
    return ModelMessage(role="assistant", content=content, tool_calls=calls, reasoning=reasoning)


def result(call_id: str, content: str) -> ModelMessage:
    return ModelMessage(role="tool", content=content, tool_call_id=call_id)


def asking(*messages: ModelMessage, **fields: Any) -> ModelRequest:
    return ModelRequest(
        **{"system": "Be kind.", "messages": messages or (user("hello"),), **fields}
    )


def adapter(base_url: str, *, name: str = "anthropic", key: str = KEY) -> AnthropicProvider:
    return AnthropicProvider(ProviderOptions(name=name, model="m", base_url=base_url, api_key=key))


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result, on production's loop; nothing may be left behind on it."""
    left: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: left.append(context))
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        made = runner.run(watched())
    gc.collect()
    assert left == []
    return made


def ask(
    provider: Provider, *requests: ModelRequest
) -> tuple[list[ModelEvent], ProviderError | None]:
    """The events of one answer after another and the error that ended them; closes the provider."""
    events: list[ModelEvent] = []

    async def call() -> ProviderError | None:
        try:
            for request in requests or (asking(),):
                async with aclosing(provider.stream(request)) as stream:
                    async for event in stream:
                        events.append(event)
        except ProviderError as exc:
            return exc
        finally:
            await provider.close()
        return None

    return events, run(call())


def text_of(events: Sequence[ModelEvent]) -> str:
    return "".join(one.text for one in events if isinstance(one, TextDelta))


def ends_of(events: Sequence[ModelEvent]) -> list[Finished]:
    return [one for one in events if isinstance(one, Finished)]


# ── an answer ────────────────────────────────────────────────────────────────────────────────


def test_answer_streams_with_what_it_cost(fake: FakeAnthropic) -> None:
    """Lost if red: every conversation."""
    fake.script(Reply(pieces=["café ", "你好 ", "🌍"], usage=(11, 3, 100, 20)))
    events, error = ask(adapter(fake.base_url + "/"))
    assert error is None
    assert events == [
        TextDelta(text="café "),
        TextDelta(text="你好 "),
        TextDelta(text="🌍"),
        Finished(
            reason="stop",
            provider="anthropic",
            model="m",
            tokens_in=131,
            tokens_out=3,
            tokens_cached=100,
            tokens_cache_written=20,
        ),
    ]
    sent = fake.requests[0]
    assert sent.path == "/v1/messages"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["accept"] == "text/event-stream"
    assert sent.headers["x-api-key"] == KEY
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert sent.body["system"] == "Be kind."


def test_answer_that_is_asked_for_whole_is_one_delta(fake: FakeAnthropic) -> None:
    """Lost if red: the tool loop, and whatever else does not stream."""
    fake.script(
        Reply(
            pieces=["Let me ", "look."],
            tool_calls=[Call("look", {"at": "é"}), Call("now", "")],
            thinking="hm",
            redacted=True,
            usage=(11, 3),
        )
    )
    events, error = ask(adapter(fake.base_url), asking(tools=(LOOK, NOW), stream=False))
    assert error is None
    assert events[0] == TextDelta(text="Let me look.")
    (end,) = ends_of(events)
    assert end == events[1]
    assert [(one.name, one.arguments) for one in end.tool_calls] == [
        ("look", '{"at":"é"}'),
        ("now", "{}"),
    ]
    assert (end.reason, end.tokens_in, end.tokens_out) == ("tool_calls", 11, 3)
    assert end.reasoning is not None
    assert [one["type"] for one in end.reasoning.blocks] == ["thinking", "redacted_thinking"]
    assert "stream" not in fake.requests[0].body
    assert fake.requests[0].headers["accept"] == "application/json"


def test_streamed_and_whole_answers_end_alike(fake: FakeAnthropic) -> None:
    """Lost if red: that a tool loop and a stream hear the same model."""
    reply = Reply(
        pieces=["So."], tool_calls=[Call("look", {"at": [1, 2]}, id="toolu_x")], usage=(1, 2, 3, 4)
    )
    fake.default(reply)
    events, error = ask(
        adapter(fake.base_url), asking(tools=(LOOK,)), asking(tools=(LOOK,), stream=False)
    )
    assert error is None
    assert events[:2] == events[2:]


def test_empty_answer_is_one(fake: FakeAnthropic) -> None:
    """Lost if red: the end of a turn in which the model had nothing more to say."""
    fake.default(Reply(pieces=[], usage=(1, 0)))
    events, error = ask(adapter(fake.base_url), asking(), asking(stream=False))
    assert error is None
    assert [one.reason for one in ends_of(events)] == ["stop", "stop"]
    assert text_of(events) == ""


STREAMED = (
    b'data: {"type":"message_start","message":{}}\n\n'
    b'data: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":"Hi"}}\n\n'
    b'data: {"type":"message_stop"}\n\n'
)
WHOLE = (
    b'{"type":"message","stop_reason":"end_turn","content":[{"type":"text","text":"Hi"},'
    b'{"type":"tool_use","id":"c1","name":"look","input":{"at":"x"}}]}'
)


@pytest.mark.parametrize(("raw", "stream"), [(STREAMED, False), (WHOLE, True)])
def test_answer_in_the_other_form_than_was_asked_for_is_read(
    fake: FakeAnthropic, raw: bytes, stream: bool
) -> None:
    """Lost if red: gateways that stream, or do not, whatever they are asked for."""
    fake.script(Reply(raw=raw))
    events, error = ask(adapter(fake.base_url), asking(stream=stream))
    assert error is None
    assert events[0] == TextDelta(text="Hi")
    assert [one.reason for one in ends_of(events)] == ["tool_calls" if raw == WHOLE else "stop"]


def test_answer_is_at_its_end_though_the_server_leaves_the_line_open(fake: FakeAnthropic) -> None:
    """Lost if red: every turn behind a proxy that is slow to let go."""
    end = b'data: {"type":"message_stop"}\n\n'
    held = Reply(raw=end + b": ping\n\n", raw_cuts=[len(end)], hold_at=1)
    fake.script(held)

    async def call() -> None:
        made = adapter(fake.base_url)
        async with aclosing(made.stream(asking())) as stream:
            assert isinstance(await anext(stream), Finished)
        held.gate.set()
        await made.close()

    run(call())


def test_delta_is_given_while_the_next_is_still_to_come(fake: FakeAnthropic) -> None:
    """Lost if red: streaming; everything would come at the end."""
    held = Reply(pieces=["a", "b"], hold_at=1)
    fake.script(held)

    async def call() -> None:
        made = adapter(fake.base_url)
        async with aclosing(made.stream(asking())) as stream:
            assert await anext(stream) == TextDelta(text="a")
            held.gate.set()
            assert await anext(stream) == TextDelta(text="b")
        await made.close()

    run(call())


def test_reader_who_leaves_early_leaves_the_provider(fake: FakeAnthropic) -> None:
    """Lost if red: the money for answers that a cancelled turn no longer wants."""
    held = Reply(pieces=["a", "b"], hold_at=1)
    fake.script(held)

    async def call() -> None:
        made = adapter(fake.base_url)
        async with aclosing(made.stream(asking())) as stream:
            await anext(stream)
        assert await asyncio.to_thread(held.gone.wait, 10)
        await made.close()

    run(call())


def test_equal_requests_have_one_idempotency_key(fake: FakeAnthropic) -> None:
    """Lost if red: that a repeated request is the same request."""
    made = adapter(fake.base_url)
    ask(made, asking(), asking(), asking(user("other")))
    first, again, other = (sent.headers["idempotency-key"] for sent in fake.requests)
    assert first == again != other


def test_key_is_sent_only_when_there_is_one() -> None:
    """Lost if red: gateways without keys, which refuse an empty one."""
    with FakeAnthropic() as open_to_all:
        _, error = ask(adapter(open_to_all.base_url, key=""))
        assert error is None
        assert "x-api-key" not in open_to_all.requests[0].headers


# ── tools, images, schemas ───────────────────────────────────────────────────────────────────


def test_tool_loop_goes_round_by_round(fake: FakeAnthropic) -> None:
    """Lost if red: tools: parallel calls, empty arguments in this turn and the next (TOL-2)."""
    fake.script(Reply(tool_calls=[Call("now", ""), Call("look", {"at": 1})]))
    events, _ = ask(adapter(fake.base_url), asking(tools=(LOOK, NOW)))
    calls = ends_of(events)[0].tool_calls
    assert [(one.name, one.arguments) for one in calls] == [("now", "{}"), ("look", '{"at":1}')]
    loop = (user("hello"), said("", *calls), *(result(one.id, "noon") for one in calls))
    later = (*loop, said("Noon."), user("thanks"))
    events, error = ask(
        adapter(fake.base_url),
        asking(*loop, tools=(LOOK, NOW)),
        asking(*loop, stream=False),
        asking(*later, tools=(LOOK, NOW)),
        asking(*later),
    )
    assert error is None
    assert fake.refused == []
    assert len(ends_of(events)) == 4


def test_broken_arguments_come_through_and_can_be_sent_again(fake: FakeAnthropic) -> None:
    """Lost if red: the session in which a model once wrote no JSON (TOL-2)."""
    fake.script(Reply(tool_calls=[Call("look", '{"at": ')]))
    events, _ = ask(adapter(fake.base_url), asking(tools=(LOOK,)))
    (call,) = ends_of(events)[0].tool_calls
    assert call.arguments == '{"at":'
    again = asking(user("a"), said("", call), result(call.id, "no JSON"), tools=(LOOK,))
    _, error = ask(adapter(fake.base_url), again)
    assert error is None


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((user("a"), user("b")), id="turn-that-failed"),
        pytest.param((said("hello"), user("a")), id="assistant-greets"),
        pytest.param((user("a"), said(" "), user("b")), id="blank-answer"),
        pytest.param((user("a"), said("b")), id="assistant-last"),
        pytest.param((result("gone", "x"), user("a")), id="orphaned-result"),
        pytest.param(
            (
                user("a"),
                said("", ToolCall(id="c1", name="look", arguments="{}")),
                result("c1", " "),
                user("b"),
            ),
            id="result-then-user",
        ),
        pytest.param(
            (user("a"), said("", ToolCall(id="c1", name="odd name!", arguments="[")), user("b")),
            id="open-call-of-no-tool",
        ),
    ],
)
@pytest.mark.parametrize("tools", [(), (LOOK,)], ids=["no-tools", "tools"])
def test_any_history_is_taken_by_the_strict_vendor(
    fake: FakeAnthropic, messages: tuple[ModelMessage, ...], tools: tuple[ToolSpec, ...]
) -> None:
    """Lost if red: the session, from then on (PRV-8, PRV-10, PRV-11)."""
    _, error = ask(adapter(fake.base_url), asking(*messages, tools=tools))
    assert fake.refused == []
    assert error is None


def test_message_while_an_approval_waits_is_answered(fake: FakeAnthropic) -> None:
    """Lost if red: the chat, until someone decides (TOL-5)."""
    calls = [ToolCall(id=one, name="look", arguments="{}") for one in ("c1", "c2")]
    open_one = (user("delete both"), said("", *calls), result("c1", "gone"), user("the time?"))
    _, error = ask(adapter(fake.base_url), asking(*open_one, tools=(LOOK,)))
    assert error is None
    results = fake.requests[0].body["messages"][2]["content"][:2]
    assert [one["content"] for one in results] == ["gone", PENDING_RESULT]


def test_image_reaches_the_vendor(fake: FakeAnthropic) -> None:
    """Lost if red: images."""
    inline = {"type": "image", "mediaType": "image/jpeg", "data": PNG}
    linked = {"type": "image", "mediaType": "image/png", "url": "https://example.com/a.png"}
    _, error = ask(adapter(fake.base_url), asking(user("this", inline, linked)))
    assert error is None
    kinds = [one["type"] for one in fake.requests[0].body["messages"][0]["content"]]
    assert kinds == ["text", "image", "image"]


def test_image_that_the_vendor_cannot_take_is_told_without_a_call(fake: FakeAnthropic) -> None:
    """Lost if red: an answer that the next provider would have given."""
    bitmap = {"type": "image", "mediaType": "image/bmp", "data": "Qk0="}
    events, error = ask(adapter(fake.base_url), asking(user("this", bitmap)))
    assert type(error) is ProviderUnsupported
    assert (events, fake.requests) == ([], [])


@pytest.mark.parametrize("fenced", ["%s", "```json\n%s\n```", "```\n%s\n```\n"])
def test_schema_is_answered_by_json_alone(fake: FakeAnthropic, fenced: str) -> None:
    """Lost if red: distillation."""
    fake.script(Reply(pieces=[fenced % '{"n": 1}']))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    events, error = ask(adapter(fake.base_url), asking(schema=schema, stream=False))
    assert error is None
    assert text_of(events) == '{"n": 1}'


# ── reasoning ────────────────────────────────────────────────────────────────────────────────


def test_reasoning_goes_back_to_who_signed_it_and_to_no_other(fake: FakeAnthropic) -> None:
    """Lost if red: failover amid a tool loop, and the vendor's thread of thought (PRV-7)."""
    fake.script(Reply(thinking="hm, é", redacted=True, tool_calls=[Call("look")]))
    events, _ = ask(adapter(fake.base_url), asking(tools=(LOOK,)))
    (end,) = ends_of(events)
    assert end.reasoning is not None
    loop = asking(
        user("hello"),
        said("", *end.tool_calls, reasoning=end.reasoning),
        result(end.tool_calls[0].id, "21"),
        tools=(LOOK,),
    )
    with FakeAnthropic(key=KEY) as other:
        fake.script(Reply(status=529))
        chain = Chain([adapter(fake.base_url), adapter(other.base_url, name="anthropic@b")])
        events, error = ask(chain, loop)
        assert error is None
        assert ends_of(events)[0].provider == "anthropic@b"
        assert other.refused == []
        kinds = [one["type"] for one in other.requests[0].body["messages"][1]["content"]]
        assert kinds == ["tool_use"]
    _, error = ask(adapter(fake.base_url), loop)
    assert error is None
    assert fake.refused == []
    sent = fake.requests[-1].body["messages"][1]["content"]
    assert [*sent[:2]] == [*end.reasoning.blocks]


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_that_its_issuer_forgot_is_left_out_of_a_second_try(
    fake: FakeAnthropic, stream: bool
) -> None:
    """Lost if red: the session, for ever; the same payload again is no second try (PRV-7)."""
    fake.script(Reply(thinking="hm", tool_calls=[Call("look")]))
    events, _ = ask(adapter(fake.base_url), asking(tools=(LOOK,)))
    (end,) = ends_of(events)
    fake.forget_signatures()
    loop = asking(
        user("hello"),
        said("", *end.tool_calls, reasoning=end.reasoning),
        result(end.tool_calls[0].id, "21"),
        tools=(LOOK,),
        stream=stream,
    )
    events, error = ask(adapter(fake.base_url), loop)
    assert error is None
    assert text_of(events).startswith("echo: ")
    assert len(fake.refused) == 1
    refused, taken = fake.requests[1:]
    assert refused.raw != taken.raw
    assert refused.headers["idempotency-key"] != taken.headers["idempotency-key"]


def test_request_without_reasoning_is_refused_once(fake: FakeAnthropic) -> None:
    """Lost if red: half of the calls in a failure that no second try mends."""
    fake.default(Reply(status=400))
    foreign = Reasoning(provider="anthropic@b", model="m", blocks=({"type": "thinking"},))
    _, error = ask(adapter(fake.base_url), asking(user("a"), said("b", reasoning=foreign)))
    assert type(error) is ProviderRejected
    assert len(fake.requests) == 1


# ── failures ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("status", "kind", "failure", "again"),
    [
        (400, "invalid_request_error", ProviderRejected, False),
        (413, "request_too_large", ProviderRejected, False),
        (401, "authentication_error", ProviderDenied, False),
        (402, "billing_error", ProviderDenied, False),
        (403, "permission_error", ProviderDenied, False),
        (404, "not_found_error", ProviderDenied, False),
        (429, "rate_limit_error", ProviderUnavailable, True),
        (500, "api_error", ProviderUnavailable, True),
        (504, "timeout_error", ProviderUnavailable, True),
        (529, "overloaded_error", ProviderUnavailable, True),
    ],
)
def test_status_says_whether_another_try_may_do_better(
    fake: FakeAnthropic,
    stream: bool,
    status: int,
    kind: str,
    failure: type[ProviderError],
    again: bool,
) -> None:
    """Lost if red: failover, or the end of it where every provider would refuse."""
    fake.script(Reply(status=status, error=SECRET))
    events, error = ask(adapter(fake.base_url), asking(stream=stream))
    assert events == []
    assert type(error) is failure
    assert error.message == f"anthropic:m answered {status} ({kind})."
    assert getattr(error, "again", False) is again


def test_wait_that_the_vendor_asks_for_is_told(fake: FakeAnthropic) -> None:
    """Lost if red: Retry-After; the same provider would be asked again at once."""
    fake.script(Reply(status=429, retry_after="7"))
    _, error = ask(adapter(fake.base_url))
    assert isinstance(error, ProviderUnavailable)
    assert error.wait == 7


def test_refused_key_is_no_matter_for_retries() -> None:
    """Lost if red: the reason, when a key is wrong."""
    with FakeAnthropic(key="another") as fake:
        _, error = ask(adapter(fake.base_url))
        assert type(error) is ProviderDenied
        assert KEY not in str(error)


FAULTS = [
    pytest.param(Reply(pieces=["a"], cut_after=0), id="reset"),
    pytest.param(Reply(pieces=["a"], truncate_after=0), id="truncated"),
    pytest.param(Reply(pieces=["a"], error_after=0), id="overloaded"),
    pytest.param(Reply(pieces=["a"], error_after=0, error_type="rate_limit_error"), id="limit"),
    pytest.param(Reply(pieces=["a"], error_after=0, error_type="api_error"), id="api-error"),
    pytest.param(Reply(pieces=["a"], error_after=0, error_type="a_new_one"), id="new-error"),
    pytest.param(
        Reply(pieces=["a"], error_after=0, error_type="authentication_error"), id="denied-inside"
    ),
    pytest.param(Reply(tool_calls=[Call("look")], cut_after=1), id="reset-after-a-call"),
    pytest.param(Reply(tool_calls=[Call("look")], truncate_after=1), id="truncated-after-a-call"),
    pytest.param(Reply(tool_calls=[Call("look")], error_after=1), id="error-after-a-call"),
    pytest.param(Reply(raw=b"<html>gateway</html>"), id="html"),
    pytest.param(Reply(raw=b"data: {\n\n"), id="garbage"),
    pytest.param(Reply(raw=b""), id="nothing"),
]


@pytest.mark.parametrize("reply", FAULTS)
def test_failure_before_the_first_delta_moves_on(fake: FakeAnthropic, reply: Reply) -> None:
    """Lost if red: one answer when one vendor fails; and that a call is not run twice (PRV-5)."""
    with FakeAnthropic(key=KEY) as other:
        fake.script(replace(reply))
        other.script(Reply(pieces=["whole"]))
        chain = Chain([adapter(fake.base_url), adapter(other.base_url, name="anthropic@b")])
        events, error = ask(chain, asking(tools=(LOOK,)))
    assert error is None
    assert [type(one) for one in events] == [AttemptFailed, TextDelta, Finished]
    assert text_of(events) == "whole"
    assert len(ends_of(events)) == 1
    assert ends_of(events)[0].tool_calls == ()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(pieces=["a", "b"], cut_after=1), id="reset"),
        pytest.param(Reply(pieces=["a", "b"], truncate_after=1), id="truncated"),
        pytest.param(Reply(pieces=["a", "b"], truncate_after=2), id="all-but-the-end"),
        pytest.param(Reply(pieces=["a", "b"], error_after=1), id="overloaded"),
    ],
)
def test_failure_after_the_first_delta_is_an_error(fake: FakeAnthropic, reply: Reply) -> None:
    """Lost if red: that half an answer is never taken for one (PRV-5)."""
    with FakeAnthropic(key=KEY) as other:
        fake.script(replace(reply))
        chain = Chain([adapter(fake.base_url), adapter(other.base_url, name="anthropic@b")])
        events, error = ask(chain)
        assert other.requests == []
    assert isinstance(error, ProviderUnavailable)
    assert "ab".startswith(text_of(events)) is True
    assert ends_of(events) == []


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(pieces=["a"], error_after=0, error_type="invalid_request_error")),
        pytest.param(Reply(status=400)),
    ],
    ids=["inside-a-200", "status"],
)
def test_rejection_ends_the_walk(fake: FakeAnthropic, reply: Reply) -> None:
    """Lost if red: time and money for a request that fails everywhere (PRV-3)."""
    with FakeAnthropic(key=KEY) as other:
        fake.script(reply)
        chain = Chain([adapter(fake.base_url), adapter(other.base_url, name="anthropic@b")])
        _, error = ask(chain)
        assert other.requests == []
    assert type(error) is ProviderRejected
    assert "invalid_request_error" in error.message
    assert "scripted" not in error.message
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(pieces=["a"], cut_after=0), id="reset"),
        pytest.param(Reply(pieces=["a"], truncate_after=0), id="truncated"),
        pytest.param(Reply(pieces=["a"], error_after=0), id="overloaded"),
        pytest.param(Reply(raw=b"<html>gateway</html>"), id="html"),
        pytest.param(Reply(raw=WHOLE.replace(b'"end_turn"', b"null")), id="no-end"),
        pytest.param(Reply(raw=WHOLE.replace(b'"x"', rb'"\ud800"')), id="odd-arguments"),
        pytest.param(Reply(raw=WHOLE[:-20]), id="half"),
    ],
)
def test_whole_answer_that_breaks_gives_nothing(fake: FakeAnthropic, reply: Reply) -> None:
    """Lost if red: the tool loop's failover."""
    fake.script(replace(reply))
    events, error = ask(adapter(fake.base_url), asking(stream=False))
    assert isinstance(error, ProviderUnavailable)
    assert events == []


def test_vendor_who_is_not_there_is_unavailable() -> None:
    """Lost if red: failover when a vendor is down altogether."""
    events, error = ask(adapter(f"http://127.0.0.1:{free_port()}"))
    assert type(error) is ProviderUnavailable
    assert events == []
    assert "127.0.0.1" not in str(error)


def test_stream_may_be_cut_anywhere_by_the_network(fake: FakeAnthropic) -> None:
    """Lost if red: letters, when the network cuts inside one (STR-1)."""
    fake.script(Reply(pieces=["café ", "你好 ", "🌍"], usage=(1, 3)))
    wanted, _ = ask(adapter(fake.base_url))
    delta = b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"'
    raw = b"".join(
        [
            b'event: message_start\r\ndata: {"type":"message_start","message":{"usage":',
            b'{"input_tokens":1}}}\r\n\r\n: ping\r\n\r\n',
            *(delta + one.encode() + b'"}}\n\n' for one in ("café ", "你好 ", "🌍")),
            b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":',
            b'{"output_tokens":3,"cache_read_input_tokens":0,"cache_creation_input_tokens":0}}\n\n',
        ]
    )
    fake.script(*(Reply(raw=raw, raw_cuts=range(at, len(raw), 5)) for at in range(1, 6)))
    for _ in range(5):
        events, error = ask(adapter(fake.base_url))
        assert error is None
        assert text_of(events) == text_of(wanted)
        assert ends_of(events) == ends_of(wanted)
