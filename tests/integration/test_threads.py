"""The Chalice application under threads: whoever asks gets the answer to what they asked."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from chalice.app import Chalice

import app as application
from chalicelib.api.app import PalApp
from tests.support.stack import Stack

THREADS = 8
ROUNDS = 50


def call(app: Chalice, method: str, resource: str, key: str, **more: Any) -> dict[str, Any]:
    """What the app answers to API Gateway's event."""
    event = {
        "httpMethod": method,
        "path": resource,
        "resource": resource,
        "headers": {"authorization": f"Bearer {key}", "content-type": "application/json"},
        "multiValueQueryStringParameters": None,
        "pathParameters": {},
        "stageVariables": None,
        "body": None,
        "requestContext": {"httpMethod": method, "resourcePath": resource},
        **more,
    }
    answer: dict[str, Any] = app(event, more.get("context"))
    return answer


def on_threads(task: Callable[[int], list[Any]]) -> list[Any]:
    """Everything that this task, run once on each thread, finds."""
    with ThreadPoolExecutor(THREADS) as pool:
        return [found for part in pool.map(task, range(THREADS), timeout=60) for found in part]


def mixed_up(app: Chalice) -> list[str]:
    """Requests of eight callers in which the app told a view of somebody else's request.

    The threads meet inside the view, between its two looks at the current request.
    """
    meeting = threading.Barrier(THREADS, timeout=30)

    @app.route("/who", methods=["GET"])
    def who() -> dict[str, Any]:
        first = app.current_request.headers["authorization"]
        context = app.lambda_context
        meeting.wait()
        second = app.current_request.headers["authorization"]
        return {"seen": [first, second, f"Bearer {context}", f"Bearer {app.lambda_context}"]}

    def ask(thread: int) -> list[str]:
        wrong = []
        for n in range(ROUNDS):
            key = f"{thread}-{n}"
            answer = call(app, "GET", "/who", key, context=key)
            if orjson.loads(answer["body"]) != {"seen": [f"Bearer {key}"] * 4}:
                wrong.append(f"{key} got {answer['body']}")
        return wrong

    return on_threads(ask)


def test_every_view_sees_its_own_request() -> None:
    """Lost if red: privacy; a caller is answered with another one's key."""
    assert mixed_up(PalApp(app_name="probe")) == []


def test_plain_chalice_mixes_requests_up() -> None:
    """Lost if red: the test above, which would then be green whatever the app does."""
    assert len(mixed_up(Chalice(app_name="probe"))) > ROUNDS


@pytest.mark.parametrize("owner", ["one", "two"])
def test_a_request_leaves_nothing_behind(owner: str) -> None:
    """Lost if red: the line between two requests of one warm process."""
    app = PalApp(app_name="probe")
    seen: list[Any] = []

    @app.route("/who", methods=["GET"])
    def who() -> dict[str, Any]:
        seen.append(app.current_request.headers["authorization"])
        return {}

    call(app, "GET", "/who", owner)
    assert seen == [f"Bearer {owner}"]
    assert app.current_request is None
    assert app.lambda_context is None


def test_two_tenants_on_eight_threads_read_their_own(stack: Stack) -> None:
    """Lost if red: the tenants' isolation, as soon as two of them are busy at once."""
    owners = [(stack.tenant, stack.key), (stack.other_tenant, stack.other_key)]

    def use(thread: int) -> list[str]:
        tenant, key = owners[thread % 2]
        wrong = []
        for n in range(ROUNDS // 2):
            body = orjson.dumps({"agentName": f"{thread}-{n}"}).decode()
            made = call(application.app, "POST", "/v1/sessions", key, body=body)
            assert made["statusCode"] == 201, made
            listed = call(
                application.app,
                "GET",
                "/v1/sessions",
                key,
                multiValueQueryStringParameters={"agent": [f"{thread}-{n}"]},
            )
            found = [(one["id"], one["tenantId"]) for one in orjson.loads(listed["body"])]
            if found != [(orjson.loads(made["body"])["id"], tenant)]:
                wrong.append(f"thread {thread} made {made['body']} and found {found}")
        return wrong

    assert on_threads(use) == []
    count = "SELECT count(*) FROM pal.sessions WHERE tenant_id = %s"
    for tenant, _ in owners:
        assert stack.database.one(count, tenant) == THREADS // 2 * (ROUNDS // 2)
