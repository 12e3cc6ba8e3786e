"""scripts/bench-coldstart: cold and warm starts of every function beside a hello-world's.

The functions run from the unpacked package under AWS's Lambda emulator, on a real database and
before a fake provider. A start is that of the process with its first call: of the API the cheapest
that reaches the database, of the stream function a reader's whose key is looked up. A first turn,
and the first work of the other functions, are told without a bound. Starts take turns with the
hello-world's, so that what else the machine does falls on both; a figure is a median. Exit status:
0 within the bounds, 1 beyond one, 2 not started.
"""

import argparse
import contextlib
import io
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import pytest
from benchlib.figures import Figure, Table, write_json

from coldbench.functions import API, HELLO, STREAM, functions, hello
from coldbench.place import place
from coldbench.starts import Function, Start, WrongAnswer, start

# times hello-world's cold start, and milliseconds above its warm call
COLD_AT_MOST = {f"{API} /healthz": 6.0, f"{STREAM} refusing": 9.0}
WARM_AT_MOST = {f"{API} /healthz": 5.0, f"{STREAM} refusing": 5.0}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench-coldstart",
        description="Measure cold and warm starts of the packaged functions beside a hello-world.",
    )
    parser.add_argument("functions", nargs="*", metavar="function", help="begins of names (all)")
    parser.add_argument("--starts", type=int, default=11, help="cold starts of each (11)")
    parser.add_argument("--calls", type=int, default=20, help="warm calls after each (20)")
    parser.add_argument(
        "--bytecode",
        choices=["packaged", "none", "all"],
        default="packaged",
        help="run what is packaged, without compiled modules, or with all of them compiled",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args()


def main() -> int:
    """Parse and run."""
    args = _parse()
    about: dict[str, object] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    tables: list[Table] = []
    try:
        _measure(args, tables)
    except pytest.skip.Exception as exc:
        print(f"not started: {exc}", file=sys.stderr)
        return 2
    if args.json:
        write_json(args.json, tables, about)
    return 1 if any(table.failures for table in tables) else 0


def _measure(args: argparse.Namespace, tables: list[Table]) -> None:
    with place(bytecode=args.bytecode) as made:
        beside = hello(made)
        for one in functions(made):
            if args.functions and not one.name.startswith(tuple(args.functions)):
                continue
            try:
                pairs = _take_turns(one, beside, starts=args.starts, calls=args.calls)
            except (WrongAnswer, AssertionError, OSError) as exc:
                tables.append(Table.of_failure(one.name, exc))
            else:
                tables.append(_table(one.name, pairs, args))
            print(tables[-1].text(), flush=True)


def _take_turns(
    function: Function, beside: Function, *, starts: int, calls: int
) -> list[tuple[Start, Start]]:
    """Starts of both, one after the other; the first of each fills the disk's cache."""
    pairs = []
    for _ in range(starts + 1):
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            try:
                pairs.append((start(beside, calls=calls), start(function, calls=calls)))
            except (WrongAnswer, AssertionError, OSError):
                sys.stderr.write(log.getvalue())
                raise
    return pairs[1:]


def _table(name: str, pairs: list[tuple[Start, Start]], args: argparse.Namespace) -> Table:
    def both(figure: str) -> list[float]:
        return [statistics.median(getattr(pair[n], figure) for pair in pairs) for n in (0, 1)]

    cold, cpu = both("cold"), both("cpu")
    warm = [statistics.median(ms for pair in pairs for ms in pair[n].warm) for n in (0, 1)]
    # of starts that followed one another: what else the machine does changes from one to the next
    ratio = statistics.median(other.cold / plain.cold for plain, other in pairs)
    failures = []
    if name in COLD_AT_MOST and ratio > COLD_AT_MOST[name]:
        failures.append(f"a cold start is more than {COLD_AT_MOST[name]:g} times hello-world's")
    if name in WARM_AT_MOST and warm[1] - warm[0] > WARM_AT_MOST[name]:
        failures.append(f"a warm call is more than {WARM_AT_MOST[name]:g} ms above hello-world's")
    return Table(
        scenario=name,
        title=name,
        columns=[HELLO, name],
        figures=[
            Figure(name="cold start, ms", values=cold, digits=1),
            Figure(name="of that CPU, ms", values=cpu, digits=0),
            Figure(name="warm call, ms", values=warm, digits=2),
            Figure(name="peak memory, MB", values=both("peak"), digits=0),
        ],
        remarks=[f"cold starts side by side: ×{ratio:.2f}"],
        failures=failures,
        parameters={"starts": args.starts, "calls": args.calls, "bytecode": args.bytecode},
    )


if __name__ == "__main__":
    sys.exit(main())
