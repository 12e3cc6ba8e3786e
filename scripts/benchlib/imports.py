"""Import time in a fresh interpreter, and which modules it goes to."""

import re
import statistics
import subprocess
import sys
from typing import NamedTuple

from benchlib.figures import Figure, Table
from benchlib.processes import ROOT, clean_environment

MODULES = ("app", "chalicelib.stream.lambda_entry")
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)")


class Cost(NamedTuple):
    """Microseconds of one module alone, and with what it imports first."""

    name: str
    own: int
    whole: int


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def _timed(module: str | None) -> float:
    """Milliseconds an import takes inside the interpreter (None: of nothing)."""
    statement = f"import {module}" if module else "pass"
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = _python("-c", code)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return float(done.stdout.split()[-1]) * 1e3


def _dearest(module: str, count: int = 5) -> list[str]:
    done = _python("-X", "importtime", "-c", f"import {module}")
    costs = [Cost(m[3], int(m[1]), int(m[2])) for m in LINE.finditer(done.stderr)]

    def listed(title: str, ordered: list[Cost]) -> str:
        parts = (f"{c.name} {c.own / 1e3:.0f}/{c.whole / 1e3:.0f}" for c in ordered[:count])
        return f"{module}, dearest {title} (own/whole ms): " + ", ".join(parts)

    by_whole = [c for c in costs if c.name != module and not module.startswith(c.name + ".")]
    return [
        listed("alone", sorted(costs, key=lambda c: -c.own)),
        listed("with their imports", sorted(by_whole, key=lambda c: -c.whole)),
    ]


def imports(runs: int = 7) -> Table:
    """The median import time of both Lambda entries (bytecode cached), beside an empty import."""
    times: list[float | None] = [statistics.median(_timed(None) for _ in range(runs))]
    remarks, failures = [], []
    for module in MODULES:
        try:
            _timed(module)  # writes the bytecode
            times.append(statistics.median(_timed(module) for _ in range(runs)))
            remarks += _dearest(module)
        except RuntimeError as exc:
            times.append(None)
            failures.append(f"import {module}: {exc}")
    return Table(
        scenario="imports",
        title=f"import time, median of {runs} fresh interpreters (baseline: importing nothing)",
        columns=["baseline", *MODULES],
        figures=[Figure(name="import, ms", values=times, digits=1, compare=False)],
        remarks=remarks,
        failures=failures,
        parameters={"runs": runs},
    )
