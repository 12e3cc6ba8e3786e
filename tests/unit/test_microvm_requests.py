"""What is asked of AWS's microVM API, held against botocore's own description of it."""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

import aiohttp
import boto3
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore.stub import Stubber

from chalicelib.config import Settings
from chalicelib.isolation.aws import AwsDriver, idle_policy
from chalicelib.isolation.aws_calls import _make_client
from chalicelib.isolation.aws_endpoint import address, kept_alive
from chalicelib.isolation.base import Listed, Machine, MachineGone, MachineUnavailable

IMAGE = "arn:aws:lambda:eu-west-1:123456789012:microvm-image:palimpsest-dev"
CLOSED = "arn:aws:lambda:eu-west-1:123456789012:network-connector:palimpsest-dev"
STARTED = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
HOST = "0c1d.lambda-microvm.eu-west-1.on.aws"
VM: dict[str, Any] = {
    "microvmId": "microvm-1",
    "state": "PENDING",
    "endpoint": HOST,
    "imageArn": IMAGE,
    "imageVersion": "1.0",
    "maximumDurationInSeconds": 28800,
    "startedAt": STARTED,
}
ONE = {"microvmIdentifier": "microvm-1"}
MACHINE = Machine(id="microvm-1", endpoint=f"https://{HOST}", started_at=STARTED)


class Nowhere(AbstractResolver):
    """Knows no name."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise OSError("no such name")

    async def close(self) -> None:
        pass


def drive(expected: list[tuple[str, dict[str, Any], dict[str, Any]]], work: Any) -> Any:
    """What `work` makes of a driver whose calls are exactly these, in this order."""
    client = boto3.session.Session().client(
        "lambda-microvms",
        region_name="eu-west-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )

    async def run() -> Any:
        driver = AwsDriver(
            Settings(microvm_image=IMAGE, microvm_egress=(CLOSED,)),
            client=lambda: client,
            connect=lambda: aiohttp.TCPConnector(resolver=Nowhere()),
        )
        try:
            return await work(driver)
        finally:
            await driver.close()

    with Stubber(client) as stub:
        for method, parameters, response in expected:
            stub.add_response(method, response, parameters)
        try:
            return asyncio.run(run())
        finally:
            stub.assert_no_pending_responses()


def test_a_vm_is_asked_for_closed_nameless_and_bounded() -> None:
    """Lost if red: VMs with the internet or a role, that AWS never ends, or two for one token."""
    run = {
        "imageIdentifier": IMAGE,
        "clientToken": "vm_1",
        "egressNetworkConnectors": [CLOSED],
        "idlePolicy": {
            "maxIdleDurationSeconds": 660,
            "suspendedDurationSeconds": 1440,
            "autoResumeEnabled": True,
        },
        "logging": {"disabled": {}},
        "maximumDurationInSeconds": 28800,
    }
    with pytest.raises(MachineGone):
        drive(
            [
                ("run_microvm", run, VM),
                ("get_microvm", ONE, VM),
                ("get_microvm", ONE, VM | {"state": "TERMINATED"}),
            ],
            lambda driver: driver.start(token="vm_1", idle=1800),
        )


def test_a_call_takes_a_short_token_for_one_port_and_resumes() -> None:
    """Lost if red: tokens that open more than the agent or live long; a VM that stays asleep."""
    token = {"expirationInMinutes": 15, "allowedPorts": [{"port": 8080}]}
    with pytest.raises(MachineGone) as gone:
        drive(
            [
                (
                    "create_microvm_auth_token",
                    ONE | token,
                    {"authToken": {"X-aws-proxy-auth": "t"}},
                ),
                ("get_microvm", ONE, VM | {"state": "SUSPENDED"}),
                ("resume_microvm", ONE, {}),
                ("get_microvm", ONE, VM | {"state": "TERMINATED"}),
            ],
            lambda driver: driver.ask(MACHINE, "/v1/run", {}, timeout=20),
        )
    assert not gone.value.begun


def test_the_vms_of_the_image_are_listed_to_the_last_page() -> None:
    """Lost if red: VMs that nobody knows of and that cost money, or the VMs of another image."""
    item = {key: VM[key] for key in ("imageArn", "imageVersion", "startedAt")}
    page = {"imageIdentifier": IMAGE, "maxResults": 50}
    first = [
        {"microvmId": "microvm-1", "state": "SUSPENDED", **item},
        {"microvmId": "microvm-2", "state": "TERMINATED", **item},
    ]
    second = [{"microvmId": "microvm-3", "state": "PENDING", **item}]
    found = drive(
        [
            ("list_microvms", page, {"items": first, "nextToken": "more"}),
            ("list_microvms", page | {"nextToken": "more"}, {"items": second}),
            ("terminate_microvm", {"microvmIdentifier": "microvm-3"}, {}),
        ],
        lambda driver: _list_then_end(driver),
    )
    assert found == [Listed(id=id, started_at=STARTED) for id in ("microvm-1", "microvm-3")]


async def _list_then_end(driver: AwsDriver) -> list[Listed]:
    found = await driver.list()
    await driver.terminate(found[-1].id)
    return found


def test_calls_are_bounded_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost if red: a turn that waits for AWS without end, or gives up at the first throttle."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA_MICROVMS", "http://127.0.0.1:9")
    client = _make_client()
    config = client.meta.config
    assert config.retries == {"total_max_attempts": 4, "mode": "standard"}
    assert (config.connect_timeout, config.read_timeout) == (5.0, 20.0)
    assert client.meta.endpoint_url == "http://127.0.0.1:9"
    client.close()


@pytest.mark.parametrize(
    ("idle", "suspended"),
    [
        pytest.param(60, 60, id="short"),
        pytest.param(1800, 1440, id="default"),
        pytest.param(8 * 3600, 28140, id="longest"),
    ],
)
def test_aws_ends_a_vm_after_the_sweep_should_have(idle: float, suspended: int) -> None:
    """Lost if red: files taken from a session that is still used, or VMs that live for hours."""
    policy = idle_policy(idle)
    assert policy["suspendedDurationSeconds"] == suspended
    unused = policy["maxIdleDurationSeconds"] + suspended
    assert unused > idle or unused == 28800


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://0c1d.lambda-microvm.eu-west-1.on.aws",
        "https://0c1d.lambda-microvm.eu-west-1.on.aws:8443",
        "https://someone@0c1d.lambda-microvm.eu-west-1.on.aws",
        "https://0c1d.lambda-microvm.eu-west-1.on.aws.example.org",
        "169.254.169.254",
        "127.0.0.1",
        "",
    ],
)
def test_an_endpoint_that_is_not_awss_is_not_called(endpoint: str) -> None:
    """Lost if red: what code and files a session has, sent to somewhere else."""
    assert address(HOST) == address(f"https://{HOST}") == f"https://{HOST}"
    with pytest.raises(MachineUnavailable):
        address(endpoint)


def test_a_connection_outlives_a_long_run() -> None:
    """Lost if red: code that runs for minutes, to a NAT gateway that forgets its connection."""
    with kept_alive((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 443))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 350
