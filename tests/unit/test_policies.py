"""The comparison of roles with what the suite asks of AWS, on a stack of two functions."""

import copy
from typing import Any

import pytest

from scripts.packagelib.layers import SERVICES
from scripts.policylib.compare import Call, differences
from scripts.policylib.stack import Stack, arn
from scripts.policylib.uses import USES, Use

QUEUE = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Fn::Sub": "pal-${Stage}-turns"}}}
TURNS = {"Fn::Sub": "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:pal-${Stage}-turns"}
SEND = {"Sid": "Send", "Effect": "Allow", "Action": ["sqs:SendMessage"], "Resource": TURNS}
TAKE = {"Sid": "Take", "Effect": "Allow", "Action": ["sqs:ReceiveMessage"], "Resource": TURNS}
LOGIN = {
    "Sid": "LogIn",
    "Effect": "Allow",
    "Action": ["rds-db:connect"],
    "Resource": {"Fn::Sub": ["arn:aws:rds-db:x:y:dbuser:${Proxy}/pal_app", {"Proxy": "p"}]},
}
TAKEN = {"Queue": {"Type": "SQS", "Properties": {"Queue": {"Fn::Sub": "${Turns.Arn}"}}}}
SENT = Call(site="code", operation="sqs:SendMessage", on={"QueueUrl": "http://any/queue"})
USE = Use(
    site="code",
    operation="sqs:SendMessage",
    by="QUEUE_URL",
    asks=lambda on, stage: [("sqs:SendMessage", arn("sqs", f"pal-{stage}-turns"))],
    why="a test's",
)


def function(role: str, **more: Any) -> dict[str, Any]:
    role_of = {"Fn::GetAtt": [role, "Arn"]}
    return {"Type": "AWS::Serverless::Function", "Properties": {"Role": role_of, **more}}


def role(*statements: dict[str, Any]) -> dict[str, Any]:
    policy = {"PolicyDocument": {"Statement": list(statements)}}
    return {"Type": "AWS::IAM::Role", "Properties": {"Policies": [policy]}}


TEMPLATE: dict[str, Any] = {
    "Globals": {"Function": {"Environment": {"Variables": {"PAL_DATABASE_URL": "postgresql://…"}}}},
    "Resources": {
        "Turns": QUEUE,
        "Api": function("ApiRole", Environment={"Variables": {"QUEUE_URL": {"Ref": "Turns"}}}),
        "ApiRole": role(SEND, LOGIN),
        "Worker": function("WorkerRole", Events=TAKEN),
        "WorkerRole": role(TAKE),
    },
}


def compared(*calls: Call, **roles: dict[str, Any]) -> list[str]:
    template = copy.deepcopy(TEMPLATE)
    template["Resources"].update(roles)
    return differences(calls, Stack(template, "dev"), [USE])


def test_roles_that_fit_are_let_pass() -> None:
    """Lost if red: the check itself, which would be switched off."""
    assert compared(SENT) == []


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        pytest.param(
            {"ApiRole": role(LOGIN)}, "Api may not sqs:SendMessage on", id="lacks-an-action"
        ),
        pytest.param(
            {"ApiRole": role({**SEND, "Resource": "arn:aws:sqs:eu-west-1:123456789012:other"})},
            "Api may not sqs:SendMessage on",
            id="allows-it-elsewhere",
        ),
        pytest.param(
            {"ApiRole": role(SEND, {**SEND, "Effect": "Deny", "Resource": "*"})},
            "Api may not sqs:SendMessage on",
            id="denies-it",
        ),
        pytest.param(
            {"ApiRole": role({**SEND, "Action": ["sqs:SendMessage", "sqs:PurgeQueue"]})},
            "Api may sqs:PurgeQueue on",
            id="allows-what-no-one-does",
        ),
        pytest.param(
            {"WorkerRole": role(TAKE, SEND)}, "Worker may sqs:SendMessage on", id="of-another"
        ),
        pytest.param({"ApiRole": role(SEND, TAKE)}, "Api may sqs:ReceiveMessage on", id="no-event"),
        pytest.param(
            {"ApiRole": role(SEND, {**LOGIN, "Resource": "arn:aws:rds-db:x:y:dbuser:p/pal_owner"})},
            "Api may rds-db:connect on",
            id="another-login",
        ),
    ],
)
def test_role_that_does_not_fit_is_told(roles: dict[str, Any], told: str) -> None:
    """Lost if red: a function that fails in production only, or one that could do harm."""
    assert compared(SENT, **roles)[0].startswith(told)


def test_what_no_test_does_is_told() -> None:
    """Lost if red: a grant that looks used since its table says so."""
    assert [one.partition(",")[0] for one in compared()] == [
        "code asks for sqs:SendMessage",
        "Api may sqs:SendMessage on arn:aws:sqs:eu-west-1:123456789012:pal-dev-turns",
    ]


def test_call_that_is_no_ones_is_told() -> None:
    """Lost if red: a new call of AWS that no role was given the right to."""
    other = Call(site="code", operation="sqs:PurgeQueue", on={})
    assert compared(SENT, other) == [
        "code asks for sqs:PurgeQueue, and no one says whose call it is"
    ]


def test_services_that_are_called_are_in_the_layer() -> None:
    """Lost if red: a call that works here and is unknown to the botocore that is on Lambda."""
    assert set(SERVICES) == {use.operation.partition(":")[0] for use in USES if use.by}
