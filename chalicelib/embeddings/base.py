"""The port to embeddings: texts in, unit vectors out."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from chalicelib.errors import ProviderUnavailable

DIMENSIONS: Final = 256

TEXT_BYTES: Final = 8_000
"""A text counts up to here: no vendor's tokenizer makes more of it than the 8,192 they take."""

Vector = list[float]

T = TypeVar("T")


class Embedder(Protocol):
    """One model. `name` is its provider, model and size: vectors of another name are strangers."""

    name: str

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """A unit vector of `DIMENSIONS` for each, all zeros where a text says nothing.

        Raises ProviderError when it cannot.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def shorten(text: str) -> str:
    """The text as far as it counts, and without what UTF-8 cannot say."""
    return text.encode("utf-8", "replace")[:TEXT_BYTES].decode("utf-8", "ignore")


def unit(vector: Sequence[float]) -> Vector:
    """The same direction with length 1; a vector without a direction stays zero."""
    length = math.hypot(*vector)
    return [value / length for value in vector] if length else [0.0] * len(vector)


def vector_of(value: object, *, told: str) -> Vector:
    """A vector as a vendor sent it, made a unit one; ProviderUnavailable if it is none."""
    numbers = value if isinstance(value, list) else []
    if len(numbers) != DIMENSIONS or not all(
        isinstance(one, int | float) and math.isfinite(one) for one in numbers
    ):
        raise ProviderUnavailable(f"{told} sent what is no vector of {DIMENSIONS}.", again=False)
    return unit(numbers)


async def twice(
    call: Callable[[], Awaitable[T]], *, told: str, longest: float, patience: float
) -> T:
    """What the call gives; tried once more where that may do better.

    Each try has `longest` seconds; a vendor that asks for more than `patience` is not waited for.
    """
    try:
        return await _timed(call, told, longest)
    except ProviderUnavailable as exc:
        wait = 0.25 if exc.wait is None else exc.wait
        if not exc.again or wait > patience:
            raise
    await asyncio.sleep(wait)
    return await _timed(call, told, longest)


async def _timed(call: Callable[[], Awaitable[T]], told: str, longest: float) -> T:
    try:
        async with asyncio.timeout(longest):
            return await call()
    except TimeoutError as exc:
        raise ProviderUnavailable(f"{told} timed out.", again=False) from exc
