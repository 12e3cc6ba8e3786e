"""The bootstrap on RDS: as the master user, whose secret RDS keeps, on the cluster itself.

The secret's password may be refused from the second time on. Whoever made a role is a member of
it (since Postgres 16), so the master is one of `rds_iam`'s through the roles that it made and gave
`rds_iam`; and RDS takes tokens alone from each of its members, however far. Hence the token.
"""

import asyncio
import json
from collections.abc import Callable

import psycopg
from psycopg.conninfo import make_conninfo

from chalicelib.db.iam import Tokens
from chalicelib.db.login import Login, was_refused
from chalicelib.db.migrate import bootstrap


async def bootstrap_as_master(
    owner_url: str, secret: str, *, tokens: Callable[[str, int, str], Tokens] = Tokens
) -> None:
    """Bootstrap the database of this URL as the user of this secret, an ARN. Safe to run again."""
    user, password = await asyncio.to_thread(_read, secret)
    url = make_conninfo(owner_url, user=user)
    try:
        await bootstrap(Login(make_conninfo(url, password=password)))
    except psycopg.OperationalError as exc:
        if not was_refused(exc):
            raise
        await bootstrap(Login(url, iam=True, tokens=tokens))


def _read(secret: str) -> tuple[str, str]:
    import boto3

    client = boto3.client("secretsmanager")
    told = json.loads(client.get_secret_value(SecretId=secret)["SecretString"])
    return told["username"], told["password"]
