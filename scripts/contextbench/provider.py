"""The fake provider of the tests as a program that answers at once and counts as we do.

Replies are about 40 words. The model `fast` writes summaries, and operations on the tree where it
is asked for them: a topic, a decision and a question every twenty calls, each new.
"""

import asyncio
import json
import signal
from itertools import count
from typing import Any

import uvloop
from memorybench.words import Language

from chalicelib.providers.counting import estimate_tokens
from tests.fakes.openai_server import Handlers, Recorded, Reply
from tests.fakes.openai_wire import text_of


class Answers:
    """What each call is answered with, the same in every run."""

    def __init__(self) -> None:
        self._language = Language(21)
        self._calls = count(1)

    def pick(self, recorded: Recorded) -> Reply:
        """The reply to a request, with its prompt's tokens as usage."""
        text = self._text(recorded.body)
        tokens = sum(
            estimate_tokens(text_of(one.get("content"))) for one in recorded.body["messages"]
        )
        return Reply(pieces=[text], usage=(tokens, estimate_tokens(text)))

    def _text(self, body: dict[str, Any]) -> str:
        if body["model"] != "fast":
            return " ".join(self._language.draw(40)) + "."
        if "response_format" in body:
            return json.dumps({"operations": self._operations(next(self._calls))})
        return "\n".join(f"- {' '.join(self._language.draw(12))}." for _ in range(10))

    def _operations(self, number: int) -> list[dict[str, Any]]:
        told = " ".join(self._language.draw(8))
        made: dict[int, dict[str, Any]] = {
            1: {"op": "open", "kind": "topic", "node": 0, "text": told},
            8: {"op": "decide", "kind": None, "node": None, "text": f"They take {told}."},
            14: {"op": "ask", "kind": None, "node": None, "text": f"What of {told}?"},
        }
        operation = made.get(number % 20)
        return [] if operation is None else [{**operation, "line": 1}]


async def _program() -> None:
    until = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, until.set)
    handlers = Handlers(Answers().pick, cadence=None, keep=False)

    def ready(port: int) -> None:
        print(f"ready http://127.0.0.1:{port}/v1", flush=True)

    await handlers.run(0, until, ready)


if __name__ == "__main__":
    uvloop.run(_program())
