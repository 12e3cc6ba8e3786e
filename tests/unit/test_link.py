"""One try of a provider in a chain: its timeouts, its end, and whose its connections are."""

import asyncio

import pytest

from chalicelib.providers import AttemptFailed, Chain, Finished, ModelRequest, TextDelta
from tests.support.chains import REQUEST, follow, run
from tests.support.links import (
    END,
    Hang,
    Pauses,
    Script,
    Scripted,
    ask,
    down,
    half_open,
    link,
    says,
    seen,
)

WHOLE = ModelRequest(system="", messages=REQUEST.messages, stream=False)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


# ── timeouts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_", "patience", "told"),
    [
        pytest.param(REQUEST, {"first": 0.05}, "0.05", id="first-token"),
        pytest.param(WHOLE, {"answer": 0.04, "first": 0.01}, "0.04", id="whole-answer"),
    ],
)
def test_provider_that_says_nothing_is_left_without_a_repeat(
    pauses: Pauses, request_: ModelRequest, patience: dict[str, float], told: str
) -> None:
    """Lost if red: a turn hangs as long as its provider does, twice."""
    one, two = Scripted("one", [Hang]), Scripted("two", says("hi"))
    events, error = ask(pauses.chain(link(one, **patience), two), request_)
    assert (seen(events), error, one.left) == ("!one hi.", None, 1)
    assert events[0] == AttemptFailed(
        provider="p", model="one", reason=f"p:one sent nothing for {told} s."
    )


def test_provider_that_stalls_amid_its_answer_ends_it(pauses: Pauses) -> None:
    """Lost if red: half an answer, and a turn that hangs on it."""
    one = Scripted("one", [TextDelta(text="half "), Hang])
    events, error = ask(pauses.chain(link(one, idle=0.05), Scripted("two", says("no"))))
    assert seen(events) == "half "
    assert error is not None
    assert error.message == "p:one sent nothing for 0.05 s."
    assert one.left == 1


def test_timeout_that_is_the_adapters_own_is_no_silence(pauses: Pauses) -> None:
    """Lost if red: a fault of an adapter, told as its provider's silence."""
    one = Scripted("one", [TimeoutError("not ours")])
    _, error = ask(pauses.chain(one))
    assert error is not None
    assert error.message == "p:one broke in an unforeseen way."


# ── the end ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([down()], id="failure"),
        pytest.param([ValueError()], id="fault"),
        pytest.param([Hang], id="silence"),
        pytest.param([TextDelta(text="more")], id="more-text"),
    ],
)
def test_nothing_spoils_an_answer_that_is_whole(pauses: Pauses, after: Script) -> None:
    """Lost if red: an answer that came whole, thrown away for what its connection does then."""
    one = Scripted("one", [TextDelta(text="hi"), END, *after])
    events, error = ask(pauses.chain(link(one, idle=0.05)))
    assert (seen(events), error, one.left) == ("hi.", None, 1)


def test_adapter_runs_to_its_end(pauses: Pauses) -> None:
    """Lost if red: a new connection, with its handshakes, for every turn."""
    one = Scripted("one", says("hi"))
    ask(pauses.chain(one))
    assert one.ended == 1


def test_answer_without_an_end_is_a_failed_try(pauses: Pauses) -> None:
    """Lost if red: a short answer that passes for a whole one."""
    one = Scripted("one", [])
    events, error = ask(pauses.chain(one, Scripted("two", says("hi")), retries=0))
    assert (seen(events), error) == ("!one hi.", None)


def test_cost_is_filled_in(pauses: Pauses) -> None:
    """Lost if red: what a turn cost."""
    end = Finished(
        reason="stop", provider="openai", model="gpt-5-mini", tokens_in=1000, tokens_out=100
    )
    events, _ = ask(pauses.chain(Scripted("one", [end])))
    assert isinstance(events[0], Finished)
    assert events[0].cost_usd is not None
    assert 0 < events[0].cost_usd < 1
    assert ask(pauses.chain(Scripted("one", [END])))[0] == [END], "not known, and not guessed"


def test_reader_who_leaves_frees_the_provider_at_once(pauses: Pauses) -> None:
    """Lost if red: a stopped turn's call, paid until the garbage is collected."""

    async def call() -> int:
        one = Scripted("one", says("a", "b"))
        stream = pauses.chain(one).stream(REQUEST)
        await anext(stream)
        await stream.aclose()
        return one.left

    assert run(call()) == 1


def test_cancelled_call_is_cancelled(pauses: Pauses) -> None:
    """Lost if red: a cancel that is taken for a failure, and tries the next provider."""

    async def call() -> tuple[int, list[ModelRequest], bool]:
        one, two = Scripted("one", [Hang]), Scripted("two", says("no"))
        made = half_open(one)
        task = asyncio.create_task(follow(pauses.chain(made, two)))
        await one.silent.wait()
        assert not made.breaker.admits(), "its trial runs"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return one.left, two.asked, made.breaker.admits()

    assert run(call()) == (1, [], True)


# ── whose the connections are ─────────────────────────────────────────────────────────────────────


def test_chain_closes_what_it_was_given_bare(pauses: Pauses) -> None:
    """Lost if red: connections that stay open, or that one turn closes for all others."""
    bare, shared = Scripted("one", says("hi")), Scripted("two", says("hi"))
    bare.scripts.insert(0, [down()])
    chain = pauses.chain(bare, link(shared), retries=0)

    async def call() -> str:
        events, _ = await follow(chain)
        await chain.close()
        return seen(events)

    assert run(call()) == "!one hi.", "both were called"
    assert (bare.closed, shared.closed) == (True, False)


def test_retired_link_answers_to_the_end_and_then_closes(pauses: Pauses) -> None:
    """Lost if red: an answer cut off for a key that was changed amid it, or a leaked connection."""

    async def call() -> list[bool]:
        one = Scripted("one", says("a", "b"))
        made = link(one)
        closed = []
        stream = pauses.chain(made).stream(REQUEST)
        await anext(stream)
        await made.retire()
        closed.append(one.closed)
        assert seen([event async for event in stream]) == "b."
        closed.append(one.closed)
        one.closed = False
        assert seen((await follow(pauses.chain(made)))[0]) == "ab.", "who still has it can use it"
        closed.append(one.closed)
        return closed

    assert run(call()) == [False, True, True]


def test_chain_of_nothing_is_refused() -> None:
    """Lost if red: turns that end with nothing tried and nothing told."""
    with pytest.raises(ValueError, match="needs a provider"):
        Chain([])
