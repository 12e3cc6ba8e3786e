"""The breaker: when a provider is left out, when it is tried again. The clock is the test's."""

from collections.abc import Callable

import pytest

from chalicelib.providers.breaker import Breaker, Trial


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures=3, rest=15, clock=clock)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        trial = breaker.begin()
        breaker.failed(trial)
        breaker.ended(trial)


def succeed(breaker: Breaker) -> None:
    trial = breaker.begin()
    breaker.succeeded()
    breaker.ended(trial)


def test_failures_in_a_row_open_it(breaker: Breaker) -> None:
    """Lost if red: every turn waits for a provider that is down."""
    fail(breaker, 2)
    assert breaker.admits()
    fail(breaker)
    assert not breaker.admits()


def test_success_in_between_starts_the_count_anew(breaker: Breaker) -> None:
    """Lost if red: a provider that works, left out for failures of hours ago."""
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.admits()


def test_one_trial_after_the_rest_and_the_others_wait_for_it(
    breaker: Breaker, clock: Clock
) -> None:
    """Lost if red: a provider that comes back is met by all turns at once, or by none."""
    fail(breaker, 3)
    clock.now += 14.9
    assert not breaker.admits()
    clock.now += 0.1
    assert breaker.admits()
    trial = breaker.begin()
    assert trial is not None
    assert not breaker.admits(), "the trial runs"
    breaker.succeeded()
    breaker.ended(trial)
    assert breaker.admits()
    fail(breaker, 2)
    assert breaker.admits(), "the count began anew"


def test_failed_trials_double_the_rest_up_to_five_minutes(breaker: Breaker, clock: Clock) -> None:
    """Lost if red: the turn that waits for a dead provider comes every 15 s for hours."""
    fail(breaker, 3)
    for rest in (15, 30, 60, 120, 240, 300, 300):
        clock.now += rest - 0.1
        assert not breaker.admits(), f"it rests for {rest} s"
        clock.now += 0.1
        assert breaker.admits(), f"after {rest} s"
        fail(breaker)
    clock.now += 300
    succeed(breaker)
    fail(breaker, 3)
    clock.now += 15
    assert breaker.admits(), "a success takes the doubling back"


def test_rest_that_is_set_over_five_minutes_is_kept(clock: Clock) -> None:
    """Lost if red: a failed trial makes the rest shorter than an operator set it."""
    breaker = Breaker(failures=1, rest=600, clock=clock)
    fail(breaker)
    clock.now += 600
    fail(breaker)
    clock.now += 599
    assert not breaker.admits()


def test_trial_that_decides_nothing_leaves_room_for_the_next(
    breaker: Breaker, clock: Clock
) -> None:
    """Lost if red: one cancelled turn, and a provider is left out until the process ends."""
    fail(breaker, 3)
    clock.now += 15
    breaker.ended(breaker.begin())
    assert breaker.admits()
    assert isinstance(breaker.begin(), Trial)


def test_try_of_an_open_breaker_counts_only_if_it_works(breaker: Breaker, clock: Clock) -> None:
    """Lost if red: turns that have no other provider keep it out for longer each time."""
    fail(breaker, 3)
    fail(breaker, 10)
    clock.now += 15
    assert breaker.admits()
    clock.now -= 10
    succeed(breaker)
    assert breaker.admits()


def overtaken(breaker: Breaker) -> Trial | None:
    """A trial that a success beside it has overtaken, and another opening since."""
    old = breaker.begin()
    breaker.succeeded()
    fail(breaker, 3)
    return old


@pytest.mark.parametrize("end", [Breaker.failed, Breaker.ended])
def test_trial_of_an_earlier_opening_says_nothing_about_this_one(
    breaker: Breaker, clock: Clock, end: Callable[[Breaker, Trial | None], None]
) -> None:
    """Lost if red: a second trial while the first one runs."""
    fail(breaker, 3)
    clock.now += 15
    old = overtaken(breaker)
    clock.now += 15
    now = breaker.begin()
    assert old is not None
    assert now is not None
    end(breaker, old)
    assert not breaker.admits(), "the trial of now still runs"
    breaker.ended(now)
    assert breaker.admits()


def test_default_never_opens() -> None:
    """Lost if red: a provider that no one gave a breaker is left out."""
    breaker = Breaker()
    fail(breaker, 1000)
    assert breaker.begin() is None
    assert breaker.admits()
