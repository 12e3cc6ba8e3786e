"""OpenAI's embeddings, and those of servers that speak like it."""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from chalicelib.config import Settings
from chalicelib.embeddings.base import DIMENSIONS, Vector, shorten, twice, vector_of
from chalicelib.errors import ProviderDenied, ProviderRejected, ProviderUnavailable
from chalicelib.providers.base import ProviderOptions
from chalicelib.providers.http import HttpWire
from chalicelib.providers.keyring import Keyring, key_variable
from chalicelib.providers.openai_reader import kind_of

_MODEL: Final = "text-embedding-3-small"

# a call takes 2,048 texts of 300,000 tokens together, and no token is shorter than a byte
_TEXTS: Final = 128
_BYTES: Final = 300_000


class OpenAIEmbedder:
    """One model behind `OPENAI_BASE_URL`, with the platform's key."""

    def __init__(self, settings: Settings, keyring: Keyring | None = None) -> None:
        self._settings, self._keyring = settings, keyring or Keyring(settings)
        self.model = settings.embeddings_model or _MODEL
        self.name = f"openai:{self.model}:{DIMENSIONS}"
        self._told = f"openai:{self.model}"
        self._wires: dict[str, HttpWire] = {}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        short = [shorten(text) for text in texts]
        vectors = [[0.0] * DIMENSIONS for _ in short]
        # an empty text would be refused
        for places in _batches(short, [n for n, text in enumerate(short) if text.strip()]):
            for n, vector in zip(places, await self._some([short[n] for n in places]), strict=True):
                vectors[n] = vector
        return vectors

    async def close(self) -> None:
        """Close the connections."""
        for wire in self._wires.values():
            await wire.close()

    async def _some(self, texts: list[str]) -> list[Vector]:
        try:
            return await self._asked(texts)
        except ProviderRejected:
            if len(texts) == 1:
                raise
        # one that is refused must not keep the others out; where all are, it is not the texts
        found: list[Vector | None] = []
        for text in texts:
            try:
                found += await self._asked([text])
            except ProviderRejected:
                found.append(None)
                if len(found) >= 3 and not any(found):
                    raise
        if not any(found):
            raise ProviderRejected(f"{self._told} refuses each of {len(texts)} texts.")
        return [one or [0.0] * DIMENSIONS for one in found]

    async def _asked(self, texts: list[str]) -> list[Vector]:
        body = {
            "model": self.model,
            "input": texts,
            "dimensions": DIMENSIONS,
            "encoding_format": "float",
        }
        wire = await self._wire()

        async def call() -> bytes:
            async with wire.post(orjson.dumps(body), accept="application/json") as response:
                return b"".join([piece async for piece in wire.pieces(response)])

        settings = self._settings
        answer = await twice(
            call,
            told=self._told,
            longest=settings.provider_answer_timeout,
            patience=settings.provider_retry_wait,
        )
        return _vectors(answer, len(texts), told=self._told)

    async def _wire(self) -> HttpWire:
        settings = self._settings
        key = await self._keyring.key("openai")
        if not key and settings.openai_base_url == Settings.openai_base_url:
            raise ProviderDenied(f"openai has no API key: set {key_variable('openai')}.")
        # a key that was changed gets a wire of its own: what is under way keeps the old one
        if key not in self._wires:
            self._wires[key] = HttpWire(
                ProviderOptions(
                    name="openai",
                    model=self.model,
                    base_url=settings.openai_base_url,
                    connect_timeout=settings.provider_connect_timeout,
                ),
                path="/embeddings",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                kind_of=kind_of,
            )
        return self._wires[key]


def _batches(texts: Sequence[str], places: Sequence[int]) -> list[list[int]]:
    """The places in batches that one call takes."""
    batches: list[list[int]] = []
    room = 0
    for n in places:
        size = len(texts[n].encode())
        if not batches or len(batches[-1]) == _TEXTS or size > room:
            batches.append([])
            room = _BYTES
        batches[-1].append(n)
        room -= size
    return batches


def _vectors(answer: bytes, count: int, *, told: str) -> list[Vector]:
    try:
        data: Any = orjson.loads(answer)["data"]
        found = {one["index"]: one["embedding"] for one in data}
        return [vector_of(found[n], told=told) for n in range(count)]
    except (orjson.JSONDecodeError, LookupError, TypeError) as exc:
        raise ProviderUnavailable(f"{told} sent what cannot be read.") from exc
