"""Settings: read once from the environment, checked, then frozen.

Every `PAL_*` variable is a field of `Settings`; the table in the README is generated from the
fields' metadata, and a test holds the two together. A wrong value raises `SettingsError` with
the variable's name and what is allowed. A dataclass and not pydantic-settings: that costs 340 ms
of import on a cold start.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

_DURATION: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SMALL: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
_UNITS: Final = {**_SMALL, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class SettingsError(Exception):
    """A variable holds a value that is not allowed; the message is one sentence for a person."""


class Secret(str):
    """A string that does not print."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('**')"


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `30s`, `1m30s`, `250ms`, `6h`; ValueError otherwise."""
    if text == "0":
        return 0.0
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """How one variable is read: `read` casts or raises ValueError, `allowed` says what it takes."""

    read: Callable[[str], Any]
    allowed: str


def _duration(at_least: float, at_most: float) -> _Rule:
    return _Rule(
        read=lambda text: _within(parse_duration(text), at_least, at_most),
        allowed=f"a duration such as 30s or 1m30s, from {at_least:.10g}s to {at_most:.10g}s",
    )


def _whole(at_least: int, at_most: int) -> _Rule:
    return _Rule(
        read=lambda text: int(_within(int(text), at_least, at_most)),
        allowed=f"a whole number from {at_least} to {at_most}",
    )


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def _choice(*words: str) -> _Rule:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return _Rule(read=read, allowed=" or ".join(words))


def _read_switch(text: str) -> bool:
    return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[
        text.lower()
    ]


_TEXT: Final = _Rule(read=str, allowed="a text")
_SECRET: Final = _Rule(read=Secret, allowed="a text")
_SWITCH: Final = _Rule(read=_read_switch, allowed="1, true, on, 0, false or off")


def _read_queue(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text):
        raise ValueError(text)
    return text


_QUEUE: Final = _Rule(read=_read_queue, allowed="1 to 80 letters, digits, - and _")


def _read_url(text: str) -> Secret:
    if not re.match(r"postgres(ql)?://", text):
        raise ValueError(text)
    return Secret(text)


_POSTGRES: Final = _Rule(read=_read_url, allowed="a postgresql:// URL")


def _read_origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if not re.fullmatch(r"https?://[^/\s,*]+", origin):
            raise ValueError(origin)
    return origins


_ORIGINS: Final = _Rule(
    read=_read_origins, allowed="origins such as https://console.example.com, by commas"
)


def _read_providers(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, model = item.partition(":")
        if not (colon and kind and model):
            raise ValueError(item)
        pairs.append((kind, model))
    return tuple(pairs)


_PROVIDERS: Final = _Rule(
    read=_read_providers, allowed="provider:model pairs, by commas, such as openai:gpt-5-mini"
)


def _setting(rule: _Rule, default: Any, about: str) -> Any:
    return field(default=default, metadata={"rule": rule, "about": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the process was told. Durations are seconds, sizes are bytes unless said otherwise."""

    port: int = _setting(_whole(1, 65535), 8080, "Port the gateway listens on, on 127.0.0.1.")
    host: str = _setting(_TEXT, "127.0.0.1", "Address the gateway binds; 0.0.0.0 in a container.")
    data_dir: str = _setting(_TEXT, ".pal", "Folder of the embedded Postgres and the dev key.")
    dev_key: str = _setting(
        _SECRET, Secret(""), "API key that `scripts/dev` makes; generated and kept when unset."
    )
    database_url: str = _setting(
        _POSTGRES,
        Secret(""),
        "Postgres 15 or newer in place of the embedded one. `scripts/dev` and `scripts/pal` want a "
        "login that may create roles; functions and containers connect as `pal_app`.",
    )
    database_owner_url: str = _setting(
        _POSTGRES, Secret(""), "Login `pal_owner`, for `scripts/pal migrate` and keys."
    )
    database_listen_url: str = _setting(
        _POSTGRES,
        Secret(""),
        "A direct connection (no pooler) for LISTEN; unset, other processes' events are polled.",
    )
    database_pool: int = _setting(_whole(1, 200), 16, "Most database connections of a process.")
    providers: tuple[tuple[str, str], ...] = _setting(
        _PROVIDERS, (), "Model chain, tried in order. Unset, the `offline` stand-in answers."
    )
    provider_timeout: float = _setting(
        _duration(0.1, 600), 60.0, "Longest wait for a provider's first or next token."
    )
    turn_lease: float = _setting(
        _duration(0.5, 600), 30.0, "Time after which a turn whose runner went silent is retaken."
    )
    turn_timeout: float = _setting(_duration(1, 900), 600.0, "Longest a turn may run.")
    turns_queue_url: str = _setting(
        _TEXT, "", "SQS queue that turns are sent to; unset, they run in this process."
    )
    turns_queue: str = _setting(
        _QUEUE, "pal-dev-turns", "Name of that queue, read when the functions are packaged."
    )
    stream_idle: float = _setting(
        _duration(1, 900), 60.0, "On Lambda, an events stream ends after this long without a turn."
    )
    stream_max: float = _setting(
        _duration(1, 900), 600.0, "On Lambda, an events stream ends after this long in any case."
    )
    streams_per_key: int = _setting(
        _whole(0, 100_000), 0, "Open event streams per key; 0 is 100 on Lambda, no limit elsewhere."
    )
    stream_buffer: int = _setting(
        _whole(1 << 19, 64 << 20), 1 << 20, "Bytes held for a slow reader before it is dropped."
    )
    events_retention: float = _setting(
        _duration(300, 30 * 86400), 900.0, "How long events can be resumed after they were written."
    )
    cors_origins: tuple[str, ...] = _setting(
        _ORIGINS, (), "Origins whose pages may call the API from a browser."
    )
    log_level: str = _setting(
        _choice("DEBUG", "INFO", "WARNING", "ERROR"), "INFO", "Only DEBUG may hold messages' text."
    )
    metrics: bool = _setting(
        _SWITCH, False, "Print EMF metrics on standard output; always on when on Lambda."
    )
    drain: float = _setting(
        _duration(0, 600), 30.0, "Time that running turns get to finish after Ctrl-C or SIGTERM."
    )
    openai_base_url: str = field(default="https://api.openai.com/v1")
    openai_api_key: str = field(default=Secret(""))
    on_lambda: bool = field(default=False)


def variable(name: str) -> str:
    """The environment variable of a `Settings` field: `turn_lease` is `PAL_TURN_LEASE`."""
    return f"PAL_{name.upper()}"


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from these variables; SettingsError names the first wrong one.

    An empty variable counts as unset.
    """
    values: dict[str, Any] = {}
    for spec in fields(Settings):
        rule: _Rule | None = spec.metadata.get("rule")
        text = environ.get(variable(spec.name), "").strip()
        if rule is None or not text:
            continue
        try:
            values[spec.name] = rule.read(text)
        except (ValueError, KeyError) as exc:
            secret = isinstance(spec.default, Secret)
            shown = "its value" if secret else repr(text)
            # a traceback prints the cause, and the cause may hold the value
            raise SettingsError(
                f"{variable(spec.name)} must be {rule.allowed}, not {shown}."
            ) from (None if secret else exc)
    if base := environ.get("OPENAI_BASE_URL", "").strip():
        values["openai_base_url"] = base.rstrip("/")
    values["openai_api_key"] = Secret(environ.get("OPENAI_API_KEY", "").strip())
    values["on_lambda"] = "AWS_LAMBDA_RUNTIME_API" in environ
    return Settings(**values)


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
