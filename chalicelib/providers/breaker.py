"""When a provider that keeps failing is left out, and when it is tried again. Pure: no I/O."""

import math
import time
from collections.abc import Callable
from typing import Final

_REST_AT_MOST: Final = 300.0


class Trial:
    """The one try by which an open breaker finds out; compared by identity."""

    __slots__ = ()


class Breaker:
    """Opens after `failures` in a row for `rest` seconds, then lets a single trial through.

    A trial that fails doubles the rest, up to 300 s; any success closes the breaker. Each try
    calls `begin`, then at most one of `succeeded` and `failed`, and always `ended`. A try may be
    made of an open breaker too: its success counts and its failure does not. The default never
    opens.
    """

    def __init__(
        self,
        *,
        failures: float = math.inf,
        rest: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._first_rest, self._clock = failures, rest, clock
        self._close()

    def _close(self) -> None:
        self._failures = 0
        self._rest = self._first_rest
        self._until: float | None = None  # the end of the rest; None: closed
        self._trial: Trial | None = None

    def admits(self) -> bool:
        """Whether the provider is to be tried now: not while it rests or its trial runs."""
        return self._until is None or (self._trial is None and self._clock() >= self._until)

    def begin(self) -> Trial | None:
        """Start a try; what it returns goes to `failed` and `ended`."""
        if self._until is not None and self.admits():
            self._trial = Trial()
            return self._trial
        return None

    def succeeded(self) -> None:
        """The provider answered whole."""
        self._close()

    def failed(self, trial: Trial | None) -> None:
        """The try failed for a reason that is the provider's."""
        if self._until is None:
            self._failures += 1
            if self._failures >= self._most:
                self._until = self._clock() + self._rest
        elif trial is not None and trial is self._trial:
            self._rest = max(self._rest, min(2 * self._rest, _REST_AT_MOST))
            self._until = self._clock() + self._rest
            self._trial = None

    def ended(self, trial: Trial | None) -> None:
        """The try is over, however: a trial that decided nothing leaves room for the next one."""
        if trial is not None and trial is self._trial:
            self._trial = None
