"""The Bedrock adapter over real HTTP: what it says and what it asks."""

import base64
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from chalicelib.errors import (
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.base import (
    Finished,
    ModelMessage,
    Reasoning,
    TextDelta,
    ToolCall,
)
from tests.fakes.bedrock_driver import (
    LOOK,
    adapter,
    ask,
    asking,
    end_of,
    follow,
    run,
    set_aws_variables,
    text_of,
)
from tests.fakes.bedrock_server import Call, FakeBedrock, Reply


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


# ── an answer ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
def test_answer_comes_with_what_it_cost(bedrock: FakeBedrock, stream: bool) -> None:
    """Lost if red: every conversation on Bedrock."""
    model = "arn:aws:bedrock:eu-central-1:111122223333:inference-profile/eu.amazon.nova:0"
    bedrock.script(Reply(pieces=["café ", "你好 ", "🌍"]))
    events, failed = ask(adapter(bedrock.base_url, model=model), asking(stream=stream))
    assert failed is None
    texts = ["café ", "你好 ", "🌍"] if stream else ["café 你好 🌍"]
    assert events == [
        *(TextDelta(text=text) for text in texts),
        Finished(reason="stop", provider="bedrock", model=model, tokens_in=12, tokens_out=3),
    ]
    (asked,) = bedrock.asked
    assert asked.model == model
    assert asked.operation == ("converse-stream" if stream else "converse")
    assert asked.body == {
        "system": [{"text": "Be kind."}],
        "messages": [{"role": "user", "content": [{"text": "Hi."}]}],
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
def test_calls_come_beside_each_other(
    bedrock: FakeBedrock, stream: bool, interleaved: bool
) -> None:
    """Lost if red: parallel tools."""
    calls = (
        Call(id="tooluse_1", name="look", pieces=['{"at":', ' "Zürich"}']),
        Call(id="tooluse_2", name="look"),
        Call(id="tooluse_3", name="look", pieces=["", "{", '"n": 1}']),
    )
    bedrock.script(Reply(calls=calls, stop="tool_use", interleaved=interleaved))
    events, _ = ask(adapter(bedrock.base_url), asking(tools=(LOOK,), stream=stream))
    assert text_of(events) == "Hello."
    assert end_of(events).reason == "tool_calls"
    told = [(one.id, one.name, one.arguments.replace(" ", "")) for one in end_of(events).tool_calls]
    assert told == [
        ("tooluse_1", "look", '{"at":"Zürich"}'),
        ("tooluse_2", "look", "{}"),
        ("tooluse_3", "look", '{"n":1}'),
    ]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_frames_may_be_cut_anywhere(bedrock: FakeBedrock, size: int) -> None:
    """Lost if red: answers over a slow or careful network."""
    call = Call(id="tooluse_1", name="look", pieces=['{"a": "é"}'])
    bedrock.script(Reply(pieces=["caf", "é 🌍"], calls=[call], stop="tool_use", write_size=size))
    events, failed = ask(adapter(bedrock.base_url), asking(tools=(LOOK,)))
    assert failed is None
    assert text_of(events) == "café 🌍"
    (told,) = end_of(events).tool_calls
    assert told.arguments == '{"a": "é"}'


def test_delta_is_given_while_the_next_is_still_to_come(bedrock: FakeBedrock) -> None:
    """Lost if red: streaming; everything would come at the end."""
    held = Reply(pieces=["a", "b"], hold_at=2)
    bedrock.script(held)

    async def call() -> None:
        made = adapter(bedrock.base_url)
        async with aclosing(made.stream(asking())) as stream:
            assert await anext(stream) == TextDelta(text="a")
            assert not held.gate.is_set()
            held.gate.set()
            assert await anext(stream) == TextDelta(text="b")
        await made.close()

    run(call())


def test_image_comes_as_it_was_sent(bedrock: FakeBedrock) -> None:
    """Lost if red: pictures."""
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256))).decode()
    image = {"type": "image", "mediaType": "image/png", "data": data}
    _, failed = ask(
        adapter(bedrock.base_url),
        asking(ModelMessage(role="user", content="", attachments=(image,))),
    )
    assert failed is None
    told = {"image": {"format": "png", "source": {"bytes": data}}}
    assert bedrock.asked[0].body["messages"][0]["content"] == [told]


def test_image_by_url_is_not_asked_about_at_all(bedrock: FakeBedrock) -> None:
    """Lost if red: an answer about a picture that nobody saw."""
    image = {"type": "image", "mediaType": "image/png", "url": "https://pictures.test/a.png"}
    events, failed = ask(
        adapter(bedrock.base_url),
        asking(ModelMessage(role="user", content="See.", attachments=(image,))),
    )
    assert events == []
    assert type(failed) is ProviderUnsupported
    assert failed.message == "bedrock:m cannot see images by URL, only such as are sent along."
    assert bedrock.asked == []


def test_json_asked_for_by_a_schema_comes_without_its_fence(bedrock: FakeBedrock) -> None:
    """Lost if red: distillates by models that fence their JSON."""
    bedrock.script(Reply(pieces=['```json\n{"a": 1}\n```']))
    asked = asking(schema={"type": "object"}, stream=False)
    events, _ = ask(adapter(bedrock.base_url), asked)
    assert text_of(events) == '{"a": 1}'


def test_connection_is_used_again(bedrock: FakeBedrock) -> None:
    """Lost if red: a TLS handshake for every turn."""

    async def call() -> None:
        made = adapter(bedrock.base_url)
        for stream in (True, False, True):
            events, _ = await follow(made, asking(stream=stream))
            assert text_of(events) == "Hello."
        await made.close()

    run(call())
    assert len({asked.peer for asked in bedrock.asked}) == 1


# ── history ──────────────────────────────────────────────────────────────────────────────────


def looked(*more: ModelMessage, reasoning: Reasoning | None = None) -> tuple[ModelMessage, ...]:
    call = ToolCall(id="call_1", name="look", arguments="{}")
    return (
        ModelMessage(role="user", content="Look."),
        ModelMessage(role="assistant", content="I look.", tool_calls=(call,), reasoning=reasoning),
        ModelMessage(role="tool", content="a wall", tool_call_id="call_1"),
        *more,
    )


def test_reasoning_goes_back_to_the_model_that_signed_it_and_to_no_other(
    bedrock: FakeBedrock,
) -> None:
    """PRV-7. Lost if red: every later turn of a session in which a model that thinks was down."""
    thinking = Reply(
        thoughts=["hm, ", "é"], signature="sig-of-a", redacted=b"\x00", stop="tool_use",
        calls=[Call(id="tooluse_1", name="look")],
    )  # fmt: skip
    bedrock.script(
        thinking, Reply(status=503, code="ServiceUnavailableException"), Reply(), Reply()
    )
    first = asking(tools=(LOOK,))

    async def calls() -> None:
        a, b = adapter(bedrock.base_url, model="a"), adapter(bedrock.base_url, model="b")
        events, _ = await follow(a, first)
        reasoning = end_of(events).reasoning
        assert reasoning is not None
        second = asking(*looked(reasoning=reasoning), tools=(LOOK,))
        assert type((await follow(a, second))[1]) is ProviderUnavailable
        for other in (b, a):
            events, failed = await follow(other, second)
            assert failed is None
            assert text_of(events) == "Hello."
            await other.close()

    run(calls())
    at_b, at_a = (one.body["messages"][1]["content"] for one in bedrock.asked[2:])
    assert [next(iter(block)) for block in at_b] == ["text", "toolUse"]
    assert at_a == [
        {"reasoningContent": {"reasoningText": {"text": "hm, é", "signature": "sig-of-a"}}},
        {"reasoningContent": {"redactedContent": base64.b64encode(b"\x00").decode()}},
        *at_b,
    ]
    assert bedrock.refused == []


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_that_its_signer_forgot_is_left_out(bedrock: FakeBedrock, stream: bool) -> None:
    """PRV-7. Lost if red: a session that is refused for ever after."""
    block = {"reasoningText": {"text": "hm", "signature": "forgotten"}}
    reasoning = Reasoning(provider="bedrock", model="m", blocks=(block,))
    asked = asking(*looked(reasoning=reasoning), tools=(LOOK,), stream=stream)
    events, failed = ask(adapter(bedrock.base_url), asked)
    assert failed is None
    assert text_of(events) == "Hello."
    first, second = bedrock.asked
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert len(bedrock.refused) == 1


def test_request_that_is_refused_anyway_is_not_sent_twice(bedrock: FakeBedrock) -> None:
    """Lost if red: every refusal, paid for twice."""
    bedrock.script(Reply(status=400, code="ValidationException"))
    _, failed = ask(adapter(bedrock.base_url), asking(*looked(), tools=(LOOK,)))
    assert type(failed) is ProviderRejected
    assert len(bedrock.asked) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_session_with_calls_is_answered_without_tools(bedrock: FakeBedrock, stream: bool) -> None:
    """PRV-8. Lost if red: the answer after the last round, summaries, distillates."""
    events, failed = ask(adapter(bedrock.base_url), asking(*looked(), stream=stream))
    assert failed is None
    assert text_of(events) == "Hello."
    assert bedrock.refused == []


def test_messages_in_a_row_are_one(bedrock: FakeBedrock) -> None:
    """PRV-10. Lost if red: a session after a turn that failed, and a burst of messages."""
    more = [ModelMessage(role="user", content=text) for text in ("Well?", "Tell me!")]
    _, failed = ask(adapter(bedrock.base_url), asking(*looked(*more), tools=(LOOK,)))
    assert failed is None
    assert bedrock.asked[0].body["messages"][-1]["content"] == [
        {"toolResult": {"toolUseId": "call_1", "content": [{"text": "a wall"}]}},
        {"text": "Well?"},
        {"text": "Tell me!"},
    ]


@pytest.mark.parametrize("length", [50, 51, 52])
def test_window_may_begin_anywhere(bedrock: FakeBedrock, length: int) -> None:
    """PRV-11. Lost if red: a session as soon as it is longer than the window."""
    whole = [*looked(ModelMessage(role="assistant", content="A wall.")) * 20][:length]
    newest = ModelMessage(role="user", content="And now?")
    window = [ModelMessage(role="assistant", content="Welcome."), *whole, newest][-50:]
    _, failed = ask(adapter(bedrock.base_url), asking(*window, tools=(LOOK,)))
    assert failed is None
    assert bedrock.asked[0].body["messages"][-1]["content"][-1] == {"text": "And now?"}
