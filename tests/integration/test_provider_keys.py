"""Whose key a provider is called with: the environment's, a secret's, a tenant's own."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from chalicelib import config
from chalicelib.config import Settings, load_settings
from chalicelib.errors import ProviderError, ProviderUnavailable, Unavailable
from chalicelib.providers import Models
from chalicelib.providers.keyring import Keyring
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.aws import aws_server
from tests.support.chains import (
    PLATFORM_KEY,
    Answer,
    actions,
    ask,
    follow,
    reasons,
    run,
    settings_for,
    text_of,
)

OWN = "sk-the-tenants"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────


def test_missing_key_is_a_refused_one_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: which variable to set, a request for nothing, or a log of nothing else."""
    settings = load_settings({"PAL_PROVIDERS": "anthropic:a,openai:b,offline:o"})
    with caplog.at_level(logging.INFO):
        events, error = ask(settings, times=10)
    assert error is None
    assert reasons(events) == [
        "anthropic has no API key: set ANTHROPIC_API_KEY.",
        "openai has no API key: set OPENAI_API_KEY.",
    ]
    assert actions(caplog) == ["provider_denied"] * 2


def test_no_key_is_wanted_at_another_address(provider: FakeOpenAI) -> None:
    """Lost if red: Ollama, llama.cpp and whatever else needs no key."""
    _, error = ask(settings_for(provider, OPENAI_API_KEY=""))
    assert error is None
    assert "authorization" not in provider.requests[0].headers


def with_keys(
    settings: Settings, keys: Mapping[str, tuple[str, str | None]], **chosen: Any
) -> tuple[Answer, list[str]]:
    """The answer for a tenant with keys of its own, and whose keys were read."""
    read: list[str] = []

    async def tenant_keys(tenant_id: str) -> Mapping[str, tuple[str, str | None]]:
        read.append(tenant_id)
        return keys

    async def call() -> Answer:
        models = Models(settings, tenant_keys=tenant_keys)
        try:
            return await follow(await models.chain(tenant_id="ten_1", **chosen))
        finally:
            await models.close()

    return run(call()), read


def test_tenants_own_key_wins(provider: FakeOpenAI) -> None:
    """Lost if red: whose account pays for a turn."""
    (_, error), read = with_keys(settings_for(provider), {"openai": (OWN, None)}, own_keys=True)
    assert (error, read) == (None, ["ten_1"])
    assert provider.requests[0].headers["authorization"] == f"Bearer {OWN}"


def test_without_own_keys_none_are_read(provider: FakeOpenAI) -> None:
    """Lost if red: a query for every turn of every tenant."""
    (_, error), read = with_keys(settings_for(provider), {"openai": (OWN, None)}, own_keys=False)
    assert (error, read) == (None, [])
    assert provider.requests[0].headers["authorization"] == f"Bearer {PLATFORM_KEY}"


def test_provider_without_an_own_key_has_the_platforms(provider: FakeOpenAI) -> None:
    """Lost if red: the rest of the chain of a tenant that brought one key."""
    (_, error), _ = with_keys(settings_for(provider), {"anthropic": (OWN, None)}, own_keys=True)
    assert error is None
    assert provider.requests[0].headers["authorization"] == f"Bearer {PLATFORM_KEY}"


@pytest.fixture
def allowing(provider: FakeOpenAI) -> Iterator[None]:
    """The process allows tenants' providers on the fake's address."""
    host = provider.base_url.partition("//")[2].partition("/")[0]
    config.use(Settings(tool_private_hosts=(host,)))
    yield
    config.use(None)


@pytest.mark.usefixtures("allowing")
def test_tenants_url_gets_no_key_but_the_tenants(provider: FakeOpenAI) -> None:
    """Lost if red: the platform's key, sent to whatever address a tenant names."""
    settings = load_settings({"PAL_PROVIDERS": "openai:one", "OPENAI_API_KEY": PLATFORM_KEY})
    own = {"openai": (OWN, provider.base_url), "openai@mine": (OWN, provider.base_url)}
    for specs in ((), ["openai@mine:one"]):
        (_, error), _ = with_keys(settings, own, own_keys=True, specs=specs)
        assert error is None
    assert [one.headers.get("authorization") for one in provider.requests] == [f"Bearer {OWN}"] * 2


def test_platforms_key_does_not_stand_in_for_one_that_cannot_be_read(provider: FakeOpenAI) -> None:
    """Lost if red: who pays, once a tenant's key was sealed with a key that is gone."""
    (_, error), _ = with_keys(settings_for(provider), {"openai": ("", None)}, own_keys=True)
    assert error is not None
    assert error.message == "The tenant's own key of openai cannot be read: set it again."
    assert provider.requests == []


def test_tenants_url_is_guarded(provider: FakeOpenAI) -> None:
    """Lost if red: a tenant reads what only this machine can reach."""
    config.use(Settings())
    try:
        (events, error), _ = with_keys(
            settings_for(provider, "openai:one"),
            {"openai": (OWN, provider.base_url)},
            own_keys=True,
        )
    finally:
        config.use(None)
    assert error is not None
    assert reasons(events) == [error.message]
    assert error.message.startswith("openai:one ")
    assert "https://" in error.message
    assert provider.requests == []


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        pytest.param(Unavailable("The database is away."), "The database is away.", id="ours"),
        pytest.param(OSError(PLATFORM_KEY), "The tenant's own keys could not be read.", id="other"),
    ],
)
def test_own_keys_that_cannot_be_read_are_not_replaced(
    provider: FakeOpenAI, fault: Exception, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: a tenant's turns on the platform's bill, or a fault's text in an answer."""

    async def tenant_keys(tenant_id: str) -> Mapping[str, tuple[str, str | None]]:
        raise fault

    models = Models(settings_for(provider), tenant_keys=tenant_keys)
    with pytest.raises((Unavailable, ProviderUnavailable)) as caught:
        run(models.chain(tenant_id="ten_1", own_keys=True))
    assert caught.value.message == sentence
    assert PLATFORM_KEY not in caplog.text


def test_breaker_of_one_key_says_nothing_of_another(provider: FakeOpenAI) -> None:
    """Lost if red: a tenant's revoked key takes a provider from everybody."""
    provider.default(
        lambda it: Reply(status=401 if it.headers["authorization"] == f"Bearer {OWN}" else 200)
    )
    settings = settings_for(provider, "openai:one", PAL_PROVIDER_BREAKER="1")

    async def tenant_keys(tenant_id: str) -> Mapping[str, tuple[str, str | None]]:
        return {"openai": (OWN, None)}

    async def call() -> list[ProviderError | None]:
        models = Models(settings, tenant_keys=tenant_keys)
        try:
            chains = [await models.chain(own_keys=own) for own in (True, False)]
            return [(await follow(chain))[1] for chain in chains]
        finally:
            await models.close()

    first, second = run(call())
    assert first is not None
    assert second is None


# ── the secret ───────────────────────────────────────────────────────────────────────────────


class SecretsManager:
    """AWS's, as moto plays it, and what this process needs to reach it."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self._client = boto3.client("secretsmanager", endpoint_url=endpoint)

    def put(self, text: str) -> None:
        """Make the secret `providers` say this."""
        if self._client.list_secrets()["SecretList"]:
            self._client.put_secret_value(SecretId="providers", SecretString=text)
        else:
            self._client.create_secret(Name="providers", SecretString=text)

    def delete(self) -> None:
        """Take it away."""
        self._client.delete_secret(SecretId="providers", ForceDeleteWithoutRecovery=True)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsManager]:
    with aws_server(monkeypatch) as base:
        made = SecretsManager(base)
        yield made
        made.close()


def test_key_that_the_environment_lacks_comes_from_the_secret(
    provider: FakeOpenAI, secrets: SecretsManager
) -> None:
    """Lost if red: keys kept out of the functions' environment."""
    secrets.put(json.dumps({"OPENAI_API_KEY": "sk-in-aws", "PAL_PROVIDER_X_API_KEY": "sk-x"}))
    settings = settings_for(
        provider,
        OPENAI_API_KEY="",
        PAL_PROVIDER_X_BASE_URL=provider.base_url,
        PAL_PROVIDER_SECRET="providers",
    )
    for spec in ("openai:one", "openai@x:one"):
        assert ask(settings, specs=[spec])[1] is None
    sent = [one.headers["authorization"] for one in provider.requests]
    assert sent == ["Bearer sk-in-aws", "Bearer sk-x"]


def test_key_of_the_environment_needs_no_secret(provider: FakeOpenAI) -> None:
    """Lost if red: a key set by hand that does not hold, or a turn that waits for AWS."""
    _, error = ask(settings_for(provider, PAL_PROVIDER_SECRET="providers"))
    assert error is None
    assert provider.requests[0].headers["authorization"] == f"Bearer {PLATFORM_KEY}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="missing"),
        pytest.param(f'{{"OPENAI_API_KEY": "{OWN}', id="broken"),
        pytest.param(f'["{OWN}"]', id="no-object"),
    ],
)
def test_secret_that_cannot_be_read_is_a_failed_attempt(
    provider: FakeOpenAI,
    secrets: SecretsManager,
    text: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lost if red: the rest of the chain, or what the secret holds, in an answer or a log."""
    if text is not None:
        secrets.put(text)
    settings = settings_for(
        provider, "openai:one,offline:o", OPENAI_API_KEY="", PAL_PROVIDER_SECRET="providers"
    )
    with caplog.at_level(logging.INFO, logger="chalicelib"):
        events, error = ask(settings, times=2)
    assert error is None
    assert reasons(events) == ["The key of openai could not be read from PAL_PROVIDER_SECRET."]
    assert text_of(events).endswith("You said: hello")
    assert provider.requests == []
    assert actions(caplog).count("provider_secret_unreadable") == 1, "not again for every turn"
    told = caplog.text + str([vars(one) for one in caplog.records])
    assert OWN not in told
    assert text is not None or "ResourceNotFoundException" in told


def test_secret_is_read_again_after_five_minutes(secrets: SecretsManager) -> None:
    """Lost if red: a key that was changed, a read for every turn, or all turns while AWS is ill."""
    now = [0.0]
    keyring = Keyring(Settings(provider_secret="providers"), clock=lambda: now[0])

    async def keys(*times: float) -> list[str]:
        found = []
        for now[0] in times:
            found.append(await keyring.key("anthropic"))
        return found

    secrets.put(json.dumps({"ANTHROPIC_API_KEY": "first"}))
    assert run(keys(0)) == ["first"]
    secrets.put(json.dumps({"ANTHROPIC_API_KEY": " second "}))
    assert run(keys(299, 301)) == ["first", "second"]
    secrets.delete()
    assert run(keys(602)) == ["second"], "better than none"
    secrets.put(json.dumps({"ANTHROPIC_API_KEY": 3}))
    assert run(keys(611, 613)) == ["second", ""]
