"""The chain over providers at the port's seam: order, repeats, the breaker, what it tells."""

import logging

import pytest

from chalicelib.errors import (
    ProviderDenied,
    ProviderRejected,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers import AttemptFailed, TextDelta
from chalicelib.providers.breaker import Breaker
from tests.support.chains import REQUEST, actions
from tests.support.links import (
    Pauses,
    Script,
    Scripted,
    ask,
    down,
    half_open,
    link,
    opened,
    says,
    seen,
)

SECRET = "what a message said"


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


# ── repeats ───────────────────────────────────────────────────────────────────────────────────────


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


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


def test_error_names_each_reason_once(pauses: Pauses) -> None:
    """Lost if red: what to mend when nothing answers."""
    one = Scripted("one", [down()])
    two = Scripted("two", [ProviderDenied("p:two refused the key.")])
    three = Scripted("three", [down("three", "answered 500")], [down("three", "answered 502")])
    four = opened(Scripted("four", [down("four", "rests")], [down("four", "rests")]))
    _, error = ask(pauses.chain(one, two, four, three))
    assert type(error) is ProviderUnavailable
    assert error.message == (
        "p:one is down. p:two refused the key. p:three answered 500. p:three answered 502."
        " p:four rests."
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
        assert actions(caplog) == ["provider_denied"]
        assert seen(ask(pauses.chain(made, other))[0]) == "hi."
        ask(pauses.chain(made, other))
    assert actions(caplog) == ["provider_denied"] * 2
    told = caplog.records[0]
    shown = (told.levelname, told.provider, told.model, told.reason)  # type: ignore[attr-defined]
    assert shown == ("WARNING", "p", "one", "p:one refused the key.")


def test_every_other_failure_is_logged(pauses: Pauses, caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: the trace of a provider that is failing."""
    with caplog.at_level(logging.INFO):
        ask(pauses.chain(Scripted("one", [down()], [TextDelta(text="half"), down()])))
    assert actions(caplog) == ["provider_attempt_failed"] * 2


def test_fault_of_an_adapter_is_told_without_its_text(
    pauses: Pauses, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: a person's message, in a log or in another person's error."""
    with caplog.at_level(logging.INFO):
        _, error = ask(pauses.chain(Scripted("one", [ValueError(SECRET)])))
    assert error is not None
    assert error.message == "p:one broke in an unforeseen way."
    assert actions(caplog)[0] == "provider_broke"
    assert SECRET not in caplog.text + str([vars(one) for one in caplog.records])


# ── the breaker in a chain ────────────────────────────────────────────────────────────────────────


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
    "failure",
    [
        pytest.param(ProviderUnsupported("p:two takes no images."), id="unsupported"),
        pytest.param(ProviderDenied("p:two has no key."), id="denied"),
        pytest.param(down("two"), id="down"),
    ],
)
def test_what_was_left_out_is_tried_when_all_others_failed(
    pauses: Pauses, failure: Exception
) -> None:
    """Lost if red: a turn that fails while one vendor, well again by now, was never asked."""
    one = opened(Scripted("one", says("hi")))
    events, error = ask(pauses.chain(one, Scripted("two", [failure]), retries=0))
    assert (seen(events), error) == ("!two hi.", None)


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
