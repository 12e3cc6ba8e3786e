"""The functions of the packaged stack: what starts them, what they are told, what they log."""

import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app import app
from chalicelib.config import load_settings
from chalicelib.rules import Secret
from tests.support.package import PYTHON, Package, make_package

pytestmark = pytest.mark.timeout(600)

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
    "bootstrap": "Bootstrap",
}
# those that log in to the cluster itself, as others than pal_app
BESIDE = {"Migrate", "Bootstrap"}


@pytest.fixture(scope="module")
def prod_package(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return make_package("prod", checkout, tmp_path_factory.mktemp("prod"))


def test_every_function_of_the_app_is_in_the_stack(dev_package: Package) -> None:
    """A function would not be deployed, or what infra adds to it would go to a name of no type."""
    registered: list[Any] = [*app.pure_lambda_functions, *app.event_sources]
    handlers = {one.name: one.handler_string for one in registered} | {"api_handler": "app.app"}
    assert set(handlers) == set(IDS)
    expected = {IDS[name]: handler for name, handler in handlers.items()}
    assert {name: one["Handler"] for name, one in dev_package.functions().items()} == expected
    assert {one["Runtime"] for one in dev_package.functions().values()} == {PYTHON}


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
        "Bootstrap": 60,
    }


def test_stream_function_streams_from_a_public_url(dev_package: Package) -> None:
    """Answers would come whole at their end, or not at all, or only to those whom IAM knows."""
    stream = dev_package.properties("Stream")
    assert stream["FunctionUrlConfig"] == {"AuthType": "NONE", "InvokeMode": "RESPONSE_STREAM"}
    wrapper = dev_package.variables("Stream")["AWS_LAMBDA_EXEC_WRAPPER"]
    with zipfile.ZipFile(dev_package.code) as zipped:
        mode = zipped.getinfo(wrapper.removeprefix("/var/task/")).external_attr >> 16
    assert stat.filemode(mode) == "-rwxr-xr-x"
    assert set(dev_package.template["Outputs"]) >= {"ApiUrl", "StreamUrl"}


def test_stream_function_is_kept_warm_only_if_asked(dev_package: Package) -> None:
    """Whoever deploys would pay for warm streams unasked, or could not have them."""
    stream = dev_package.properties("Stream")
    # a changed setting without changed code would never reach the alias that is called
    assert (stream["AutoPublishAlias"], stream["AutoPublishAliasAllProperties"]) == ("live", True)
    nothing = {"Ref": "AWS::NoValue"}
    for name, parameter in (
        ("ProvisionedConcurrencyConfig", "StreamProvisionedConcurrency"),
        ("ReservedConcurrentExecutions", "StreamReservedConcurrency"),
    ):
        condition, told, otherwise = stream[name]["Fn::If"]
        assert told in ({"Ref": parameter}, {"ProvisionedConcurrentExecutions": {"Ref": parameter}})
        assert otherwise == nothing
        assert dev_package.template["Conditions"][condition] == {
            "Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, 0]}]
        }
        assert dev_package.template["Parameters"][parameter]["Default"] == 0


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
    for function in package.functions():
        assert package.variables(function)[f"PAL_{name.upper()}_QUEUE"] == f"pal-{stage}-{name}"


@pytest.mark.parametrize("stage", ["dev", "prod"])
@pytest.mark.parametrize("name", ["turns", "memory"])
def test_what_no_worker_survives_is_set_aside(
    name: str, stage: str, request: pytest.FixtureRequest
) -> None:
    """A message that kills its worker would be given out again and again, before all others."""
    package: Package = request.getfixturevalue(f"{stage}_package")
    queue = package.properties(f"{name.title()}Queue")
    dead = queue["RedrivePolicy"]
    assert dead["deadLetterTargetArn"] == {"Fn::Sub": f"${{{name.title()}DeadLetters.Arn}}"}
    assert package.text(package.properties(f"{name.title()}DeadLetters")["QueueName"]) == (
        f"pal-{stage}-{name}-dead"
    )
    # else it would be deleted before it could be set aside
    assert queue["MessageRetentionPeriod"] > dead["maxReceiveCount"] * queue["VisibilityTimeout"]


@pytest.mark.parametrize(
    ("variable", "value", "functions"),
    [
        pytest.param(
            "PAL_TURNS_QUEUE_URL",
            {"Ref": "TurnsQueue"},
            {"APIHandler", "Stream", "TurnWorker", "Sweep"},
            id="who accepts messages, takes up lost ones or ends a turn queues turns",
        ),
        pytest.param(
            "PAL_MEMORY_QUEUE_URL",
            {"Ref": "MemoryQueue"},
            {"MemoryTick", "MemoryWorker", "APIHandler", "Stream", "TurnWorker", "Sweep"},
            id="who ticks, slices or ends sessions queues passes",
        ),
        pytest.param(
            "PAL_KMS_KEY",
            {"Fn::Sub": "${VaultKey.Arn}"},
            {"APIHandler", "Stream", "TurnWorker", "Sweep", "MemoryWorker"},
            id="who asks models or seals keys knows the vault's key",
        ),
    ],
)
def test_function_is_told_what_its_work_takes(
    dev_package: Package, variable: str, value: Any, functions: set[str]
) -> None:
    """Turns and passes would run inside functions that freeze; tenants' keys would not open."""
    knowing = {
        name
        for name in dev_package.functions()
        if dev_package.variables(name).get(variable) == value
    }
    assert knowing == functions
    assert {n for n in dev_package.functions() if variable in dev_package.variables(n)} == knowing


@pytest.mark.parametrize("function", ["Sweep", "MemoryTick", "MemoryIndex"])
def test_what_looks_for_work_comes_every_minute(function: str, dev_package: Package) -> None:
    """A turn whose runner died, or a tenant whose pass is due, would never be taken up."""
    (event,) = dev_package.properties(function)["Events"].values()
    assert event == {"Type": "Schedule", "Properties": {"Schedule": "rate(1 minute)"}}
    # a failing run would come three times, beside the next ones
    assert dev_package.properties(function)["EventInvokeConfig"] == {"MaximumRetryAttempts": 0}


def test_passes_cost_what_they_may(dev_package: Package) -> None:
    """A thousand passes would begin in one minute, or a long one be stopped in the middle."""
    worker = dev_package.properties("MemoryWorker")
    (source,) = worker["Events"].values()
    assert source["Properties"]["ScalingConfig"] == {"MaximumConcurrency": 10}


@pytest.mark.parametrize("worker", ["TurnWorker", "MemoryWorker"])
def test_worker_may_send_on_to_itself(worker: str, dev_package: Package) -> None:
    """A session that is written to while it answers, or a long pass, would end as a dead letter.

    Lambda stops a function that sends to its own queue after the 16th time in a row.
    """
    assert dev_package.properties(worker)["RecursiveLoop"] == "Allow"


def test_functions_log_in_without_a_password(dev_package: Package) -> None:
    """Whoever may read a function's settings would have the database, past row-level security."""
    for name in dev_package.functions():
        told = dev_package.variables(name)
        logins = {
            variable: dev_package.text(value)
            for variable, value in told.items()
            if variable.startswith("PAL_DATABASE_") and variable.endswith("URL")
        }
        assert told["PAL_DATABASE_IAM"] == "on"
        if name in BESIDE:
            (url,) = logins.values()
            assert set(logins) == {"PAL_DATABASE_OWNER_URL"}
            assert url.startswith("postgresql://pal_owner@${Database.Endpoint.Address}:5432/")
        else:
            (url,) = logins.values()
            assert set(logins) == {"PAL_DATABASE_URL"}
            assert url.startswith("postgresql://pal_app@${DatabaseProxy.Endpoint}:5432/")
        assert "sslmode=verify-full" in url


def test_functions_settings_hold_no_secret(dev_package: Package) -> None:
    """Keys would be shown in the console and in every copy of the template."""
    placed = {
        name: value if isinstance(value, str) else "postgresql://pal_app@database/pal"
        for function in dev_package.functions()
        for name, value in dev_package.variables(function).items()
        if isinstance(value, str) or "DATABASE" in name
    }
    told = {
        name
        for name, value in vars(load_settings(placed)).items()
        if isinstance(value, Secret) and value
    }
    # which have no password, as the test above looks at
    assert told == {"database_url", "database_owner_url"}
    assert not any("NoEcho" in one for one in dev_package.template["Parameters"].values())


def test_functions_are_in_the_network_of_the_database(dev_package: Package) -> None:
    """A function would not reach the database, or the API reach the cluster past the proxy."""
    subnets = dev_package.template["Globals"]["Function"]["VpcConfig"]
    assert subnets == {"SubnetIds": [{"Ref": "PrivateSubnetA"}, {"Ref": "PrivateSubnetB"}]}
    for name, function in dev_package.functions().items():
        group = "MigrateSecurityGroup" if name in BESIDE else "FunctionSecurityGroup"
        assert function["VpcConfig"] == {
            "SecurityGroupIds": [{"Fn::GetAtt": [group, "GroupId"]}]
        }, name


def test_every_function_has_its_log_group(dev_package: Package) -> None:
    """A function that may not make its log group would run without a log."""
    groups = [
        one["Properties"]
        for one in dev_package.template["Resources"].values()
        if one["Type"] == "AWS::Logs::LogGroup"
    ]
    names = {dev_package.text(one["LogGroupName"]) for one in groups}
    assert {f"/aws/lambda/${{{name}}}" for name in dev_package.functions()} <= names
    assert {one["RetentionInDays"] for one in groups} == {30}
    assert {one["Tracing"] for one in dev_package.functions().values()} == {"Active"}


def test_tenants_secrets_are_sealed_with_a_key_that_outlives_the_stack(
    dev_package: Package,
) -> None:
    """Tenants' provider keys would be gone for good with a deleted stack."""
    key = dev_package.template["Resources"]["VaultKey"]
    assert (key["Type"], key["DeletionPolicy"]) == ("AWS::KMS::Key", "RetainExceptOnCreate")
    assert key["UpdateReplacePolicy"] == "Retain"
    assert key["Properties"]["EnableKeyRotation"] is True
