"""The functions' roles in the packaged stack: what each may do, and what it may not."""

import pytest

from tests.support.package import Package

ARN = "arn:${AWS::Partition}:%s:${AWS::Region}:${AWS::AccountId}:%s"
VAULT_KEY = "${VaultKey.Arn}"
SEND, SEND_PASS = (
    {("sqs:SendMessage", ARN % ("sqs", f"pal-dev-{queue}"))} for queue in ("turns", "memory")
)
TAKE, TAKE_PASS = (
    {
        (f"sqs:{action}", ARN % ("sqs", f"pal-dev-{queue}"))
        for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
    }
    for queue in ("turns", "memory")
)
SEAL = {("kms:Encrypt", VAULT_KEY)}
# what making vectors reaches
EMBED = {
    (
        "bedrock:InvokeModel",
        "arn:${AWS::Partition}:bedrock:${AWS::Region}::foundation-model/*embed*",
    ),
    ("secretsmanager:GetSecretValue", ARN % ("secretsmanager", "secret:palimpsest/dev/*")),
}
# what asking a model reaches: models, the platform's keys and tenants' own
ASK = {
    *(
        (f"bedrock:InvokeModel{way}", arn)
        for way in ("", "WithResponseStream")
        for arn in (
            "arn:${AWS::Partition}:bedrock:*::foundation-model/*",
            ARN % ("bedrock", "inference-profile/*"),
            ARN % ("bedrock", "application-inference-profile/*"),
        )
    ),
    ("secretsmanager:GetSecretValue", ARN % ("secretsmanager", "secret:palimpsest/dev/*")),
    ("kms:Decrypt", VAULT_KEY),
}
# microVMs of the stack's own image; a VM is authorized by its image
IMAGE = ARN % ("lambda", "microvm-image:palimpsest-dev")
END_VMS = {("lambda:TerminateMicrovm", IMAGE)}
FIND_VMS = {("lambda:ListMicrovms", "*")}
USE_VMS = {
    *((f"lambda:{one}", IMAGE) for one in ("RunMicrovm", "GetMicrovm", "ResumeMicrovm")),
    ("lambda:CreateMicrovmAuthToken", IMAGE),
    ("lambda:PassNetworkConnector", ARN % ("lambda", "network-connector:*")),
    (
        "lambda:PassNetworkConnector",
        "arn:${AWS::Partition}:lambda:${AWS::Region}:aws:"
        "network-connector:aws-network-connector:HTTP_INGRESS",
    ),
    *END_VMS,
}
# and a turn, its tools and the secrets that they are given
TURN = {*ASK, ("lambda:InvokeFunction", ARN % ("lambda", "function:pal-tool-*")), *USE_VMS}
# the master's password, which RDS keeps
MASTER = {
    ("secretsmanager:GetSecretValue", "${Database.MasterUserSecret.SecretArn}"),
    ("kms:Decrypt", "${DatabaseKey.Arn}"),
}
# what Lambda does with a function's role to join it to the network
JOIN = frozenset(
    {
        "ec2:CreateNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:DeleteNetworkInterface",
        "ec2:AssignPrivateIpAddresses",
        "ec2:UnassignPrivateIpAddresses",
    }
)
API = SEND | SEND_PASS | SEAL | EMBED | ASK | END_VMS
SWEEP = SEND | SEND_PASS | ASK | END_VMS | FIND_VMS

APP = "${ProxyId}/pal_app"
OWNER, MASTER_LOGIN = (
    f"${{Database.DBClusterResourceId}}/{login}" for login in ("pal_owner", "pal_master")
)


@pytest.mark.parametrize(
    ("function", "work", "login"),
    [
        pytest.param("APIHandler", API, APP, id="api"),
        pytest.param("Stream", SEND | SEND_PASS | TURN, APP, id="stream"),
        pytest.param("TurnWorker", TAKE | SEND | SEND_PASS | TURN, APP, id="turn-worker"),
        pytest.param("Sweep", SWEEP, APP, id="sweep"),
        pytest.param("MemoryTick", SEND_PASS, APP, id="memory-tick"),
        pytest.param("MemoryWorker", TAKE_PASS | SEND_PASS | ASK, APP, id="memory-worker"),
        pytest.param("MemoryIndex", EMBED, APP, id="memory-index"),
        pytest.param("Migrate", set(), OWNER, id="migrate"),
        pytest.param("Bootstrap", MASTER, MASTER_LOGIN, id="bootstrap"),
    ],
)
def test_function_may_do_its_work_and_no_more(
    dev_package: Package, function: str, work: set[tuple[str, str]], login: str
) -> None:
    """One hole in one function would open the other functions' queues, logs, keys and tables."""
    roles = [str(one["Role"]) for one in dev_package.functions().values()]
    assert len(set(roles)) == len(roles)
    name = dev_package.text(dev_package.properties(function)["FunctionName"])
    group = ARN % ("logs", f"log-group:/aws/lambda/{name}:*")
    assert dev_package.may(function) == {
        ("logs:CreateLogStream", group),
        ("logs:PutLogEvents", group),
        ("xray:PutTraceSegments", "*"),
        ("xray:PutTelemetryRecords", "*"),
        *((action, "*") for action in JOIN),
        ("rds-db:connect", ARN % ("rds-db", f"dbuser:{login}")),
        *work,
    }


def test_functions_code_may_not_touch_the_network(dev_package: Package) -> None:
    """A hole in any function could take addresses and interfaces away from all of the VPC."""
    for function in dev_package.functions():
        name = dev_package.text(dev_package.properties(function)["FunctionName"])
        denied = dev_package.statements(function)["NotFromCode"]
        assert (denied["Effect"], denied["Resource"]) == ("Deny", "*")
        assert set(denied["Action"]) == JOIN
        assert list(denied["Condition"]) == ["ArnEquals"]
        ((key, arns),) = denied["Condition"]["ArnEquals"].items()
        (arn,) = arns if isinstance(arns, list) else [arns]
        assert key == "lambda:SourceFunctionArn"
        assert dev_package.text(arn) == ARN % ("lambda", f"function:{name}")


def test_roles_hold_plain_grants_of_named_actions(dev_package: Package) -> None:
    """What is allowed would not be what the tests above read: a Deny, a Not, a wildcard."""
    for function in dev_package.functions():
        for sid, one in dev_package.statements(function).items():
            if sid != "NotFromCode":
                # a condition can only narrow
                assert set(one) - {"Condition"} == {"Sid", "Effect", "Action", "Resource"}
                assert one["Effect"] == "Allow"
            assert [action for action in one["Action"] if "*" in action] == []
