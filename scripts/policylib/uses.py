"""Which functions reach which call of AWS, and what each call takes of a role.

A call is known by the module that makes it and its operation. Who reaches it is said by the
variable that a function has to have for it, or else by name: turns, passes and bodies of requests
run where design.md says so, which no import tells.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .stack import PARTITION, REGION, Function, arn

On = Mapping[str, object]
Asks = Callable[[On, str], Iterable[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Use:
    """`asks` gives the actions with their resources that one call needs, for a stage."""

    site: str
    operation: str
    by: frozenset[str] | str
    """Functions, or the variable that those who reach it have."""
    asks: Asks
    why: str

    def reached_by(self, function: Function) -> bool:
        if isinstance(self.by, str):
            return bool(function.variables.get(self.by))
        return function.name in self.by


def _one(action: str, resource: Callable[[On, str], str]) -> Asks:
    return lambda on, stage: [(action, resource(on, stage))]


def _queue(name: str) -> Asks:
    return _one("sqs:SendMessage", lambda on, stage: arn("sqs", f"pal-{stage}-{name}"))


def _image(action: str) -> Asks:
    return _one(action, lambda on, stage: arn("lambda", f"microvm-image:palimpsest-{stage}"))


def _secret(on: On, stage: str) -> str:
    # the suite's secrets have any name; the functions' are in a folder of the stage
    name = str(on["SecretId"]).rpartition("/")[2]
    return arn("secretsmanager", f"secret:palimpsest/{stage}/{name}")


def _tool(on: On, stage: str) -> str:
    # a name or an ARN, either with a version behind it
    return arn("lambda", f"function:{str(on['FunctionName']).rpartition(':function:')[2]}")


def _model(action: str) -> Asks:
    def asks(on: On, stage: str) -> list[tuple[str, str]]:
        model = str(on["modelId"]).rpartition("/")[2]
        geography, _, rest = model.partition(".")
        if geography not in ("eu", "us", "apac", "global"):
            return [(action, f"arn:{PARTITION}:bedrock:{REGION}::foundation-model/{model}")]
        # an inference profile sends a request on to the model in another region
        return [
            (action, arn("bedrock", f"inference-profile/{model}")),
            (action, f"arn:{PARTITION}:bedrock:eu-north-1::foundation-model/{rest}"),
        ]

    return asks


def _embedder(on: On, stage: str) -> list[tuple[str, str]]:
    # the suite has one of no such name, to be refused
    model = on["modelId"] if "embed" in str(on["modelId"]) else "amazon.titan-embed-text-v2:0"
    return list(_model("bedrock:InvokeModel")({"modelId": model}, stage))


def _run_microvm(on: On, stage: str) -> list[tuple[str, str]]:
    image = arn("lambda", f"microvm-image:palimpsest-{stage}")
    ingress = f"arn:{PARTITION}:lambda:{REGION}:aws:network-connector:aws-network-connector"
    return [
        ("lambda:RunMicrovm", image),
        ("lambda:PassNetworkConnector", arn("lambda", "network-connector:egress")),
        ("lambda:PassNetworkConnector", f"{ingress}:HTTP_INGRESS"),
    ]


def _master(on: On, stage: str) -> list[tuple[str, str]]:
    return [
        ("secretsmanager:GetSecretValue", "<Database.MasterUserSecret.SecretArn>"),
        # Secrets Manager opens it with the caller's right to the key
        ("kms:Decrypt", "<DatabaseKey.Arn>"),
    ]


TURNS = frozenset({"Stream", "TurnWorker"})
ASKING = TURNS | {"APIHandler", "Sweep", "MemoryWorker"}
EMBEDDING = frozenset({"APIHandler", "MemoryIndex", *TURNS})
ENDING = frozenset({"APIHandler", "Sweep", *TURNS})

_ASKING = "turns, passes, narratives, and what ends a session ask models"
_VMS = "chalicelib.isolation.aws_calls"
_BEDROCK = "chalicelib.providers.bedrock_client"

USES = (
    Use(
        site="chalicelib.sessions.dispatch",
        operation="sqs:SendMessage",
        by="PAL_TURNS_QUEUE_URL",
        asks=_queue("turns"),
        why="whoever accepts messages or finds turns that wait sends them to a worker",
    ),
    Use(
        site="chalicelib.memory.schedule",
        operation="sqs:SendMessageBatch",
        by="PAL_MEMORY_QUEUE_URL",
        asks=_queue("memory"),
        why="whoever finds a tenant due, or ends a session, sends it to a worker",
    ),
    Use(
        site="chalicelib.vault",
        operation="kms:Encrypt",
        by=frozenset({"APIHandler"}),
        asks=_one("kms:Encrypt", lambda on, stage: "<VaultKey.Arn>"),
        why="secrets come in by the admin's routes",
    ),
    Use(
        site="chalicelib.vault",
        operation="kms:Decrypt",
        by="PAL_KMS_KEY",
        asks=_one("kms:Decrypt", lambda on, stage: "<VaultKey.Arn>"),
        why="tenants' own keys are opened where models are asked",
    ),
    Use(
        site="chalicelib.providers.keyring",
        operation="secretsmanager:GetSecretValue",
        by=ASKING | EMBEDDING,
        asks=_one("secretsmanager:GetSecretValue", _secret),
        why="the platform's keys are read where a vendor is asked",
    ),
    Use(
        site=_BEDROCK,
        operation="bedrock-runtime:Converse",
        by=ASKING,
        asks=_model("bedrock:InvokeModel"),
        why=_ASKING,
    ),
    Use(
        site=_BEDROCK,
        operation="bedrock-runtime:ConverseStream",
        by=ASKING,
        asks=_model("bedrock:InvokeModelWithResponseStream"),
        why=_ASKING,
    ),
    Use(
        site=_BEDROCK,
        operation="bedrock-runtime:InvokeModel",
        by=EMBEDDING,
        asks=_embedder,
        why="vectors are made of what comes in, and of what is searched for",
    ),
    Use(
        site="chalicelib.tools.lambda_",
        operation="lambda:Invoke",
        by=TURNS,
        asks=_one("lambda:InvokeFunction", _tool),
        why="turns call tools",
    ),
    Use(
        site=_VMS,
        operation="lambda-microvms:RunMicrovm",
        by=TURNS,
        asks=_run_microvm,
        why="a turn starts its session's VM",
    ),
    *(
        Use(
            site=_VMS,
            operation=f"lambda-microvms:{operation}",
            by=TURNS,
            asks=_image(f"lambda:{operation}"),
            why="a turn uses its session's VM",
        )
        for operation in ("GetMicrovm", "CreateMicrovmAuthToken", "ResumeMicrovm")
    ),
    Use(
        site=_VMS,
        operation="lambda-microvms:TerminateMicrovm",
        by=ENDING,
        asks=_image("lambda:TerminateMicrovm"),
        why="sessions are stopped, deleted and ended; the sweep reaps what lies idle",
    ),
    Use(
        site=_VMS,
        operation="lambda-microvms:ListMicrovms",
        by=frozenset({"Sweep"}),
        asks=_one("lambda:ListMicrovms", lambda on, stage: "*"),
        why="the sweep looks for VMs that no session knows",
    ),
    Use(
        site="chalicelib.db.master",
        operation="secretsmanager:GetSecretValue",
        by=frozenset({"Bootstrap"}),
        asks=_master,
        why="the bootstrap logs in as the master user",
    ),
    Use(
        site="chalicelib.db.iam",
        operation="sts:AssumeRoleWithWebIdentity",
        by=frozenset(),
        asks=lambda on, stage: (),
        why="a container signs its logins with what a cluster gives it; functions have it in the "
        "environment",
    ),
)

# what Lambda itself does with a function's role, and the code could not without it
BY_LAMBDA = {
    "logs:CreateLogStream": "its log",
    "logs:PutLogEvents": "its log",
    "xray:PutTraceSegments": "its traces, and by UDP to Lambda's daemon the code's own",
    "xray:PutTelemetryRecords": "its traces",
    "ec2:CreateNetworkInterface": "its place in the VPC; denied to the code",
    "ec2:DescribeNetworkInterfaces": "its place in the VPC; denied to the code",
    "ec2:DescribeSubnets": "its place in the VPC; denied to the code",
    "ec2:DeleteNetworkInterface": "its place in the VPC; denied to the code",
    "ec2:AssignPrivateIpAddresses": "its place in the VPC; denied to the code",
    "ec2:UnassignPrivateIpAddresses": "its place in the VPC; denied to the code",
}
# Lambda's too, on the queues whose messages it gives the function
BY_EVENT_SOURCE = frozenset({"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"})
# a token is signed, and AWS not asked: the grant is to be for the user of the function's URL
LOGIN = "rds-db:connect"
LOGINS = {"PAL_DATABASE_URL": "pal_app", "PAL_DATABASE_OWNER_URL": "pal_owner"}
MASTER = "PAL_DATABASE_MASTER_SECRET"
# patterns that agents' definitions reach and no test does, each with its reason
UNSEEN = {
    f"arn:{PARTITION}:bedrock:{REGION}:123456789012:application-inference-profile/*": (
        "a model may be named by the profile that a tenant's costs are booked on"
    ),
}
