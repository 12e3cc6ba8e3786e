"""scripts/bench-context: what a turn's context costs in long sessions and large memories.

Each scenario starts a server of its own, with an embedded Postgres and a provider that answers at
once. Exit status: 0 within the bounds, 1 beyond one of them, 2 not started.
"""

import argparse
import os
import platform
import signal
import sys
import time
from pathlib import Path

import psycopg
import uvloop
from benchlib.figures import Table, write_json
from benchlib.processes import NotStarted
from benchlib.wire import Refused

from contextbench.contexts import contexts
from contextbench.session import EARLY, session

SCENARIOS = ("session", "context")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench-context",
        description="Measure what a context costs.",
        epilog="session: a turn around message 100 and at the end of a long compact session. "
        "context: POST /v1/sessions/{id}/context in a tenant with a large memory.",
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    parser.add_argument("--messages", type=int, default=2_000, help="session: messages (2000)")
    parser.add_argument(
        "--tree", choices=["plain", "model"], default="plain", help="session: who keeps the tree"
    )
    parser.add_argument(
        "--memories", type=int, default=100_000, help="context: memories of the tenant (100000)"
    )
    parser.add_argument("--requests", type=int, default=500, help="context: requests each (500)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    if unknown := set(args.scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if args.messages < 3 * EARLY:
        parser.error(f"--messages takes {3 * EARLY} or more")
    args.scenarios = args.scenarios or list(SCENARIOS)
    return args


def main() -> int:
    """Parse and run."""
    args = _parse()
    # Like Ctrl-C, so that what was started is stopped on a timeout too.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    about: dict[str, object] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    tables: list[Table] = []
    try:
        for name in args.scenarios:
            try:
                if name == "session":
                    made = uvloop.run(session(args.messages, args.tree))
                else:
                    made = uvloop.run(contexts(args.memories, args.requests))
            except (Refused, OSError, psycopg.Error) as exc:
                made = Table.of_failure(name, exc)
            tables.append(made)
            print(made.text(), flush=True)
    except NotStarted as exc:
        print(f"not started: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if args.json and tables:
            write_json(args.json, tables, about)
    return 1 if any(table.failures for table in tables) else 0


if __name__ == "__main__":
    sys.exit(main())
