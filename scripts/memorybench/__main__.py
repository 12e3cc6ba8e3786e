"""The command line of `scripts/bench-memory`."""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchlib.figures import Spread
from benchlib.processes import Program, clean_environment, free_port

from chalicelib.gateway.postgres import Logins
from memorybench import scale
from memorybench.ingest import ingest
from memorybench.locomo import Api, measure
from memorybench.passes import run_passes
from memorybench.place import database, place


def _show(title: str, figures: Mapping[str, float]) -> None:
    print(title)
    for name, value in figures.items():
        print(f"  {name:20} {value:12,.1f}", flush=True)


def _times(name: str, spread: Spread) -> None:
    print(
        f"  {name:22} p50 {spread.p50:7.1f} ms   p95 {spread.p95:7.1f} ms   of {spread.n}",
        flush=True,
    )


async def _scale(args: argparse.Namespace, logins: Logins, master: str) -> None:
    async with place(logins, master, embeddings=args.embeddings) as at:
        if filled := await scale.fill(at, args.rows, args.tenants):
            _show("filled", filled)
        found = await scale.ask(at, args.rows, args.tenants, args.questions)
        print(f"search among {args.rows:,} rows of {args.tenants:,} tenants, as pal_app")
        for name, spread in found.items():
            _times(name, spread)


async def _ingest(args: argparse.Namespace, logins: Logins, master: str) -> None:
    for embeddings in ("off", "wheel"):
        async with place(logins, master, embeddings=embeddings) as at:
            _show(f"ingest, embeddings {embeddings}", await ingest(at, args.events))


async def _pass(args: argparse.Namespace, logins: Logins, master: str) -> None:
    async with place(logins, master, embeddings="off") as at:
        _show("pass", await run_passes(at, args.sessions, args.messages))


def _locomo(args: argparse.Namespace) -> None:
    if args.data is None:
        raise SystemExit("locomo needs --data FILE")
    with tempfile.TemporaryDirectory(prefix="pal-bench-") as folder:
        port, key = free_port(), "pal_bench_key_of_a_bench_that_goes_away"
        env = {
            **clean_environment(),
            "PAL_DATA_DIR": folder,
            "PAL_PORT": str(port),
            "PAL_EMBEDDINGS": args.embeddings,
        }
        server = Program(["scripts/dev"], Path(folder) / "log", env)
        try:
            ready = server.wait_ready(120)
            figures, spread = measure(Api(ready[1], ready[2] or key), args.data)
        finally:
            server.close()
    _show("retrieval", figures)
    _times("a question", spread)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="bench-memory", description=__doc__)
    parser.add_argument("scenario", choices=["locomo", "scale", "ingest", "pass"])
    parser.add_argument("--data", type=Path, help="locomo: file of conversations with questions")
    parser.add_argument("--rows", type=int, default=1_000_000, help="scale: rows in all")
    parser.add_argument("--tenants", type=int, default=2_000, help="scale: tenants")
    parser.add_argument("--questions", type=int, default=300, help="scale: questions a scope")
    parser.add_argument("--events", type=int, default=20_000, help="ingest: events")
    parser.add_argument("--sessions", type=int, default=1_000, help="pass: sessions")
    parser.add_argument("--messages", type=int, default=40, help="pass: messages a session")
    parser.add_argument("--embeddings", default="wheel", choices=["wheel", "off"])
    parser.add_argument(
        "--keep", type=Path, help="folder of the database, used again if it is there"
    )
    args = parser.parse_args()
    if args.scenario == "locomo":
        _locomo(args)
        return
    run = {"scale": _scale, "ingest": _ingest, "pass": _pass}[args.scenario]
    with database(args.keep) as (logins, master):
        asyncio.run(run(args, logins, master))


if __name__ == "__main__":
    main()
