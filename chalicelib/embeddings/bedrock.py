"""Amazon Titan's embeddings on Bedrock, a call a text."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import orjson

from chalicelib.config import Settings
from chalicelib.embeddings.base import DIMENSIONS, Vector, shorten, twice, vector_of
from chalicelib.errors import ProviderRejected, ProviderUnavailable
from chalicelib.providers.base import ProviderOptions
from chalicelib.providers.bedrock_client import BedrockClient

_MODEL: Final = "amazon.titan-embed-text-v2:0"

# calls at once, each with a thread
_CALLS: Final = 16


class BedrockEmbedder:
    """One model; credentials, region and endpoint are AWS's own variables'."""

    def __init__(self, settings: Settings, options: ProviderOptions | None = None) -> None:
        self._settings = settings
        self.model = settings.embeddings_model or _MODEL
        self.name = f"bedrock:{self.model}:{DIMENSIONS}"
        self._told = f"bedrock:{self.model}"
        self._slots = asyncio.Semaphore(_CALLS)
        self._client = BedrockClient(
            options
            or ProviderOptions(
                name="bedrock",
                model=self.model,
                connect_timeout=settings.provider_connect_timeout,
            )
        )

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        short = [shorten(text) for text in texts]
        try:
            async with asyncio.TaskGroup() as group:
                # an empty text would be refused
                asked = {
                    n: group.create_task(self._one(text))
                    for n, text in enumerate(short)
                    if text.strip()
                }
        except BaseExceptionGroup as group_of:
            # the others were left for the first one's sake
            raise group_of.exceptions[0] from None
        found = {n: task.result() for n, task in asked.items()}
        if found and not any(found.values()):
            raise ProviderRejected(f"{self._told} refuses each of {len(found)} texts.")
        return [found.get(n) or [0.0] * DIMENSIONS for n in range(len(short))]

    async def close(self) -> None:
        """End what is under way and close the connections."""
        self._client.close()

    async def _one(self, text: str) -> Vector | None:
        """None where the model will not have this text."""
        body = {
            "inputText": text,
            "dimensions": DIMENSIONS,
            "normalize": True,
            "embeddingTypes": ["float"],
        }
        request = {
            "modelId": self.model,
            "body": orjson.dumps(body),
            "contentType": "application/json",
            "accept": "application/json",
        }

        async def call() -> dict[str, Any]:
            async with aclosing(self._client.events("InvokeModel", request)) as events:
                async for event in events:
                    return event
            raise ProviderUnavailable(f"{self._told} sent nothing.")

        settings = self._settings
        async with self._slots:
            try:
                answer = await twice(
                    call,
                    told=self._told,
                    longest=settings.provider_answer_timeout,
                    patience=settings.provider_retry_wait,
                )
            except ProviderRejected:
                return None
        try:
            vector = orjson.loads(answer["body"])["embedding"]
        except (orjson.JSONDecodeError, LookupError, TypeError) as exc:
            raise ProviderUnavailable(f"{self._told} sent what cannot be read.") from exc
        return vector_of(vector, told=self._told)
