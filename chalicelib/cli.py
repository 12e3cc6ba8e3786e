"""`scripts/pal`: tenants, keys and migrations, from a terminal.

Works on PAL_DATABASE_OWNER_URL, else on PAL_DATABASE_URL (a login that may create roles), else on
the embedded Postgres in PAL_DATA_DIR, which it starts if it is not running.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from chalicelib import auth
from chalicelib.config import Settings, SettingsError, settings
from chalicelib.db import Database, Login
from chalicelib.db.migrate import MigrationError, migrate
from chalicelib.errors import PalError
from chalicelib.gateway.postgres import Logins, NotReady, embedded, prepare


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 1 with a sentence when it cannot be done."""
    args = _parser().parse_args(argv)
    try:
        with ExitStack() as stack:
            asyncio.run(_run(args, _logins(settings(), stack)))
    except (SettingsError, NotReady, MigrationError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    except PalError as exc:
        # a field's reason is no sentence by itself
        sys.stderr.write(f"{exc.message.removesuffix('.')}.\n")
        return 1
    except psycopg.Error as exc:
        sys.stderr.write(f"The database refused: {exc.diag.message_primary or 'no reason'}.\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/pal", description=__doc__)
    nouns = parser.add_subparsers(dest="noun", required=True)

    tenants = nouns.add_parser("tenants", help="who the data belongs to").add_subparsers(
        dest="verb", required=True
    )
    create = tenants.add_parser("create", help="make a tenant; prints its id")
    create.add_argument("name")
    create.add_argument(
        "--defined-agents-only",
        action="store_true",
        help="refuse sessions of agents that no one has defined",
    )
    tenants.add_parser("list", help="all tenants")

    keys = nouns.add_parser("keys", help="a tenant's API keys").add_subparsers(
        dest="verb", required=True
    )
    create = keys.add_parser("create", help="make a key; prints it, this once")
    create.add_argument("--tenant", default="default", help="name or id")
    create.add_argument("--name", default="key", help="what the key is for")
    create.add_argument("--scopes", default="sessions", help="by commas: " + ", ".join(auth.SCOPES))
    listing = keys.add_parser("list", help="all keys, without their secrets")
    listing.add_argument("--tenant", default="default", help="name or id")
    revoke = keys.add_parser("revoke", help="refuse a key from now on, everywhere within 60 s")
    revoke.add_argument("key_id")
    revoke.add_argument("--tenant", default="default", help="name or id")

    nouns.add_parser("migrate", help="apply the migrations that the database lacks")
    return parser


def _logins(ours: Settings, stack: ExitStack) -> Logins:
    if ours.database_owner_url:
        return Logins(app=ours.database_url, owner=ours.database_owner_url)
    master = ours.database_url or stack.enter_context(embedded(Path(ours.data_dir)))
    return asyncio.run(prepare(master))


async def _run(args: argparse.Namespace, logins: Logins) -> None:
    if logins.owner is None:
        raise NotReady("PAL_DATABASE_OWNER_URL must be set: this login may not act as pal_owner.")
    owner = Login(logins.owner, iam=settings().database_iam)
    if args.noun == "migrate":
        applied = [*logins.applied, *await migrate(owner)]
        _print("applied: " + ", ".join(applied) if applied else "nothing to apply")
        return
    db = Database(owner, size=1)
    await db.open()
    try:
        await _COMMANDS[args.noun, args.verb](db, args)
    finally:
        await db.close()


async def _create_tenant(db: Database, args: argparse.Namespace) -> None:
    _print(
        await auth.create_tenant(db, name=args.name, undefined_agents=not args.defined_agents_only)
    )


async def _list_tenants(db: Database, args: argparse.Namespace) -> None:
    _table(await auth.list_tenants(db))


async def _create_key(db: Database, args: argparse.Namespace) -> None:
    tenant_id = await auth.find_tenant(db, args.tenant)
    scopes = [part.strip() for part in args.scopes.split(",")]
    key_id, key = await auth.create_key(db, tenant_id=tenant_id, name=args.name, scopes=scopes)
    _print(f"{key_id} {key}")


async def _list_keys(db: Database, args: argparse.Namespace) -> None:
    _table(await auth.list_keys(db, tenant_id=await auth.find_tenant(db, args.tenant)))


async def _revoke_key(db: Database, args: argparse.Namespace) -> None:
    tenant_id = await auth.find_tenant(db, args.tenant)
    await auth.revoke_key(db, tenant_id=tenant_id, key_id=args.key_id)
    _print(f"revoked {args.key_id}")


_COMMANDS = {
    ("tenants", "create"): _create_tenant,
    ("tenants", "list"): _list_tenants,
    ("keys", "create"): _create_key,
    ("keys", "list"): _list_keys,
    ("keys", "revoke"): _revoke_key,
}


def _table(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        _print("  ".join(f"{name}={_shown(value)}" for name, value in row.items()))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value)
    return "-" if value is None else str(value)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
