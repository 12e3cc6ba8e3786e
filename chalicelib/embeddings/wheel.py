"""Vectors from the weights inside the `wordllama` wheel: the mean of a text's token vectors.

Nothing is fetched. The package itself stays unimported: it would set up logging and load an HTTP
client. Its files are found beside it and read here.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chalicelib.embeddings.base import DIMENSIONS, Vector, shorten
from chalicelib.errors import ProviderUnavailable

if TYPE_CHECKING:
    import numpy as np

_log = logging.getLogger(__name__)

_WEIGHTS: Final = f"weights/l2_supercat_{DIMENSIONS}.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"

_loading = threading.Lock()


class WheelEmbedder:
    """The weights are read once a process, by the first call, in its thread."""

    name = f"wheel:l2_supercat_{DIMENSIONS}"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        return await asyncio.to_thread(_embed, [shorten(text) for text in texts])

    async def close(self) -> None:
        """Nothing to close."""


def installed() -> bool:
    """Whether the wheels are here; none of them is imported for the answer."""
    others = ("numpy", "safetensors", "tokenizers")
    folder = _folder()
    return (
        folder is not None
        and all(find_spec(name) is not None for name in others)
        and all((folder / file).is_file() for file in (_WEIGHTS, _TOKENIZER))
    )


def _folder() -> Path | None:
    spec = find_spec("wordllama")
    where = list(spec.submodule_search_locations or ()) if spec else []
    return Path(where[0]) if where else None


def _embed(texts: list[str]) -> list[Vector]:
    import numpy as np

    with _loading:
        weights, tokenizer = _model()
    sums = np.zeros((len(texts), DIMENSIONS), np.float32)
    # the fast one leaves out where in the text a token stands
    for row, told in zip(
        sums, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True
    ):
        if ids := told.ids:
            weights[ids].sum(axis=0, dtype=np.float32, out=row)
    # of the mean and of the sum the direction is the same
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    vectors: list[Vector] = (sums / np.where(lengths > 0, lengths, 1)).tolist()
    return vectors


@cache
def _model() -> "tuple[np.ndarray[Any, Any], Any]":
    # one thread more is worth 10 % here, costs 17 MB, and complains of every fork from then on
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = _folder()
        if folder is None:
            raise ModuleNotFoundError("wordllama")
        # they stay half floats, as they are in the file: 16 MB instead of 32
        weights = load_file(folder / _WEIGHTS)["embedding.weight"]
        tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as exc:  # what these two raise has no common class
        _log.exception("no embeddings", extra={"action": "embeddings_unavailable"})
        raise ProviderUnavailable("The wheel's weights cannot be read.", again=False) from exc
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return weights, tokenizer
