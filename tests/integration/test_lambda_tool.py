"""`lambda` tools against the Invoke API at the wire: what is invoked, by whom, what comes back."""

import asyncio
import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter

from chalicelib.config import Settings
from chalicelib.outbound import Guard
from chalicelib.providers.base import ToolCall
from chalicelib.tools.base import ToolContext, ToolOutcome
from chalicelib.tools.definitions import Definition, ToolDefinition
from chalicelib.tools.lambda_ import may_invoke
from chalicelib.tools.toolbox import ToolDeps, open_toolbox
from tests.fakes.tool_server import Answer, ToolServer

DEFINITION: TypeAdapter[Definition] = TypeAdapter(ToolDefinition)
CONTEXT = ToolContext(
    tenant_id="ten_1",
    session_id="sess_1",
    turn_id="tur_1",
    call_id="call_1",
    agent_name="assistant",
    user_id="someone",
    group_id=None,
    now=datetime.now(UTC),
)
PATH = "/2015-03-31/functions/pal-tool-sum/invocations"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToolServer]:
    """The Invoke API."""
    with ToolServer() as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", made.url(""))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        made.on(PATH, Answer(headers=JSON, pieces=[b'{"sum":3}']))
        yield made


async def no_secret(tenant_id: str, name: str) -> str | None:
    """None is needed."""
    raise AssertionError("a function's tool asked for a secret")


def call(
    arguments: dict[str, Any] | None = None,
    *,
    function: str = "pal-tool-sum",
    patterns: tuple[str, ...] = ("pal-tool-*",),
    **definition: Any,
) -> ToolOutcome:
    """What becomes of a call of this function's tool."""
    entry = {
        "kind": "lambda",
        "name": "sum",
        "function": function,
        "parameters": {"type": "object"},
    }
    settings = Settings(tool_lambdas=patterns)
    deps = ToolDeps(settings=settings, guard=Guard([]), secret=no_secret)
    wish = ToolCall(id="call_1", name="sum", arguments=json.dumps(arguments or {}))

    async def run() -> ToolOutcome:
        tool = DEFINITION.validate_python(entry | definition)
        box = await open_toolbox([tool], tenant_id="ten_1", read_only=False, deps=deps)
        try:
            return await box.call(wish, CONTEXT)
        finally:
            await box.close()

    return asyncio.run(run())


def error(status: int, code: str) -> Answer:
    """An error of the service's own."""
    return Answer(
        status=status,
        headers={**JSON, "x-amzn-ErrorType": code},
        pieces=[json.dumps({"Type": "User", "Message": "arn:aws:lambda:x is secret"}).encode()],
    )


def test_a_function_gets_the_arguments_and_who_asks(api: ToolServer) -> None:
    """Lost if red: what the model asked for, or a function that cannot tell tenants apart."""
    assert call({"a": 1, "b": "ü"}) == ToolOutcome(text='{"sum":3}')
    (asked,) = api.asked
    assert (asked.method, asked.path) == ("POST", PATH)
    assert asked.json == {"a": 1, "b": "ü"}
    assert asked.headers["x-amz-invocation-type"] == "RequestResponse"
    assert json.loads(base64.b64decode(asked.headers["x-amz-client-context"])) == {
        "custom": {
            "tenantId": "ten_1",
            "sessionId": "sess_1",
            "turnId": "tur_1",
            "callId": "call_1",
        }
    }


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'"plain text"', "plain text"),
        (b'"\\ud83d\\ude00 \\ud83d"', "😀 \ufffd"),
        (b'{"a": [1]}', '{"a": [1]}'),
        (b"null", "null"),
        (b"7", "7"),
        (b"no json", "no json"),
        (b"\xff", "\ufffd"),
        (b"", ""),
        (b"[" * 100_000, None),
    ],
)
def test_an_answer_is_read_whatever_it_is(
    api: ToolServer, payload: bytes, text: str | None
) -> None:
    """Lost if red: functions that answer with a text, a number or nothing."""
    api.on(PATH, Answer(headers=JSON, pieces=[payload]))
    outcome = call()
    assert not outcome.is_error
    assert text is None or outcome.text == text


def test_an_alias_and_a_version_are_asked_for(api: ToolServer) -> None:
    """Lost if red: the version that was meant."""
    path = "/2015-03-31/functions/pal-tool-sum%3Alive/invocations"
    assert not call(function="pal-tool-sum:live").is_error
    assert api.asked[0].path == path


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        pytest.param(
            {"errorType": "KeyError", "errorMessage": "'a'", "stackTrace": ["/var/task/x.py"]},
            "The function failed: KeyError: 'a'",
            id="as-lambda-tells-it",
        ),
        pytest.param({"errorMessage": "timed out"}, "The function failed: timed out", id="no-type"),
        pytest.param({"errorMessage": 7}, "it did not say why", id="odd"),
        pytest.param("text", "it did not say why", id="no-object"),
        pytest.param({"errorMessage": "x" * 9000}, "…", id="long"),
    ],
)
def test_a_function_that_fails_is_told_of(api: ToolServer, payload: Any, told: str) -> None:
    """Lost if red: a failure that reads like a result, or a stack trace for the model."""
    api.on(
        PATH,
        Answer(
            headers={**JSON, "X-Amz-Function-Error": "Unhandled"},
            pieces=[json.dumps(payload).encode()],
        ),
    )
    outcome = call()
    assert outcome.is_error
    assert told in outcome.text
    assert "/var/task" not in outcome.text
    assert len(outcome.text) < 1100


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (error(404, "ResourceNotFoundException"), "does not exist"),
        (error(403, "AccessDeniedException"), "may not be invoked"),
        (error(429, "TooManyRequestsException"), "is busy"),
        (error(413, "RequestTooLargeException"), "arguments of this size"),
        (error(400, "InvalidRequestContentException"), "was not invoked"),
        (error(500, "ServiceException"), "effect is unknown"),
    ],
)
def test_an_error_of_the_service_is_told_and_not_tried_again(
    api: ToolServer, answer: Answer, told: str
) -> None:
    """Lost if red: a payment made twice by a retry, or our account's details in a chat."""
    api.on(PATH, answer)
    outcome = call()
    assert outcome.is_error
    assert told in outcome.text
    assert "arn:" not in outcome.text
    assert len(api.asked) == 1


def test_a_function_that_hangs_is_given_up(api: ToolServer) -> None:
    """Lost if red: a turn that waits for a function until it is cut itself."""
    api.on(PATH, Answer(headers=JSON, pieces=[b"{}"], hold_at=0))
    outcome = call(timeout=0.3)
    assert outcome.is_error
    assert outcome.text == "sum timed out after 0.3 s; whether it had an effect is unknown."


def test_a_connection_that_breaks_is_told(api: ToolServer) -> None:
    """Lost if red: half an answer as a whole one, or a second call."""
    headers = {**JSON, "Content-Length": "100"}
    api.on(PATH, Answer(headers=headers, pieces=[b'{"a":'], reset=True))
    outcome = call()
    assert outcome.is_error
    assert "broke off" in outcome.text
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("function", "pattern", "allowed"),
    [
        ("pal-tool-sum", "pal-tool-*", True),
        ("pal-tool-sum", "pal-tool-sum", True),
        ("pal-tool-sum:live", "pal-tool-*", True),
        ("pal-tool-sum:live", "pal-tool-*:live", True),
        ("pal-tool-sum", "pal-tool-*:live", False),
        ("pal-tool-sum:other", "pal-tool-*:live", False),
        ("pal-tools", "pal-tool-*", False),
        ("my-pal-tool-sum", "pal-tool-*", False),
        ("PAL-TOOL-SUM", "pal-tool-*", False),
        ("pal-dev-turns", "pal-tool-*", False),
        ("t-ten_1-sum", "t-{tenant}-*", True),
        ("t-ten_2-sum", "t-{tenant}-*", False),
        ("t-ten_1", "t-{tenant}", True),
        ("t-{tenant}-sum", "t-{tenant}-*", False),
        ("anything", "*", True),
        ("arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-sum", "*", False),
        ("arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-sum", "pal-tool-*", False),
        ("arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-sum", "arn*", False),
        (
            "arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-sum",
            "arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-*",
            True,
        ),
        (
            "arn:aws:lambda:us-east-1:123456789012:function:pal-tool-sum",
            "arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-*",
            False,
        ),
        (
            "arn:aws:lambda:eu-west-1:999999999999:function:pal-tool-sum",
            "arn:aws:lambda:*:123456789012:function:pal-tool-*",
            False,
        ),
        (
            "arn:aws:lambda:eu-west-1:999999999999:function:pal-tool-sum",
            "arn:aws:lambda:*:function:pal-tool-*",
            False,
        ),
        (
            "arn:aws:lambda:eu-west-1:123456789012:function:other:pal-tool-sum",
            "arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-*",
            False,
        ),
    ],
)
def test_only_the_functions_that_the_operator_names_may_be_invoked(
    function: str, pattern: str, allowed: bool
) -> None:
    """Lost if red: every function that our role can invoke, another tenant's too, to any tenant."""
    assert may_invoke(function, tenant_id="ten_1", patterns=[pattern]) == allowed
    assert not may_invoke(function, tenant_id="ten_1", patterns=[])


def test_without_a_tenant_no_tenants_function_is_ours() -> None:
    """Lost if red: a pattern that matches more when less is known."""
    assert not may_invoke("t--sum", tenant_id="", patterns=["t-{tenant}-*"])


def test_a_function_that_may_not_be_invoked_is_not(api: ToolServer) -> None:
    """Lost if red: the operator's list, which would be words only."""
    outcome = call(function="pal-dev-turns")
    assert outcome.is_error
    assert "pal-dev-turns is not one that tools may invoke" in outcome.text
    assert api.asked == []
