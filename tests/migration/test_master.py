"""Bootstrap and migrate as the functions of a stack: RDS's master secret, tokens, no superuser."""

import json
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import boto3
import psycopg
import pytest

from chalicelib import config, jobs
from chalicelib.config import Secret, Settings
from chalicelib.db.migrate import read_migrations
from chalicelib.gateway.postgres import embedded
from tests.fakes.rds_server import FakeRds, fake_rds
from tests.support.aws import aws_server

ROLES = """
SELECT member::regrole::text, roleid::regrole::text FROM pg_auth_members
WHERE roleid::regrole::text = 'rds_iam' OR (roleid::regrole::text = 'pal_owner' AND set_option)
ORDER BY 1
"""


@pytest.fixture(scope="module")
def superuser() -> Iterator[str]:
    """A server with RDS's roles, and a master who may grant tokens and is no superuser."""
    with (
        tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder,
        embedded(Path(folder)) as url,
    ):
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE ROLE rds_iam")
            conn.execute("CREATE ROLE pal_master LOGIN CREATEROLE")
            conn.execute("GRANT rds_iam TO pal_master WITH ADMIN OPTION")
            conn.execute("CREATE DATABASE pal OWNER pal_master")
        yield url


@pytest.fixture
def rds(superuser: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRds]:
    """That server as RDS, and settings as the stack gives them to the two functions."""
    with aws_server(monkeypatch), fake_rds(superuser.partition("host=")[2]) as made:
        made.keys["testing"] = "testing"
        made.passwords["pal_master"] = "made by RDS"
        secret = {"username": "pal_master", "password": "made by RDS"}
        told = boto3.client("secretsmanager").create_secret(
            Name="rds!cluster-1", SecretString=json.dumps(secret)
        )
        config.use(
            Settings(
                database_iam=True,
                database_owner_url=Secret(made.url("pal_owner", "pal")),
                database_master_secret=told["ARN"],
            )
        )
        yield made
        config.use(None)


def test_deployments_bootstrap_and_migrate(rds: FakeRds, superuser: str) -> None:
    """Lost if red: the first deployment, or each one after it.

    From the second one on RDS may take no password of the master's any more, but a token: he made
    roles that log in by token, and is a member of what he made.
    """
    assert jobs.bootstrap({}, None) == {"bootstrapped": True}
    assert jobs.migrate({}, None) == {"applied": [one.full_name for one in read_migrations()]}
    rds.passwords.clear()
    assert jobs.bootstrap({}, None) == {"bootstrapped": True}
    assert jobs.migrate({}, None) == {"applied": []}
    # a migration that takes longer than others is looked at by a connection more
    assert [user for user, _ in groupby(rds.logins)] == ["pal_master", "pal_owner"] * 2
    assert rds.refusals == ["no token of this user"]  # the password, which was tried first
    with psycopg.connect(superuser.replace("/palimpsest?", "/pal?")) as conn:
        members = conn.execute(ROLES).fetchall()
        vectors = conn.execute("SELECT to_regclass('pal.memory_vectors') IS NULL").fetchone()
    # the master acts as the owner no longer, or it would be his tokens' end, too
    assert members == [("pal_app", "rds_iam"), ("pal_master", "rds_iam"), ("pal_owner", "rds_iam")]
    assert vectors == (True,)  # this server, unlike RDS, lets no master install them


def test_secret_that_is_wrong_fails_the_bootstrap(rds: FakeRds, superuser: str) -> None:
    """Lost if red: a deployment that says it went well on a database that it never saw."""
    rds.passwords["pal_master"] = "rotated"
    with pytest.raises(psycopg.OperationalError):
        jobs.bootstrap({}, None)
    assert rds.logins == []
