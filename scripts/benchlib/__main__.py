"""scripts/bench: what is measured, on which server, and where the figures go.

Most scenarios run on one server, started for the bench with the fake provider of the tests, and
take their baseline in the same run: the same client reading that provider directly. `overhead`
needs no server; `rounds`, `--chaos` and `--kill` start one of their own. Exit status: 0 all
delivered, 1 something was lost or failed, 2 not started.
"""

import argparse
import contextlib
import os
import platform
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import uvloop

from benchlib import scenarios
from benchlib.chaos import chaos
from benchlib.figures import Table, write_json
from benchlib.imports import imports
from benchlib.kill import kill
from benchlib.load import load
from benchlib.meters import Bench
from benchlib.overhead import overhead
from benchlib.processes import NotStarted, Server, allow_many_files, provider
from benchlib.rounds import rounds
from benchlib.transactions import transactions
from benchlib.turns import Cadence
from benchlib.wire import Client, Refused

CADENCE = Cadence(200, 20, 50)
SLOW_CADENCE = Cadence(200, 200, 50)

ScenarioRun = Callable[[Bench], Awaitable[Table]]
ON_SERVER: dict[str, ScenarioRun] = {
    "many": lambda bench: load(bench, 500, 1, SLOW_CADENCE, scenario="many", ramp=5.0),
    "create": scenarios.create,
    "instant": scenarios.instant,
    "history": scenarios.history,
    "idle": scenarios.idle,
    "transactions": transactions,
}
ALL = ("load", *ON_SERVER, "overhead", "rounds", "imports")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the server beside a bare client reading the same provider.",
        epilog="many: 500 streams at 200 ms a token. create, instant: a second. history: turn 500 "
        "against turn 10. idle: 2,000 open streams. transactions: of a plain turn. overhead: of "
        "the provider chain alone. rounds: of the tool loop. imports: of the Lambda entries.",
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"all, {', '.join(ALL)}")
    parser.add_argument("--streams", help="load: numbers of sessions (1,20,100)")
    parser.add_argument("--turns", type=int, help="load: turns a session (10 for one, else 4)")
    parser.add_argument("--cadence", help=f"load: first ms-ms between-tokens ({CADENCE})")
    parser.add_argument("--kill", type=int, metavar="N", help="SIGKILL the gateway N times")
    parser.add_argument(
        "--chaos",
        type=int,
        nargs="?",
        const=500,
        metavar="N",
        help="N turns (500) over three vendors that fail at random",
    )
    parser.add_argument("--seed", type=int, help="chaos: have the same weather again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="copy the server's output")
    parser.add_argument("--dev", default="scripts/dev", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.scenarios) - {"all", *ALL}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if "all" in args.scenarios:
        args.scenarios = list(ALL)
    if args.streams or (not args.scenarios and args.kill is None and args.chaos is None):
        args.scenarios = ["load", *(s for s in args.scenarios if s != "load")]
    try:
        args.streams = [int(n) for n in (args.streams or "1,20,100").split(",")]
        first, inter, tokens = (args.cadence or str(CADENCE)).split("-")
        args.cadence = Cadence(float(first), float(inter), int(tokens))
    except ValueError:
        parser.error("--streams takes numbers, --cadence three of them: 200-20-50")
    return args


@contextlib.asynccontextmanager
async def bench_on(server: Server, provider_url: str, provider_pid: int) -> AsyncIterator[Bench]:
    """The running server and provider, with a client for each."""
    key = {"Authorization": f"Bearer {server.key}"}
    clients = [
        Client(provider_url),
        Client(provider_url.removesuffix("/v1")),
        Client(server.url, key),
    ]
    yield Bench(
        server=server,
        provider=clients[0],
        provider_admin=clients[1],
        provider_pid=provider_pid,
        client=clients[2],
    )
    for client in clients:
        client.close()


def runs_on_server(args: argparse.Namespace) -> Iterator[tuple[str, ScenarioRun]]:
    """The scenarios that were asked for, by name."""
    for name in args.scenarios:
        if name in ON_SERVER:
            yield name, ON_SERVER[name]
        elif name == "load":
            for streams in args.streams:
                turns = args.turns or (10 if streams == 1 else 4)
                yield name, partial(load, streams=streams, turns=turns, cadence=args.cadence)


async def measure(args: argparse.Namespace, show: Callable[[Table], None]) -> dict[str, float]:
    """Run what needs the server; how long it took to start and to stop, in seconds."""
    with provider() as (url, pid):
        server = Server([args.dev], url, f"bench@{CADENCE}", {})
        try:
            server.start()
            print(f"server ready in {server.start_seconds:.1f} s", flush=True)
            async with bench_on(server, url, pid) as bench:
                for name, run in runs_on_server(args):
                    try:
                        show(await run(bench))
                    except (Refused, OSError, psycopg.Error) as exc:
                        show(Table.of_failure(name, exc))
            began = time.monotonic()
            status = server.stop()
            stopped = time.monotonic() - began
            print(f"\nserver stopped in {stopped:.1f} s with exit status {status}")
            return {
                "startSeconds": round(server.start_seconds, 2),
                "stopSeconds": round(stopped, 2),
            }
        finally:
            if args.keep_log and server.log.exists():
                args.keep_log.write_bytes(server.log.read_bytes())
            server.remove()


def main() -> int:
    args = parse_arguments()
    allow_many_files()
    # Like Ctrl-C, so that what was started is stopped on a timeout too.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    tables: list[Table] = []

    def show(table: Table) -> None:
        tables.append(table)
        print(table.text(), flush=True)

    def show_all(found: list[Table]) -> None:
        for table in found:
            show(table)

    about: dict[str, object] = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    try:
        if "load" in args.scenarios or ON_SERVER.keys() & set(args.scenarios):
            about |= uvloop.run(measure(args, show))
        if "imports" in args.scenarios:
            show(imports())
        if "overhead" in args.scenarios:
            show_all(uvloop.run(overhead()))
        if "rounds" in args.scenarios:
            show(uvloop.run(rounds([args.dev])))
        if args.chaos is not None:
            seed = random.randrange(10_000) if args.seed is None else args.seed
            show_all(uvloop.run(chaos([args.dev], args.chaos, seed, args.keep_log)))
        if args.kill is not None:
            show(uvloop.run(kill([args.dev], args.kill)))
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
