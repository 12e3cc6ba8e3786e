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
class ToolSpec:
    """A tool as a model sees it. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A model's wish to have a tool run. `arguments` is JSON text, `{}` where it sent none.

    What a model sends may be no JSON, or no object; whoever runs the call checks it. From an
    adapter `id` is the vendor's and may be empty or used twice; in a `ModelRequest` it is ours.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Opaque blocks that go back to the provider and model which issued them, and to no other."""

    provider: str
    model: str
    blocks: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class ModelMessage:
    """One message of a prompt.

    `attachments` are the contract's: `{type: "image", mediaType, data|url}`, on user messages.
    `tool_calls` and `reasoning` are an assistant's. A tool's result has the role `tool`, the
    `tool_call_id` it answers, and `is_error` when the tool failed. A `system` message amid the
    conversation is an instruction of the caller's for this place.
    """

    role: Role
    content: str
    attachments: tuple[dict[str, Any], ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: Reasoning | None = None
    tool_call_id: str | None = None
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One call of a model: the system prompt apart, then the conversation, newest last.

    Without `stream` the reply is asked for whole: one delta at most, then `Finished`. `schema` is
    a JSON Schema that the reply must be an instance of; `max_tokens` bounds the reply. The first
    `kept` messages are those that the conversation's next request is likely to begin with too:
    what is worth a place in the provider's cache.
    """

    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    stream: bool = True
    schema: dict[str, Any] | None = None
    max_tokens: int | None = None
    kept: int = 0


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """A piece of the reply's text, never empty."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a reply that came whole. Token counts are the provider's own, else None.

    `reason` is `stop`, `length`, `tool_calls`, `refusal`, `content_filter` or the vendor's own
    word. `tokens_in` counts all input, of which `tokens_cached` were read from the provider's
    cache and `tokens_cache_written` were written to it. `cost_usd` is filled in by the chain.
    """

    reason: str
    provider: str
    model: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    tokens_cache_written: int | None = None
    cost_usd: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: Reasoning | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptFailed:
    """A try of a provider failed before its first delta; the same or the next one is tried."""

    provider: str
    model: str
    reason: str


ModelEvent = TextDelta | Finished | AttemptFailed


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """What an adapter is made with.

    `name` is the provider's in a chain: `anthropic`, `openai@groq`. `guarded` says that a tenant
    chose `base_url`, so that it must be https and lead to a public address.
    """

    name: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    connect_timeout: float = 5.0
    guarded: bool = False


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
