"""Shapes of agents, and of tenants' own keys and secrets, as they come in and go out."""

import re
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from chalicelib.agents.definition import AgentDefinition, AgentName
from chalicelib.shapes import In, Out, Text, wrong_at
from chalicelib.texts import printable

SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PROVIDER: Final = re.compile(
    r"openai|anthropic|bedrock|(openai|anthropic)@[a-z0-9][a-z0-9_-]{0,39}"
)


class AgentIn(AgentDefinition):
    """A new agent."""

    name: AgentName


class AgentReplacementIn(AgentDefinition):
    """What takes the whole definition's place; a `name` must be the path's."""

    name: AgentName | None = None


class AgentOut(AgentDefinition):
    """An agent as it was defined; what was left out is absent."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime


def _are_providers(providers: Any) -> Any:
    # by hand, since pydantic puts a `[key]` behind the path of a wrong one
    for name in providers if isinstance(providers, dict) else ():
        if not _PROVIDER.fullmatch(name):
            reason = "must be openai, anthropic, bedrock, openai@name or anthropic@name"
            raise wrong_at((printable(name),), reason)
    return providers


def _fits_a_header(key: str) -> str:
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("must be printable ASCII without spaces")
    return key


def _has_no_control(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError("must not hold a control character")
    return value


class ProviderKeyIn(In):
    """A vendor's key of the tenant's own."""

    api_key: Annotated[
        Text, Field(min_length=1, max_length=4_000, repr=False), AfterValidator(_fits_a_header)
    ]
    base_url: Annotated[Text, Field(min_length=1, max_length=500)] | None = None


class ProvidersIn(In):
    """Keys to set, by provider; null removes one, and what is not named stays."""

    providers: Annotated[
        dict[str, ProviderKeyIn | None], BeforeValidator(_are_providers), Field(max_length=32)
    ]


class SecretIn(In):
    """A value that tools' headers may refer to as `{{secret:name}}`."""

    value: Annotated[
        Text, Field(min_length=1, max_length=8_000, repr=False), AfterValidator(_has_no_control)
    ]


class ProviderOut(Out):
    """A provider that the tenant has a key for. `hint` is the key's last four characters."""

    name: str
    hint: str
    updated_at: datetime
    base_url: str | None = None


class ProvidersOut(Out):
    """All the tenant's own providers, by name."""

    providers: list[ProviderOut]


class SecretOut(Out):
    """A secret, without its value. `hint` is its last four characters."""

    name: str
    hint: str
    updated_at: datetime


class SecretsOut(Out):
    """All the tenant's secrets, by name."""

    secrets: list[SecretOut]
