"""The chain over providers at the port's seam: order, repeats, timeouts, and what it tells."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers import (
    AttemptFailed,
    Chain,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Provider,
    TextDelta,
)
from chalicelib.providers.breaker import Breaker
from chalicelib.providers.link import Link, Patience

T = TypeVar("T")

REQUEST = ModelRequest(system="", messages=(ModelMessage(role="user", content="hello"),))
WHOLE = ModelRequest(system="", messages=REQUEST.messages, stream=False)
END = Finished(reason="stop", provider="p", model="m")
SECRET = "what a message said"


class Hang:
    """In a script: say nothing from here on."""


Script = Sequence[ModelEvent | Exception | type[Hang]]


class Scripted:
    """Plays a script a call; with none left, the last one again."""

    def __init__(self, model: str, *scripts: Script) -> None:
        self.name, self.model = "p", model
        self.scripts = list(scripts)
        self.asked: list[ModelRequest] = []
        self.silent = asyncio.Event()
        self.left = self.ended = 0
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked.append(request)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            for one in script:
                if isinstance(one, Exception):
                    raise one
                if isinstance(one, type):
                    self.silent.set()
                    await asyncio.Event().wait()
                else:
                    yield one
            self.ended += 1
        finally:
            self.left += 1

    async def close(self) -> None:
        """See `Provider.close`."""
        self.closed = True


class Pauses:
    """Stands for the sleep and the dice: notes what was asked of them."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def chain(self, *providers: Provider | Link, retries: int = 1) -> Chain:
        return Chain(
            providers, retries=retries, retry_wait=2.0, sleep=self.sleep, uniform=lambda a, b: b
        )


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def down(model: str = "one", told: str = "is down", **more: Any) -> ProviderUnavailable:
    return ProviderUnavailable(f"p:{model} {told}.", **more)


def says(*texts: str) -> Script:
    return [*(TextDelta(text=text) for text in texts), END]


def link(provider: Scripted, *, breaker: Breaker | None = None, **patience: float) -> Link:
    return Link(
        lambda: provider,
        name=provider.name,
        model=provider.model,
        breaker=breaker,
        patience=Patience(**patience),
    )


def opened(provider: Scripted) -> Link:
    """A link whose breaker is open, for a failure told as `p:<model> was down.`"""
    made = link(provider, breaker=Breaker(failures=1, rest=100))
    made.breaker.failed(None)
    made.last_failure = f"p:{provider.model} was down."
    return made


async def follow(
    chain: Provider, request: ModelRequest = REQUEST
) -> tuple[list[ModelEvent], ProviderError | None]:
    events: list[ModelEvent] = []
    try:
        async with aclosing(chain.stream(request)) as stream:
            async for event in stream:
                events.append(event)
    except ProviderError as exc:
        return events, exc
    return events, None


def ask(
    chain: Provider, request: ModelRequest = REQUEST
) -> tuple[list[ModelEvent], ProviderError | None]:
    return run(follow(chain, request))


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(20):
            return await work

    return asyncio.run(bounded())


def seen(events: list[ModelEvent]) -> str:
    """`!one ` for a failed try of model one, the text, `.` for the end."""
    told = {
        AttemptFailed: lambda one: f"!{one.model} ",
        TextDelta: lambda one: one.text,
        Finished: lambda one: ".",
    }
    return "".join(told[type(one)](one) for one in events)


def actions(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, getattr(one, "action", "")) for one in caplog.records]


# ── repeats ──────────────────────────────────────────────────────────────────────────────────


def test_failed_try_is_repeated_with_the_same_request(pauses: Pauses) -> None:
    """Lost if red: an answer for a hiccup, or an Idempotency-Key that is another on the repeat."""
    one = Scripted("one", [down()], says("hi"))
    events, error = ask(pauses.chain(one, Scripted("two", says("no"))))
    assert (seen(events), error) == ("!one hi.", None)
    assert events[0] == AttemptFailed(provider="p", model="one", reason="p:one is down.")
    assert [each is REQUEST for each in one.asked] == [True, True]
    assert pauses.slept == [0.3], "a short pause, so as not to hit it at once"


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_every_provider_has_its_tries(pauses: Pauses, retries: int) -> None:
    """Lost if red: the number of tries that an operator set."""
    one, two = Scripted("one", [down()]), Scripted("two", [down("two")])
    events, error = ask(pauses.chain(one, two, retries=retries))
    assert seen(events) == "!one " * (1 + retries) + "!two " * (1 + retries)
    assert isinstance(error, ProviderUnavailable)


@pytest.mark.parametrize(
    ("wait", "slept", "tries"),
    [
        pytest.param(None, [0.3], 2, id="none-told"),
        pytest.param(0.0, [0.3], 2, id="zero-is-not-at-once"),
        pytest.param(1.5, [1.5], 2, id="short-is-waited-for"),
        pytest.param(2.0, [2.0], 2, id="the-longest"),
        pytest.param(2.1, [], 1, id="too-long-moves-on"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_retry_after_is_waited_for_up_to_a_bound(
    pauses: Pauses, wait: float | None, slept: list[float], tries: int, last: bool
) -> None:
    """Lost if red: a provider hit before it is ready, or a turn that waits an hour for one.

    The last of a chain is given up by the same rule.
    """
    one, two = Scripted("one", [down(wait=wait)]), Scripted("two", says("hi"))
    events, error = ask(pauses.chain(*((one,) if last else (one, two))))
    assert seen(events) == "!one " * tries + ("" if last else "hi.")
    assert pauses.slept == slept
    assert (error is not None) == last


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(down(again=False), id="in-vain"),
        pytest.param(ProviderDenied("p:one refused the key."), id="denied"),
        pytest.param(ProviderUnsupported("p:one takes no images."), id="unsupported"),
        pytest.param(ValueError(SECRET), id="broken-adapter"),
    ],
)
def test_what_would_fail_again_moves_on_at_once(pauses: Pauses, failure: Exception) -> None:
    """Lost if red: time, and requests that a vendor counts, for nothing."""
    one = Scripted("one", [failure])
    events, error = ask(pauses.chain(one, Scripted("two", says("hi"))))
    assert (seen(events), error, pauses.slept) == ("!one hi.", None, [])


def test_rejected_request_ends_the_walk(pauses: Pauses) -> None:
    """Lost if red: a request that is wrong everywhere, sent everywhere."""
    one, two = Scripted("one", [ProviderRejected("p:one answered 400.")]), Scripted("two", says())
    events, error = ask(pauses.chain(one, two))
    assert (events, two.asked) == ([], [])
    assert isinstance(error, ProviderRejected)
    assert error.message == "p:one answered 400."


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param([TextDelta(text="half "), down()], "half ", id="after-text"),
        pytest.param([down()], "!one whole.", id="before-text"),
    ],
)
def test_no_answer_is_begun_twice(pauses: Pauses, script: Script, expected: str) -> None:
    """PRV-5. Lost if red: a reader sees the first half of one answer and all of another."""
    one, two = Scripted("one", script), Scripted("two", says("whole"))
    events, error = ask(pauses.chain(one, two, retries=0))
    assert seen(events) == expected
    assert (error is None) == expected.endswith(".")
    if error:
        assert error.message == "p:one is down."
        assert two.asked == []


# ── timeouts ─────────────────────────────────────────────────────────────────────────────────


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


# ── the end ──────────────────────────────────────────────────────────────────────────────────


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


# ── what is told ─────────────────────────────────────────────────────────────────────────────


def test_error_names_each_reason_once(pauses: Pauses) -> None:
    """Lost if red: what to mend when nothing answers."""
    one = Scripted("one", [down()])
    two = Scripted("two", [ProviderDenied("p:two refused the key.")])
    three = Scripted("three", [down("three", "answered 500")], [down("three", "answered 502")])
    _, error = ask(pauses.chain(one, two, opened(Scripted("four", says())), three))
    assert type(error) is ProviderUnavailable
    assert error.message == (
        "p:one is down. p:two refused the key. p:three answered 500. p:three answered 502."
        " p:four is left out for now; its last failure: p:four was down."
    )


def test_request_that_no_model_takes_is_unsupported(pauses: Pauses) -> None:
    """Lost if red: someone told to try again later what this model will never do."""
    refusals = [ProviderUnsupported(f"p:{model} takes no images.") for model in ("one", "two")]
    one, two = (Scripted(exc.message[2:5], [exc]) for exc in refusals)
    _, error = ask(pauses.chain(one, two))
    assert type(error) is ProviderUnsupported
    assert error.message == "p:one takes no images. p:two takes no images."
    _, error = ask(pauses.chain(one, Scripted("three", [down("three")])))
    assert type(error) is ProviderUnavailable
    assert error.message == "p:one takes no images. p:three is down."


def test_refused_key_is_logged_once_until_it_worked(
    pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: the one line that says whose key to renew, or a log of nothing else."""
    denied = [ProviderDenied("p:one refused the key.")]
    made = link(Scripted("one", denied, denied, says("hi"), denied))
    other = Scripted("two", says("hi"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert seen(ask(pauses.chain(made, other))[0]) == "!one hi."
        assert actions(caplog) == [("WARNING", "provider_denied")]
        assert seen(ask(pauses.chain(made, other))[0]) == "hi."
        ask(pauses.chain(made, other))
    assert actions(caplog) == [("WARNING", "provider_denied")] * 2
    told = caplog.records[0]
    assert (told.provider, told.model, told.reason) == (  # type: ignore[attr-defined]
        "p",
        "one",
        "p:one refused the key.",
    )


def test_every_other_failure_is_logged(pauses: Pauses, caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: the trace of a provider that is failing."""
    with caplog.at_level(logging.INFO):
        ask(pauses.chain(Scripted("one", [down()], [TextDelta(text="half"), down()])))
    assert actions(caplog) == [("WARNING", "provider_attempt_failed")] * 2


def test_fault_of_an_adapter_is_told_without_its_text(
    pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: a person's message, in a log or in another person's error."""
    with caplog.at_level(logging.INFO):
        _, error = ask(pauses.chain(Scripted("one", [ValueError(SECRET)])))
    assert error is not None
    assert error.message == "p:one broke in an unforeseen way."
    assert actions(caplog)[0] == ("ERROR", "provider_broke")
    assert SECRET not in caplog.text + str([vars(one) for one in caplog.records])


# ── the breaker in a chain ───────────────────────────────────────────────────────────────────


def test_open_provider_is_passed_over_in_silence(pauses: Pauses) -> None:
    """Lost if red: a failed attempt told that none has made."""
    one = Scripted("one", says("no"))
    events, error = ask(pauses.chain(opened(one), Scripted("two", says("hi"))))
    assert (seen(events), error, one.asked) == ("hi.", None, [])


def test_chain_that_is_all_open_tries_all_in_order(pauses: Pauses) -> None:
    """Lost if red: turns that fail without an attempt, for as long as a rest takes."""
    one, two = Scripted("one", [down()]), Scripted("two", [down("two")], says("hi"))
    events, error = ask(pauses.chain(opened(one), opened(two)))
    assert (seen(events), error) == ("!one !one !two hi.", None)


@pytest.mark.parametrize(
    ("failure", "tried"),
    [
        pytest.param(ProviderUnsupported("p:two takes no images."), True, id="unsupported"),
        pytest.param(ProviderDenied("p:two has no key."), True, id="denied"),
        pytest.param(down("two"), False, id="down"),
    ],
)
def test_what_was_left_out_is_tried_if_nothing_else_really_was(
    pauses: Pauses, failure: Exception, tried: bool
) -> None:
    """Lost if red: an image turn fails for a rest of its only model that can see."""
    one = opened(Scripted("one", says("hi")))
    events, error = ask(pauses.chain(one, Scripted("two", [failure]), retries=0))
    assert seen(events) == ("!two hi." if tried else "!two ")
    assert (error is None) == tried


def test_only_the_providers_own_failures_count(pauses: Pauses) -> None:
    """Lost if red: a sound provider left out for what was asked of it, or for who left."""
    for failure in (ProviderUnsupported("no images."), ProviderRejected("answered 400.")):
        made = link(Scripted("one", [failure]), breaker=Breaker(failures=1, rest=100))
        ask(pauses.chain(made))
        assert made.breaker.admits()
    for failure in (ProviderDenied("no key."), down(), ValueError()):
        made = link(Scripted("one", [failure]), breaker=Breaker(failures=1, rest=100))
        ask(pauses.chain(made))
        assert not made.breaker.admits()


def test_answer_that_breaks_off_counts_as_a_failure(pauses: Pauses) -> None:
    """Lost if red: a provider that dies amid every answer, asked first for ever."""
    broken = [TextDelta(text="half"), down()]
    made = link(Scripted("one", broken), breaker=Breaker(failures=2, rest=100))
    for _ in range(2):
        assert made.breaker.admits()
        ask(pauses.chain(made))
    assert not made.breaker.admits()


def half_open(provider: Scripted) -> Link:
    """A link whose next try is its breaker's trial; failed, it rests."""
    now = [0.0]
    made = link(provider, breaker=Breaker(failures=1, rest=50, clock=lambda: now[0]))
    made.breaker.failed(None)
    now[0] = 50.0
    return made


def test_trial_is_one_try_where_another_provider_waits(pauses: Pauses) -> None:
    """Lost if red: twice the wait for a provider that is most likely still down."""
    made = half_open(Scripted("one", [down()]))
    events, error = ask(pauses.chain(made, Scripted("two", says("hi"))))
    assert (seen(events), error) == ("!one hi.", None)


def test_last_one_is_repeated_though_its_breaker_opens(pauses: Pauses) -> None:
    """Lost if red: the turn on which the only provider's breaker opens fails for a hiccup."""
    made = link(Scripted("one", [down()], says("hi")), breaker=Breaker(failures=1, rest=100))
    two = opened(Scripted("two", says("no")))
    events, error = ask(pauses.chain(made, two))
    assert (seen(events), error) == ("!one hi.", None)
    assert made.breaker.admits()


# ── whose the connections are ────────────────────────────────────────────────────────────────


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
