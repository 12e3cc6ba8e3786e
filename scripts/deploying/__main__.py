"""scripts/deploy: one CloudFormation stack with the whole system, on AWS or on an emulator.

Without --local: packages the stage, uploads it, shows what would change and asks; then applies the
database's migrations with the new code, changes the stack, and tries a streamed turn through the
real URLs. What fails leaves the old version serving. With --local: the same stack on LocalStack at
LOCALSTACK_HOST, or on moto's server, which is started where nothing listens.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..packagelib import PackagingError, make, rds_authorities
from . import account as accounts
from . import destroy, keys, rollout
from .console import Console
from .errors import DeployError, explain

_ROOT = Path(__file__).parents[2]
_STATE = _ROOT / ".cache/deploy"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments ask; 1 with a sentence when it cannot be done, 130 when stopped."""
    args = _parser().parse_args(argv)
    console = Console(yes=args.yes)
    try:
        _run(args, console)
    except KeyboardInterrupt:
        console.fail("Stopped. What was under way at AWS goes on there.")
        return 130
    except PackagingError as exc:
        console.fail(f"{exc}")
        return 1
    except Exception as exc:
        sentence = explain(exc)
        if sentence is None:
            raise
        console.fail(sentence)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/deploy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stage", nargs="?", default="dev", help="dev (default) or prod")
    parser.add_argument("--region", help="AWS region; else the one the environment names")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the template; what is not given keeps the value it has",
    )
    parser.add_argument("--yes", action="store_true", help="change without asking")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--local", action="store_true", help="on an emulator and not on AWS")
    way.add_argument("--destroy", action="store_true", help="remove the stage; it asks first")
    way.add_argument("--key", metavar="TENANT", help="make an API key for this tenant; print it")
    parser.add_argument(
        "--stop", action="store_true", help="with --local: end the server that was started here"
    )
    parser.add_argument(
        "--scopes", default="admin", help="with --key: the key's scopes, by commas (admin)"
    )
    return parser


def _run(args: argparse.Namespace, console: Console) -> None:
    if args.stop and not args.local:
        raise DeployError("--stop goes with --local.")
    given = _given(args.param)
    if args.local:
        _local(args.stage, given, console, stop=args.stop)
        return
    account = accounts.on_aws(args.region)
    if args.destroy:
        destroy.destroy(account, args.stage, console)
    elif args.key:
        keys.print_key(account, args.stage, args.key, args.scopes.split(","), console)
    else:
        # whether we may in at all is soon told; packaging takes a while
        console.step(f"Account {account.id}, {account.region}")
        template, folder = _package(args.stage, console, region=account.region)
        rollout.deploy(account, args.stage, template, folder, given=given, console=console)


def _given(params: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in params:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise DeployError(f"--param takes KEY=VALUE, not {one!r}.")
        found[name] = value
    return found


def _package(
    stage: str, console: Console, *, region: str | None = None
) -> tuple[dict[str, Any], Path]:
    """The template and its files; with a region, trusting the databases that are there."""
    console.step(f"Packaging {stage}")
    authorities = None if region is None else rds_authorities(region)
    made = make(stage, _STATE / stage, rds_ca=authorities)
    return json.loads(made.template.read_text(encoding="utf-8")), made.folder


def _local(stage: str, given: dict[str, str], console: Console, *, stop: bool) -> None:
    # what only the emulator wants is a development tool, and slow to import
    from .emulator import local, server

    host = server.address()
    if stop:
        ended = server.stop_moto(host, _STATE)
        console.say(
            f"moto's server at {host} is stopped."
            if ended
            else f"No server that was started here runs at {host}."
        )
        return
    emulator = server.find(host) or server.start_moto(host, _STATE, console.say)
    template, folder = _package(stage, console)
    console.step(f"Deploying palimpsest-{stage} to {emulator.kind} at {host}")
    built = local.deploy(
        template, folder, stage=stage, emulator=emulator, given=given, say=console.say
    )
    for name, value in sorted(built.outputs.items()):
        console.say(f"  {name}: {value}")
    if emulator.kind == "moto":
        console.say("moto runs no functions and no database: these URLs answer nothing.")


if __name__ == "__main__":
    sys.exit(main())
