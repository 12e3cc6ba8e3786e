"""Settings: read once from the environment, checked, then frozen.

Every `PAL_*` variable is a field of `Settings`; the table in the README is generated from the
fields' metadata, and a test holds the two together. A wrong value raises `SettingsError` with
the variable's name and what is allowed. A dataclass and not pydantic-settings: that costs 340 ms
of import on a cold start.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from chalicelib.rules import (
    BASE_URL,
    CONNECTORS,
    HOSTS,
    IMAGE,
    ORIGINS,
    PATTERNS,
    POSTGRES,
    PROVIDERS,
    QUEUE,
    SECRET,
    SWITCH,
    TEXT,
    Rule,
    Secret,
    choice,
    duration,
    parse_duration,
    whole,
)

__all__ = [
    "ProviderSettings",
    "Secret",
    "Settings",
    "SettingsError",
    "load_settings",
    "parse_duration",
    "provider_variable",
    "settings",
    "use",
    "variable",
]


class SettingsError(Exception):
    """A variable holds a value that is not allowed; the message is one sentence for a person."""


def _setting(rule: Rule, default: Any, about: str, *, older: str = "") -> Any:
    """`older` is a name that the variable had, read where it has not been set by this one."""
    return field(default=default, metadata={"rule": rule, "about": about, "older": older})


def _vendors(rule: Rule, default: Any, name: str) -> Any:
    """A variable that is a vendor's and not ours."""
    return field(default=default, metadata={"rule": rule, "variable": name})


def _named(rule: Rule, default: Any = None) -> Any:
    return field(default=default, metadata={"rule": rule})


_CONNECT: Final = duration(0.1, 60)
_TOKEN: Final = duration(0.1, 600)
_ANSWER: Final = duration(0.1, 900)
_WINDOW: Final = whole(1024, 100_000_000)


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """What `PAL_PROVIDER_<NAME>_...` says of one provider; empty or None: nothing."""

    base_url: str = _named(BASE_URL, "")
    api_key: str = _named(SECRET, Secret(""))
    connect_timeout: float | None = _named(_CONNECT)
    first_timeout: float | None = _named(_TOKEN)
    idle_timeout: float | None = _named(_TOKEN)
    answer_timeout: float | None = _named(_ANSWER)
    context_window: int | None = _named(_WINDOW)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the process was told. Durations are seconds, sizes are bytes unless said otherwise."""

    port: int = _setting(whole(1, 65535), 8080, "Port the gateway listens on, on 127.0.0.1.")
    host: str = _setting(TEXT, "127.0.0.1", "Address the gateway binds; 0.0.0.0 in a container.")
    data_dir: str = _setting(TEXT, ".pal", "Folder of the embedded Postgres and the dev key.")
    dev_key: str = _setting(
        SECRET, Secret(""), "API key that `scripts/dev` makes; generated and kept when unset."
    )
    database_url: str = _setting(
        POSTGRES,
        Secret(""),
        "Postgres 15 or newer in place of the embedded one. `scripts/dev` and `scripts/pal` want a "
        "login that may create roles; functions and containers connect as `pal_app`.",
    )
    database_owner_url: str = _setting(
        POSTGRES, Secret(""), "Login `pal_owner`, for `scripts/pal migrate` and keys."
    )
    database_listen_url: str = _setting(
        POSTGRES,
        Secret(""),
        "A direct connection (no pooler) for LISTEN; unset, other processes' events are polled.",
    )
    database_iam: bool = _setting(
        SWITCH,
        False,
        "Log in by IAM token in place of a password, with TLS (`sslmode=verify-full` and "
        "`sslrootcert=system`) unless the URL says otherwise; for RDS.",
    )
    database_master_secret: str = _setting(
        TEXT,
        "",
        "ARN of the master user's secret, which RDS keeps; for the bootstrap function.",
    )
    database_pool: int = _setting(whole(1, 200), 16, "Most database connections of a process.")
    providers: tuple[tuple[str, str], ...] = _setting(
        PROVIDERS, (), "Model chain, tried in order. Unset, the `offline` stand-in answers."
    )
    providers_fast: tuple[tuple[str, str], ...] = _setting(
        PROVIDERS, (), "Chain of the fast role (summaries and the like); unset, it is the first."
    )
    provider_connect_timeout: float = _setting(
        _CONNECT, 5.0, "Longest wait for a connection to a provider."
    )
    provider_first_timeout: float = _setting(
        _TOKEN, 60.0, "Longest wait for a provider's first token."
    )
    provider_idle_timeout: float = _setting(
        _TOKEN, 30.0, "Longest wait for a provider's next token."
    )
    provider_answer_timeout: float = _setting(
        _ANSWER, 120.0, "Longest wait for an answer that is asked for whole."
    )
    provider_retries: int = _setting(
        whole(0, 5), 1, "Further tries of the same provider before the next one."
    )
    provider_retry_wait: float = _setting(
        duration(0, 60), 2.0, "Longest `Retry-After` that is waited for; over it, the next one."
    )
    provider_breaker: int = _setting(
        whole(1, 100), 5, "Failures in a row after which a provider is left out for a while."
    )
    provider_breaker_rest: float = _setting(
        duration(0.1, 600), 15.0, "That while, at first; each failed trial doubles it, to 5 min."
    )
    provider_secret: str = _setting(
        TEXT,
        "",
        "Secrets Manager secret, a JSON object, read for variables such as `OPENAI_API_KEY`.",
    )
    context_window: int = _setting(
        _WINDOW, 128_000, "Tokens of context of models that `windows.toml` does not name."
    )
    tool_rounds: int = _setting(
        whole(1, 5), 5, "Rounds of tool calls in a turn, where the agent sets no fewer."
    )
    tool_timeout: float = _setting(
        duration(0.1, 600), 30.0, "Longest a tool call may take, where the tool sets no other."
    )
    tool_result_limit: int = _setting(
        whole(1000, 1_000_000), 16_000, "Characters of a tool's result that the model is given."
    )
    tool_private_hosts: tuple[str, ...] = _setting(
        HOSTS,
        (),
        "Hosts (`name` or `name:port`) that tools and tenants' providers may call though they are "
        "private or without TLS.",
    )
    tool_lambdas: tuple[str, ...] = _setting(
        PATTERNS,
        ("pal-tool-*",),
        "Lambda functions that tools may invoke, as name patterns; `{tenant}` is the tenant's id.",
    )
    approval_ttl: float = _setting(
        duration(1, 30 * 86400), 86400.0, "Time after which an undecided approval expires."
    )
    kms_key: str = _setting(TEXT, "", "KMS key that tenants' own keys are encrypted with; on AWS.")
    vault_key: str = _setting(
        SECRET,
        Secret(""),
        "The same without KMS: 32 bytes in base64. `scripts/dev` makes one in PAL_DATA_DIR.",
    )
    turn_lease: float = _setting(
        duration(0.5, 600), 30.0, "Time after which a turn whose runner went silent is retaken."
    )
    turn_timeout: float = _setting(duration(1, 900), 600.0, "Longest a turn may run.")
    turns_queue_url: str = _setting(
        TEXT, "", "SQS queue that turns are sent to; unset, they run in this process."
    )
    turns_queue: str = _setting(
        QUEUE, "pal-dev-turns", "Name of that queue, read when the functions are packaged."
    )
    stream_idle: float = _setting(
        duration(1, 900), 60.0, "On Lambda, an events stream ends after this long without a turn."
    )
    stream_max: float = _setting(
        duration(1, 900), 600.0, "On Lambda, an events stream ends after this long in any case."
    )
    streams_per_key: int = _setting(
        whole(0, 100_000), 0, "Open event streams per key; 0 is 100 on Lambda, no limit elsewhere."
    )
    stream_buffer: int = _setting(
        whole(1 << 19, 64 << 20), 1 << 20, "Bytes held for a slow reader before it is dropped."
    )
    session_tree: str = _setting(
        choice("model", "plain"),
        "model",
        "Who keeps a session's execution tree behind each reply: the fast role, or a plain "
        "heuristic that asks no model.",
    )
    session_idle_end: float = _setting(
        duration(0, 365 * 86400),
        0.0,
        "Time without a message after which a session is ended; 0 ends none.",
    )
    isolation: str = _setting(
        choice("off", "local", "aws"),
        "off",
        "Where sessions' microVMs come from: nowhere, processes of this machine (weaker; what "
        "`scripts/dev` sets), or AWS Lambda MicroVMs.",
    )
    session_vm_idle_ttl: float = _setting(
        duration(60, 8 * 3600),
        1800.0,
        "Time without use after which a session's microVM is ended.",
        older="LANTERN_SESSION_VM_IDLE_TTL",
    )
    microvm_image: str = _setting(IMAGE, "", "ARN of the image that microVMs on AWS run.")
    microvm_egress: tuple[str, ...] = _setting(
        CONNECTORS,
        (),
        "Network connectors that these reach out by, as ARNs. Needed with `aws`, since its default "
        "is the whole internet; the stack makes a closed one.",
    )
    microvm_network: bool = _setting(
        SWITCH, False, "Whether microVMs of `local` may reach the network."
    )
    events_retention: float = _setting(
        duration(300, 30 * 86400), 900.0, "How long events can be resumed after they were written."
    )
    memory_distill: bool = _setting(
        SWITCH,
        False,
        "Distil the timeline into facts by a schedule, and give them to later turns.",
        older="LANTERN_MEMORY_DISTILL",
    )
    memory_distill_interval: float = _setting(
        duration(60, 365 * 86400),
        6 * 3600.0,
        "Time between two passes of a tenant.",
        older="LANTERN_MEMORY_DISTILL_INTERVAL",
    )
    memory_queue_url: str = _setting(
        TEXT, "", "SQS queue that tenants due for a pass are sent to; unset, they run here."
    )
    memory_queue: str = _setting(
        QUEUE, "pal-dev-memory", "Name of that queue, read when the functions are packaged."
    )
    embeddings: str = _setting(
        choice("wheel", "bedrock", "openai", "off"),
        "wheel",
        "What makes the vectors that search by meaning takes: weights inside a Python wheel, a "
        "vendor, or nothing. A change is taken up in the background.",
    )
    embeddings_model: str = _setting(
        TEXT,
        "",
        "Model of the vendor; unset, `text-embedding-3-small` or `amazon.titan-embed-text-v2:0`.",
    )
    cors_origins: tuple[str, ...] = _setting(
        ORIGINS, (), "Origins whose pages may call the API from a browser."
    )
    log_level: str = _setting(
        choice("DEBUG", "INFO", "WARNING", "ERROR"), "INFO", "Only DEBUG may hold messages' text."
    )
    metrics: bool = _setting(
        SWITCH, False, "Print EMF metrics on standard output; always on when on Lambda."
    )
    drain: float = _setting(
        duration(0, 600), 30.0, "Time that running turns get to finish after Ctrl-C or SIGTERM."
    )
    anthropic_base_url: str = _vendors(BASE_URL, "https://api.anthropic.com", "ANTHROPIC_BASE_URL")
    anthropic_api_key: str = _vendors(SECRET, Secret(""), "ANTHROPIC_API_KEY")
    openai_base_url: str = _vendors(BASE_URL, "https://api.openai.com/v1", "OPENAI_BASE_URL")
    openai_api_key: str = _vendors(SECRET, Secret(""), "OPENAI_API_KEY")
    named_providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    """By the `<NAME>` of their variables; see `of_provider`."""
    on_lambda: bool = field(default=False)

    def of_provider(self, name: str) -> ProviderSettings:
        """What is said of `anthropic`, of `openai@groq`; all of it empty where nothing is."""
        return self.named_providers.get(_inner(name)) or ProviderSettings()


def variable(name: str) -> str:
    """The environment variable of a `Settings` field: `turn_lease` is `PAL_TURN_LEASE`."""
    return f"PAL_{name.upper()}"


def provider_variable(name: str, what: str) -> str:
    """The variable of a provider's setting: `openai@my-box` has `PAL_PROVIDER_MY_BOX_BASE_URL`."""
    return f"PAL_PROVIDER_{_inner(name)}_{what.upper()}"


def _inner(name: str) -> str:
    return name.rpartition("@")[2].upper().replace("-", "_")


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from these variables; SettingsError names the first wrong one.

    An empty variable counts as unset.
    """
    values: dict[str, Any] = {}
    for spec in fields(Settings):
        rule: Rule | None = spec.metadata.get("rule")
        if rule is None:
            continue
        for name in (
            spec.metadata.get("variable") or variable(spec.name),
            spec.metadata.get("older", ""),
        ):
            if text := environ.get(name, "").strip():
                values[spec.name] = _cast(name, rule, text)
                break
    return Settings(
        **values,
        named_providers=_read_named(environ),
        on_lambda="AWS_LAMBDA_RUNTIME_API" in environ,
    )


def _cast(name: str, rule: Rule, text: str) -> Any:
    try:
        return rule.read(text)
    except (ValueError, KeyError) as exc:
        shown = repr(text) if rule.shown else "its value"
        # a traceback prints the cause, and the cause may hold the value
        raise SettingsError(f"{name} must be {rule.allowed}, not {shown}.") from (
            exc if rule.shown else None
        )


_NAMED: Final = re.compile(
    rf"PAL_PROVIDER_(\w+)_({'|'.join(spec.name.upper() for spec in fields(ProviderSettings))})"
)
# what is said of these by variables of the vendor's own
_THEIRS: Final = {
    "ANTHROPIC": "ANTHROPIC_{}",
    "OPENAI": "OPENAI_{}",
    "BEDROCK": "AWS's own variables",
}


def _read_named(environ: Mapping[str, str]) -> dict[str, ProviderSettings]:
    rules = {spec.name: spec.metadata["rule"] for spec in fields(ProviderSettings)}
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(environ):
        match, text = _NAMED.fullmatch(name), environ[name].strip()
        if match is None or not text:
            continue
        provider, what = match[1], match[2].lower()
        if provider in _THEIRS and what in ("base_url", "api_key"):
            instead = _THEIRS[provider].format(match[2])
            raise SettingsError(f"{name} is not read; set {instead}.")
        found.setdefault(provider, {})[what] = _cast(name, rules[what], text)
    return {provider: ProviderSettings(**values) for provider, values in found.items()}


_settings: Settings | None = None


def settings() -> Settings:
    """This process's settings, read from its environment at the first call."""
    global _settings
    if _settings is None:
        _settings = load_settings(os.environ)
    return _settings


def use(made: Settings | None) -> None:
    """Make these the process's settings; None has them read anew."""
    global _settings
    _settings = made
