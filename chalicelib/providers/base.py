"""The port to model vendors: what a turn asks, what it hears, and the one method between.

Vendor shapes end in the adapters. A provider reports trouble as `ProviderUnavailable` (another
provider may do better) or `ProviderRejected` (the request would fail everywhere), never as an
exception of its HTTP library.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class ModelMessage:
    """One message of a prompt. `attachments` are the contract's: `{type, mediaType, data|url}`."""

    role: Role
    content: str
    attachments: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One call of a model: the system prompt apart, then the conversation, newest last."""

    system: str
    messages: tuple[ModelMessage, ...]


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """A piece of the reply's text, never empty."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a reply that came whole. Token counts are the provider's own, else None."""

    reason: str
    provider: str
    model: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptFailed:
    """A provider of the chain failed before its first delta; the next one is being tried."""

    provider: str
    model: str
    reason: str


ModelEvent = TextDelta | Finished | AttemptFailed


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """What an adapter is made with. Timeouts in seconds, for the first and for each next token."""

    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    timeout: float = 60.0


class Provider(Protocol):
    """One model of one vendor. A chain of providers is itself a provider."""

    name: str
    model: str

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Deltas, then exactly one `Finished`; raises ProviderError instead when it cannot."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
