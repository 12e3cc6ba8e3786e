"""What the agent allows at most, from its environment."""

from __future__ import annotations

import os
from typing import NamedTuple


class Limits(NamedTuple):
    """Sizes are bytes; a variable `PAL_AGENT_<NAME>` of the environment sets each."""

    seconds: int = 900  # that a run may ask for
    memory: int = 1024**3  # address space of a process, and what all of them hold together
    processes: int = 64  # of all runs at a time, threads included
    output: int = 1024**2  # of each stream of a run
    code: int = 1024**2
    file: int = 8 * 1024**2  # read or written by one call


def limits() -> Limits:
    """The limits of this process; ValueError for one that is not a positive whole number."""
    told = {}
    for name in Limits._fields:
        variable = f"PAL_AGENT_{name.upper()}"
        if os.environ.get(variable):
            told[name] = int(os.environ[variable])
            if told[name] <= 0:
                raise ValueError(f"{variable} must be more than 0")
    return Limits(**told)
