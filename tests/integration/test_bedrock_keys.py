"""Whose key the Bedrock adapter sends, and where to: the operator's and a tenant's."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chalicelib.config import Secret, Settings, use
from chalicelib.errors import (
    ProviderDenied,
)
from tests.fakes.bedrock_driver import (
    ACCESS,
    KEY,
    adapter,
    ask,
    asking,
    set_aws_variables,
    text_of,
)
from tests.fakes.bedrock_server import FakeBedrock


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """AWS's variables as a deploy has them."""
    set_aws_variables(monkeypatch, tmp_path)
    return monkeypatch


@pytest.fixture
def bedrock() -> Iterator[FakeBedrock]:
    """The service, which greets unless a test scripts it."""
    with FakeBedrock() as fake:
        yield fake


# ── keys ─────────────────────────────────────────────────────────────────────────────────────


def test_request_is_signed_by_aws_s_own_variables(
    bedrock: FakeBedrock, aws: pytest.MonkeyPatch
) -> None:
    """Lost if red: deploys that have their role and region from Lambda."""
    aws.setenv("AWS_SESSION_TOKEN", "a-token")
    ask(adapter(bedrock.base_url))
    signed = bedrock.asked[0].headers
    assert signed["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS}/")
    assert "/eu-central-1/bedrock/aws4_request" in signed["authorization"]
    assert "idempotency-key" in signed["authorization"], "what is not signed may be changed"
    assert signed["x-amz-security-token"] == "a-token"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"])
def test_endpoint_is_aws_s_own_variable(
    bedrock: FakeBedrock, aws: pytest.MonkeyPatch, name: str
) -> None:
    """Lost if red: VPC endpoints, and tests against a local service."""
    aws.setenv(name, bedrock.base_url)
    events, _ = ask(adapter(""))
    assert text_of(events) == "Hello."


@pytest.mark.parametrize("with_credentials", [True, False])
def test_key_of_its_own_is_sent_instead_of_a_signature(
    bedrock: FakeBedrock, aws: pytest.MonkeyPatch, with_credentials: bool
) -> None:
    """Lost if red: tenants who bring their own key, or who pays for them."""
    if not with_credentials:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            aws.delenv(name)
    aws.setenv("AWS_BEARER_TOKEN_BEDROCK", "the-operator-s")
    events, failed = ask(adapter(bedrock.base_url, api_key=Secret(KEY)))
    assert failed is None
    assert text_of(events) == "Hello."
    assert bedrock.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert "x-amz-date" not in bedrock.asked[0].headers


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        pytest.param("AWS_ACCESS_KEY_ID", "has no valid AWS credentials.", id="none"),
        pytest.param("AWS_SECRET_ACCESS_KEY", "has no valid AWS credentials.", id="half"),
        pytest.param("AWS_REGION", "needs AWS_REGION to be set.", id="region"),
    ],
)
def test_call_without_credentials_is_denied(
    bedrock: FakeBedrock, aws: pytest.MonkeyPatch, missing: str, told: str
) -> None:
    """Lost if red: a sentence that says what is missing, and the next provider."""
    aws.delenv(missing)
    _, failed = ask(adapter(bedrock.base_url))
    assert type(failed) is ProviderDenied
    assert failed.message == f"bedrock:m {told}"
    assert bedrock.asked == []


def test_equal_requests_have_one_idempotency_key_in_any_process(
    bedrock: FakeBedrock, root: Path
) -> None:
    """Lost if red: a turn that is taken up by another process is paid for twice."""
    program = (
        "import asyncio, sys\n"
        "from tests.fakes.bedrock_driver import adapter, ask\n"
        "ask(adapter(sys.argv[1], api_key='another'))\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, bedrock.base_url]
        subprocess.run(command, check=True, cwd=root, env=environment, timeout=60)
    ask(adapter(bedrock.base_url))
    first, *others = [asked.headers["idempotency-key"] for asked in bedrock.asked]
    assert others == [first, first]
    assert len(first) == 64
    ask(adapter(bedrock.base_url), asking(stream=False))
    ask(adapter(bedrock.base_url), asking(system="Be brief."))
    ask(adapter(bedrock.base_url, model="n"))
    assert len({asked.headers["idempotency-key"] for asked in bedrock.asked}) == 4


# ── tenants ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def allowing() -> Iterator[Callable[..., None]]:
    """Sets the hosts that tenants may call though they are private."""

    def allow(*hosts: str) -> None:
        use(Settings(tool_private_hosts=hosts))

    yield allow
    use(None)


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [
        pytest.param("", "", "without a key of its own.", id="no-key"),
        pytest.param("", KEY, "must begin with https", id="no-tls"),
        pytest.param(
            "https://bedrock.attacker.test", KEY, "is not one of Amazon Bedrock's", id="elsewhere"
        ),
        pytest.param(
            "https://bedrock-runtime.eu-west-1.amazonaws.com.attacker.test",
            KEY,
            "is not one of Amazon Bedrock's",
            id="a-look-alike",
        ),
        pytest.param("https://169.254.169.254", KEY, "no public address", id="metadata"),
    ],
)
def test_tenant_s_url_leads_to_bedrock_only(
    bedrock: FakeBedrock, allowing: Callable[..., None], url: str, key: str, told: str
) -> None:
    """Lost if red: the network of the operator, or the operator's credentials."""
    allowing()
    made = adapter(url or bedrock.base_url, api_key=Secret(key), guarded=True)
    events, failed = ask(made)
    assert events == []
    assert type(failed) is ProviderDenied
    assert failed.message.startswith("bedrock:m cannot be called")
    assert told in failed.message
    assert bedrock.asked == []


def test_tenant_s_url_may_be_what_the_operator_lets_through(
    bedrock: FakeBedrock, allowing: Callable[..., None]
) -> None:
    """Lost if red: a stand-in on the operator's own network."""
    allowing(bedrock.base_url.removeprefix("http://"))
    events, _ = ask(adapter(bedrock.base_url, api_key=Secret(KEY), guarded=True))
    assert text_of(events) == "Hello."
