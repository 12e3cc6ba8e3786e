"""Models over real HTTP: which chains are made of what, and how they meet providers that fail."""

import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chalicelib.config import Settings, SettingsError, load_settings
from chalicelib.errors import ProviderRejected, ProviderUnavailable
from chalicelib.providers import AttemptFailed, Finished, Models
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import FakeOpenAI, Recorded, Reply
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

TOOL_CALL = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,'
    b'"id":"call_1","type":"function","function":{"name":"pay","arguments":"{}"}}]}}]}\n\n'
)
TOOL_CALLS_END = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
)


def asked(fake: FakeOpenAI) -> list[str]:
    """The models that were asked, in order."""
    return [one.body["model"] for one in fake.requests]


# ── which chain ──────────────────────────────────────────────────────────────────────────────


def test_chain_is_that_of_the_settings(provider: FakeOpenAI) -> None:
    """Lost if red: the key, the URL or the order that an operator set."""
    provider.script(Reply(status=500), Reply(pieces=["hi"], usage=(1000, 100)))
    events, error = ask(settings_for(provider, "openai:one,openai:gpt-5-mini:x,offline:offline"))
    assert error is None
    assert text_of(events) == "hi"
    assert asked(provider) == ["one", "gpt-5-mini:x"]
    assert {one.headers["authorization"] for one in provider.requests} == {f"Bearer {PLATFORM_KEY}"}


def test_cost_is_known_of_a_model_that_has_a_price(provider: FakeOpenAI) -> None:
    """Lost if red: what each turn cost."""
    provider.script(Reply(pieces=["hi"], usage=(1000, 100)))
    events, _ = ask(settings_for(provider, "openai:gpt-5-mini"))
    assert isinstance(events[-1], Finished)
    assert events[-1].cost_usd is not None
    assert events[-1].cost_usd > 0


@pytest.mark.parametrize(
    ("chosen", "variables", "models"),
    [
        pytest.param({}, {"PAL_PROVIDERS_FAST": "openai:f"}, ["one"], id="primary"),
        pytest.param({"role": "fast"}, {"PAL_PROVIDERS_FAST": "openai:f"}, ["f"], id="fast"),
        pytest.param({"role": "fast"}, {}, ["one"], id="fast-is-primary-where-unset"),
        pytest.param({"specs": ["openai:a:b"]}, {}, ["a:b"], id="an-agents"),
        pytest.param(
            {"specs": ["openai:a"], "role": "fast"},
            {"PAL_PROVIDERS_FAST": "openai:f"},
            ["a"],
            id="an-agents-for-the-fast-role",
        ),
    ],
)
def test_role_and_agent_choose_the_chain(
    provider: FakeOpenAI, chosen: dict[str, Any], variables: dict[str, str], models: list[str]
) -> None:
    """Lost if red: the model that an agent, or a summary, was meant to have."""
    _, error = ask(settings_for(provider, "openai:one", **variables), **chosen)
    assert error is None
    assert asked(provider) == models


def test_without_settings_the_stand_in_answers() -> None:
    """Lost if red: a first turn before any key is set."""
    events, error = ask(Settings())
    assert error is None
    assert text_of(events).endswith("You said: hello")


def test_named_providers_have_their_own_address_and_key(provider: FakeOpenAI) -> None:
    """Lost if red: two vendors on one wire, or one vendor's key with the other."""
    with FakeOpenAI() as other, FakeAnthropic() as third:
        other.script(Reply(status=503))
        settings = load_settings(
            {
                "PAL_PROVIDERS": "openai@groq:a,anthropic@my-box:b",
                "PAL_PROVIDER_RETRIES": "0",
                "OPENAI_BASE_URL": provider.base_url,
                "OPENAI_API_KEY": PLATFORM_KEY,
                "PAL_PROVIDER_GROQ_BASE_URL": other.base_url,
                "PAL_PROVIDER_GROQ_API_KEY": "sk-groq",
                "PAL_PROVIDER_MY_BOX_BASE_URL": third.base_url,
                "PAL_PROVIDER_MY_BOX_API_KEY": "sk-box",
            }
        )
        events, error = ask(settings)
        assert error is None
        assert text_of(events) == "echo: hello"
        assert reasons(events) == ["openai@groq:a answered 503 (server_error)."]
        assert isinstance(events[-1], Finished)
        assert (events[-1].provider, events[-1].model) == ("anthropic@my-box", "b")
        assert other.requests[0].headers["authorization"] == "Bearer sk-groq"
        assert third.requests[0].headers["x-api-key"] == "sk-box"
        assert provider.requests == []


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        pytest.param(
            {"PAL_PROVIDERS": "openai:a,mistral:b"},
            "PAL_PROVIDERS must name one of anthropic, bedrock, offline, openai, anthropic@name,"
            " openai@name, not 'mistral'.",
            id="no-such-wire",
        ),
        pytest.param(
            {"PAL_PROVIDERS_FAST": "bedrock@x:a"},
            "PAL_PROVIDERS_FAST must name one of anthropic, bedrock, offline, openai,"
            " anthropic@name, openai@name, not 'bedrock@x'.",
            id="wire-without-names",
        ),
        pytest.param(
            {"PAL_PROVIDERS": "openai@my-box:a", "PAL_PROVIDER_MY_BOX_API_KEY": "k"},
            "PAL_PROVIDERS names openai@my-box, so PAL_PROVIDER_MY_BOX_BASE_URL must be set.",
            id="no-base-url",
        ),
    ],
)
def test_chain_that_cannot_be_made_is_refused_at_the_start(
    variables: dict[str, str], sentence: str
) -> None:
    """Lost if red: which variable to mend, and when: at the start, not at the first turn."""
    with pytest.raises(SettingsError) as caught:
        Models(load_settings(variables))
    assert str(caught.value) == sentence


def test_known_providers_are_the_wires_and_the_configured() -> None:
    """Lost if red: an agent refused for a provider that is there, or taken for one that is not."""
    models = Models(
        load_settings(
            {"PAL_PROVIDER_GROQ_BASE_URL": "https://x/v1", "PAL_PROVIDER_BARE_API_KEY": "k"}
        )
    )
    known = ["anthropic", "bedrock", "offline", "openai", "openai@groq", "anthropic@groq"]
    unknown = ["", "openai@", "openai@bare", "openai@GROQ", "bedrock@groq", "groq", "@groq"]
    assert [name for name in known + unknown if models.knows(name)] == known


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param("mistral:a", "mistral:a is no model that can be called.", id="wire"),
        pytest.param("openai", "openai: is no model that can be called.", id="no-model"),
        pytest.param("offline@x:a", "offline@x:a is no model that can be called.", id="name"),
        pytest.param("openai@gone:a", "openai@gone has no base URL.", id="no-longer-set"),
    ],
)
def test_agents_model_that_is_gone_is_a_failed_attempt(
    provider: FakeOpenAI, spec: str, reason: str
) -> None:
    """Lost if red: every turn of an agent, for one provider that an operator took away."""
    events, error = ask(settings_for(provider), specs=[spec, "openai:one"])
    assert error is None
    assert reasons(events) == [reason]
    assert text_of(events) == "echo: hello"


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def test_answer_that_was_begun_is_not_begun_again(provider: FakeOpenAI) -> None:
    """PRV-5, first run. Lost if red: half an answer, and all of another behind it."""
    provider.script(Reply(pieces=["The capital of ", "France is"], cut_after=2))
    events, error = ask(settings_for(provider, PAL_PROVIDER_RETRIES="2"))
    assert text_of(events) == "The capital of France is"
    assert reasons(events) == []
    assert type(error) is ProviderUnavailable
    assert asked(provider) == ["one"]


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply(cut_after=0), id="second-run-no-text"),
        pytest.param(Reply(raw=TOOL_CALL, cut_after=0), id="third-run-a-whole-tool-call"),
    ],
)
def test_failure_before_any_text_gives_one_answer(provider: FakeOpenAI, reply: Reply) -> None:
    """PRV-5, second and third run. Lost if red: failover, or a tool that runs twice."""
    provider.script(reply, Reply(raw=TOOL_CALL + TOOL_CALLS_END))
    events, error = ask(settings_for(provider))
    assert error is None
    assert [type(one) for one in events] == [AttemptFailed, Finished]
    end = events[-1]
    assert isinstance(end, Finished)
    assert (end.model, [call.name for call in end.tool_calls]) == ("two", ["pay"])


def keys_of(requests: Sequence[Recorded]) -> list[str]:
    return [one.headers["idempotency-key"] for one in requests]


def test_repeat_is_the_same_request_in_any_process(provider: FakeOpenAI, root: Path) -> None:
    """Lost if red: a turn that is repeated, here or where it is taken up, is paid for twice."""
    provider.script(Reply(status=503), Reply(pieces=["hi"]))
    settings = settings_for(provider, PAL_PROVIDER_RETRIES="1")
    _, error = ask(settings)
    assert error is None
    program = (
        "import os; from tests.support.chains import ask, load_settings\n"
        "assert ask(load_settings(os.environ))[1] is None"
    )
    environ = {
        "PAL_PROVIDERS": "openai:one",
        "OPENAI_BASE_URL": provider.base_url,
        "OPENAI_API_KEY": "another key",
    }
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environ, check=True, timeout=50)
    assert len(provider.requests) == 3
    assert len(set(keys_of(provider.requests))) == 1
    assert len({one.raw for one in provider.requests}) == 1


@pytest.mark.parametrize(
    ("retry_after", "models"),
    [
        pytest.param("1", ["one", "one"], id="waited-for"),
        pytest.param("3600", ["one", "two"], id="too-long"),
    ],
)
def test_retry_after_is_honoured_and_bounded(
    provider: FakeOpenAI, retry_after: str, models: list[str]
) -> None:
    """Lost if red: a provider hit before it is ready, or a turn that waits an hour for it."""
    provider.script(Reply(status=429, retry_after=retry_after), Reply(pieces=["hi"]))
    began = time.monotonic()
    events, error = ask(settings_for(provider, PAL_PROVIDER_RETRIES="1"))
    assert error is None
    assert asked(provider) == models
    assert reasons(events) == ["openai:one answered 429 (rate_limit_error)."]
    assert retry_after != "1" or time.monotonic() - began >= 1


def test_wrong_request_does_not_walk(provider: FakeOpenAI) -> None:
    """Lost if red: a request that is wrong everywhere, sent everywhere."""
    provider.script(Reply(status=400))
    events, error = ask(settings_for(provider, PAL_PROVIDER_RETRIES="1"))
    assert events == []
    assert type(error) is ProviderRejected
    assert asked(provider) == ["one"]


def test_refused_key_walks_and_is_logged_once(
    provider: FakeOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: an answer from the next vendor, or the log of a turn beside its thousands."""
    provider.default(lambda it: Reply(status=401) if it.body["model"] == "one" else Reply())
    with caplog.at_level(logging.INFO):
        events, error = ask(settings_for(provider, PAL_PROVIDER_RETRIES="1"), times=3)
    assert error is None
    assert asked(provider) == ["one", "two"] * 3
    assert reasons(events) == ["openai:one answered 401 (authentication_error)."]
    assert actions(caplog) == ["provider_denied"]
    assert PLATFORM_KEY not in caplog.text + str([vars(one) for one in caplog.records])


def test_silence_is_as_long_as_is_set_for_this_provider(provider: FakeOpenAI) -> None:
    """Lost if red: the wait that an operator set for the one provider that is slow, or fast."""
    provider.default(lambda it: Reply(hang=True) if it.body["model"] == "one" else Reply())
    settings = settings_for(
        provider,
        "openai@slow:one,openai:two",
        PAL_PROVIDER_SLOW_BASE_URL=provider.base_url,
        PAL_PROVIDER_SLOW_FIRST_TIMEOUT="250ms",
    )
    events, error = ask(settings)
    assert error is None
    assert reasons(events) == ["openai@slow:one sent nothing for 0.25 s."]


def test_breaker_is_one_for_all_chains(provider: FakeOpenAI) -> None:
    """Lost if red: every chain and agent finds out anew that a vendor is down."""
    provider.default(lambda it: Reply(status=500) if it.body["model"] == "one" else Reply())
    settings = settings_for(provider, PAL_PROVIDER_BREAKER="2")

    async def call() -> Answer:
        models = Models(settings)
        try:
            await follow(await models.chain())
            await follow(await models.chain(specs=["openai:one", "openai:three"]))
            return await follow(await models.chain(specs=["openai:one", "openai:four"]))
        finally:
            await models.close()

    events, error = run(call())
    assert (error, reasons(events)) == (None, [])
    assert asked(provider) == ["one", "two", "one", "three", "four"]
