"""One start of a function under AWS's emulator: what the first call takes, and what later ones."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.emulator import Emulator, emulator


class WrongAnswer(Exception):
    """A function did not do what it was asked, so that its time means nothing."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """How a function is started and asked. `event` makes the event of each call anew."""

    name: str
    script: str
    folder: Path
    env: Mapping[str, str]
    event: Callable[[], Any]
    expects: bytes
    """What a right answer holds."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Milliseconds: of the first call, of the process's CPU in it, of each call after it.

    `peak` is the most memory that the process ever had, in MB, libraries' pages included.
    """

    cold: float
    cpu: float
    warm: list[float]
    peak: float


def start(function: Function, *, calls: int) -> Start:
    """Start the function by its first call, and call it `calls` times more."""
    with emulator(function.script, function.env, cwd=function.folder) as rie:
        cold = _call(rie, function)
        cpu = _cpu(rie)
        warm = [_call(rie, function) for _ in range(calls)]
        peak = _peak(rie)
    return Start(cold=cold, cpu=cpu, warm=warm, peak=peak)


def _call(rie: Emulator, function: Function) -> float:
    event = function.event()
    began = time.perf_counter()
    answer = rie.invoke(event).content
    took = (time.perf_counter() - began) * 1e3
    if function.expects not in answer:
        raise WrongAnswer(f"{function.name} answered {json.dumps(answer[:500].decode())}")
    return took


def _cpu(rie: Emulator) -> float:
    """Thread by thread: psutil's ticks are 10 ms."""
    spent = [
        int(path.read_text().split()[0])
        for pid in _pids(rie)
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ]
    return sum(spent) / 1e6


def _peak(rie: Emulator) -> float:
    told = [Path(f"/proc/{pid}/status").read_text() for pid in _pids(rie)]
    return sum(int(text.partition("VmHWM:")[2].split()[0]) for text in told) / 1024


def _pids(rie: Emulator) -> list[int]:
    """Of the function alone, without the emulator."""
    _, *started = rie.processes()
    return [one.pid for one in started if "rie" not in one.name()]
