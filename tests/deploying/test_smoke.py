"""What a deployment is tried out with: a key that migrate makes, and a turn by each URL."""

from collections.abc import Callable

import pytest
from chalice.test import Client

import app as application
from chalicelib.config import Secret
from scripts.deploying.errors import DeployError
from scripts.deploying.smoke import try_out
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.postgres import TestDatabase
from tests.support.stack import Stack


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database: TestDatabase) -> Stack:
    """A system whose migrate function may log in as the owner."""
    return make_stack(database_owner_url=Secret(database.owner), embeddings="off")


def order(**keys: object) -> dict[str, str]:
    """What migrate answers when it is asked for keys."""
    with Client(application.app) as client:
        answer: dict[str, str] = client.lambda_.invoke("migrate", {"keys": keys}).payload
    return answer


def outputs(stack: Stack) -> dict[str, str]:
    """The gateway in place of both URLs."""
    base = stack.http().base
    return {"ApiUrl": base, "StreamUrl": f"{base}/"}


def test_key_that_migrate_makes_carries_a_turn_by_each_url(
    stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the proof that what was deployed answers; and the first key of an account."""
    made = order(create={"tenant": "smoke", "scopes": ["sessions"]})
    again = order(create={"tenant": "smoke", "scopes": ["sessions"]})
    assert made["tenantId"] == again["tenantId"]
    try_out(outputs(stack), made["key"], wait=0)
    assert len(provider.requests) == 2
    assert stack.database.one("SELECT count(*) FROM pal.sessions") == 0

    order(revoke={"tenantId": made["tenantId"], "keyId": made["keyId"]})
    order(revoke={"tenantId": "smoke", "keyId": again["keyId"]})
    revoked = "SELECT count(*) FROM pal.api_keys WHERE revoked_at IS NOT NULL"
    assert stack.database.one(revoked) == 2


def test_turn_that_fails_is_told(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: the way back, since a version whose turns all fail would pass."""
    provider.default(Reply(status=500))
    with pytest.raises(DeployError, match="ended in"):
        try_out(outputs(stack), stack.key, wait=0)


def test_key_that_is_refused_is_told(stack: Stack) -> None:
    """Lost if red: the way back, where nobody can log in any more."""
    with pytest.raises(DeployError, match="answered 401"):
        try_out(outputs(stack), "pal_unknown", wait=0)


def test_url_that_does_not_answer_is_told(stack: Stack) -> None:
    """Lost if red: a sentence in place of a traceback, where DNS or a network is at fault."""
    nowhere = {"ApiUrl": "http://127.0.0.1:9", "StreamUrl": "http://127.0.0.1:9"}
    with pytest.raises(DeployError, match="did not answer"):
        try_out(nowhere, stack.key, wait=0)
