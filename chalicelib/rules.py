"""How a setting's text is read: casts and checks, each with the words for what it takes.

A rule's `read` raises ValueError or KeyError for what is not allowed; `config` says so, with the
variable's name and the rule's `allowed`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_DURATION: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SMALL: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
_UNITS: Final = {**_SMALL, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


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
class Rule:
    """How one variable is read: `read` casts or raises, `allowed` says what it takes."""

    read: Callable[[str], Any]
    allowed: str
    shown: bool = True
    """Whether a wrong value may be told: not where it may hold a secret."""


def duration(at_least: float, at_most: float) -> Rule:
    """A Go duration, as seconds."""
    return Rule(
        read=lambda text: _within(parse_duration(text), at_least, at_most),
        allowed=f"a duration such as 30s or 1m30s, from {at_least:.10g}s to {at_most:.10g}s",
    )


def whole(at_least: int, at_most: int) -> Rule:
    """A whole number."""
    return Rule(
        read=lambda text: int(_within(int(text), at_least, at_most)),
        allowed=f"a whole number from {at_least} to {at_most}",
    )


def _within(value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def choice(*words: str) -> Rule:
    """One of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return Rule(read=read, allowed=" or ".join(words))


def _read_switch(text: str) -> bool:
    return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[
        text.lower()
    ]


TEXT: Final = Rule(read=str, allowed="a text")
SECRET: Final = Rule(read=Secret, allowed="a text", shown=False)
SWITCH: Final = Rule(read=_read_switch, allowed="1, true, on, 0, false or off")


def _read_queue(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text):
        raise ValueError(text)
    return text


QUEUE: Final = Rule(read=_read_queue, allowed="1 to 80 letters, digits, - and _")


def _read_postgres(text: str) -> Secret:
    # what else is wrong libpq tells, but of these it quotes the password
    if not re.fullmatch(r"postgres(ql)?://([^\s%]|%[0-9A-Fa-f]{2})*", text):
        raise ValueError(text)
    return Secret(text)


POSTGRES: Final = Rule(
    read=_read_postgres,
    allowed="a postgresql:// URL (odd characters as %xx)",
    shown=False,
)


def _read_base_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError(text)
    return text.rstrip("/")


BASE_URL: Final = Rule(
    read=_read_base_url,
    allowed="an http:// or https:// URL without a password and without ?",
    shown=False,
)


def _read_list(pattern: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        for part in parts:
            if not re.fullmatch(pattern, part):
                raise ValueError(part)
        return parts

    return read


ORIGINS: Final = Rule(
    read=_read_list(r"https?://[^/\s,*]+"),
    allowed="origins such as https://console.example.com, by commas",
)
HOSTS: Final = Rule(
    read=_read_list(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?"),
    allowed="hosts such as tools.internal or 127.0.0.1:9000, by commas",
)
PATTERNS: Final = Rule(
    read=_read_list(r"[A-Za-z0-9_*:{}-]{1,170}"),
    allowed="function names by commas, where * stands for any characters",
)


def _read_image(text: str) -> str:
    if not re.fullmatch(r"arn:aws[a-z-]*:\S{1,500}", text):
        raise ValueError(text)
    return text


IMAGE: Final = Rule(read=_read_image, allowed="the ARN of a microVM image")
CONNECTORS: Final = Rule(
    read=_read_list(r"[A-Za-z0-9:/_.-]{1,256}"),
    allowed="names or ARNs of network connectors, by commas",
)


def _read_providers(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, model = item.partition(":")
        if not (colon and kind and model):
            raise ValueError(item)
        pairs.append((kind, model))
    return tuple(pairs)


PROVIDERS: Final = Rule(
    read=_read_providers, allowed="provider:model pairs, by commas, such as openai:gpt-5-mini"
)
