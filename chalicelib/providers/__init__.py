"""The port to model vendors. A new wire is a file here and a line in `models._WIRES`."""

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
