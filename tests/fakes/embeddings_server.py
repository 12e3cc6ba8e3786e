"""A wire-level fake of two embedding services: OpenAI's and Amazon Titan's on Bedrock.

    with FakeEmbeddings() as fake:
        fake.script(Fault(status=429, code="rate_limit_exceeded", retry_after="0"))
        ...                       # point an embedder at fake.openai_url or fake.bedrock_url

It is as strict as the services are: a request that one of them would not take is a 400, and
`fake.refused` says why. A text's vector is that of `vector_for`, of length 1. Where tokens are
limited, each byte counts as one: no tokenizer makes more of a text.
"""

import asyncio
import hashlib
import json
import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import unquote

from aiohttp import web

from tests.fakes.openai_wire import error_body, json_answer, reset

OPENAI_SIZES = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072}
TITAN = "amazon.titan-embed-text-v2:0"
_TOKENS = 8_192


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What one call is answered with instead of vectors."""

    status: int = 200
    code: str = ""
    retry_after: str | None = None
    body: bytes | None = None  # a 200 with this
    ends: Literal["reset", "hang"] | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call as it came. Names of headers are in lower case."""

    wire: Literal["openai", "bedrock"]
    model: str
    texts: list[str]
    headers: Mapping[str, str]
    body: dict[str, Any]


def vector_for(text: str, size: int = 256) -> list[float]:
    """A direction of its own for each text."""
    drawn: list[float] = []
    while len(drawn) < size:
        block = hashlib.sha256(f"{len(drawn)} {text}".encode()).digest()
        drawn += [byte / 127.5 - 1 for byte in block]
    length = math.hypot(*drawn[:size])
    return [value / length for value in drawn[:size]]


class FakeEmbeddings:
    """The server in a background thread; a context manager."""

    def __init__(self) -> None:
        self._script: deque[Fault] = deque()
        self._thread = threading.Thread(target=self._serve, name="fake-embeddings", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.asked: list[Asked] = []
        self.refused: list[str] = []
        self.unwanted: set[str] = set()  # texts that are refused for what they say
        self.reversed = False  # vectors come in another order than their texts
        self.at_once = 0  # most calls that were under way together
        self.bedrock_url = self.openai_url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake embeddings did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(10)

    def script(self, *faults: Fault) -> None:
        """Let the next calls, in order of arrival, meet these."""
        self._script.extend(faults)

    @property
    def texts(self) -> list[str]:
        """Every text that was asked for, in the order of arrival."""
        return [text for one in self.asked for text in one.texts]

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/embeddings", self._openai)
        app.router.add_post("/model/{model}/invoke", self._bedrock)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.bedrock_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self.openai_url = f"{self.bedrock_url}/v1"
            self._ready.set()
            await self._until.wait()
            for task in self._tasks:  # hanging calls do not hold up the end
                task.cancel()
        finally:
            await runner.cleanup()

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        texts = body.get("input")
        asked = Asked(
            wire="openai",
            model=str(body.get("model")),
            texts=texts if isinstance(texts, list) else [],
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
        )
        return await self._answer(request, asked, openai_problem(asked))

    async def _bedrock(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        asked = Asked(
            wire="bedrock",
            model=unquote(request.match_info["model"]),
            texts=[body.get("inputText", "")],
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
        )
        return await self._answer(request, asked, titan_problem(asked))

    async def _answer(
        self, request: web.Request, asked: Asked, problem: str | None
    ) -> web.StreamResponse:
        self.asked.append(asked)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.at_once = max(self.at_once, len(self._tasks))
        try:
            if not asked.headers.get("authorization"):
                return _refusal(asked.wire, Fault(status=401, code="invalid_api_key"))
            if problem is None and self.unwanted & set(asked.texts):
                problem = "what is said here is unwanted"
            if problem is not None:
                self.refused.append(problem)
                code = "ValidationException" if asked.wire == "bedrock" else "invalid_request"
                return _refusal(asked.wire, Fault(status=400, code=code), problem)
            fault = self._script.popleft() if self._script else Fault()
            if fault.ends == "hang":
                await asyncio.Event().wait()
            if fault.ends == "reset":
                await reset(request)
                return web.Response()
            if fault.status != 200:
                return _refusal(asked.wire, fault)
            await asyncio.sleep(0)  # so that calls which come together are under way together
            body = fault.body or json.dumps(self._vectors(asked)).encode()
            return web.Response(body=body, content_type="application/json")
        finally:
            self._tasks.discard(task)

    def _vectors(self, asked: Asked) -> dict[str, Any]:
        tokens = sum(len(text.split()) for text in asked.texts)
        if asked.wire == "bedrock":
            vector = vector_for(asked.texts[0], asked.body.get("dimensions", 1024))
            if not asked.body.get("normalize", True):
                vector = [3 * value for value in vector]
            return {
                "embedding": vector,
                "embeddingsByType": {"float": vector},
                "inputTextTokenCount": tokens,
            }
        size = asked.body.get("dimensions", OPENAI_SIZES[asked.model])
        data = [
            {"object": "embedding", "index": n, "embedding": vector_for(text, size)}
            for n, text in enumerate(asked.texts)
        ]
        return {
            "object": "list",
            "data": data[::-1] if self.reversed else data,
            "model": asked.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


def openai_problem(asked: Asked) -> str | None:
    """Why OpenAI would refuse it."""
    body = asked.body
    if extra := set(body) - {"model", "input", "dimensions", "encoding_format", "user"}:
        return f"unrecognized: {extra}"
    if asked.model not in OPENAI_SIZES:
        return "no such model"
    if not 1 <= len(asked.texts) <= 2_048 or not all(isinstance(one, str) for one in asked.texts):
        return "input must be 1 to 2,048 strings"
    if not all(asked.texts):
        return "input cannot be an empty string"
    if max(_tokens(text) for text in asked.texts) > _TOKENS:
        return "an input is too long"
    if sum(_tokens(text) for text in asked.texts) > 300_000:
        return "max 300000 tokens per request"
    size = body.get("dimensions", 1)
    if not isinstance(size, int) or not 1 <= size <= OPENAI_SIZES[asked.model]:
        return "dimensions out of range"
    if body.get("encoding_format", "float") not in ("float", "base64"):
        return "encoding_format must be float or base64"
    return None


def titan_problem(asked: Asked) -> str | None:
    """Why Titan would refuse it."""
    body = asked.body
    if extra := set(body) - {"inputText", "dimensions", "normalize", "embeddingTypes"}:
        return f"extraneous key {extra} is not permitted"
    if asked.model != TITAN:
        return "The provided model identifier is invalid."
    text = body.get("inputText")
    if not isinstance(text, str) or not text:
        return "expected minLength: 1, actual: 0"
    if _tokens(text) > _TOKENS or len(text) > 50_000:
        return "Too many input tokens."
    if body.get("dimensions", 1024) not in (256, 512, 1024):
        return "dimensions is not a valid enum value"
    if not isinstance(body.get("normalize", True), bool):
        return "normalize: expected type: Boolean"
    if not set(body.get("embeddingTypes", ["float"])) <= {"float", "binary"}:
        return "embeddingTypes is not a valid enum value"
    return None


def _tokens(text: str) -> int:
    return len(text.encode())


def _refusal(wire: str, fault: Fault, message: str = "no") -> web.Response:
    if wire == "openai":
        body = error_body(fault.status, message, code=fault.code)
        return json_answer(fault.status, body, fault.retry_after)
    headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    headers["x-amzn-ErrorType"] = fault.code
    return web.json_response({"message": message}, status=fault.status, headers=headers)
