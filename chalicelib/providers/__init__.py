"""The port to model vendors. A new wire is a file here and a line in `models._WIRES`."""

from typing import TYPE_CHECKING, Any

from chalicelib.providers.base import (
    AttemptFailed,
    Finished,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderOptions,
    Reasoning,
    TextDelta,
    ToolCall,
    ToolSpec,
)

if TYPE_CHECKING:
    from chalicelib.providers.chain import Chain
    from chalicelib.providers.models import KeyReader, Models

__all__ = [
    "AttemptFailed",
    "Chain",
    "Finished",
    "KeyReader",
    "ModelEvent",
    "ModelMessage",
    "ModelRequest",
    "Models",
    "Provider",
    "ProviderOptions",
    "Reasoning",
    "TextDelta",
    "ToolCall",
    "ToolSpec",
]


def __getattr__(name: str) -> Any:
    # prices and windows are read with them, which most who know a message's shape do not need
    if name == "Chain":
        from chalicelib.providers.chain import Chain

        return Chain
    if name in ("KeyReader", "Models"):
        from chalicelib.providers import models

        return getattr(models, name)
    raise AttributeError(name)
