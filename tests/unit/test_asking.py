"""What is asked of a model by a program: one line a value, and answers that have an end."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chalicelib.providers import Finished, ModelEvent, ModelMessage, ModelRequest, TextDelta
from chalicelib.providers.asking import CutOff, ask_text, ask_whole, json_line

REQUEST = ModelRequest(system="", messages=(ModelMessage(role="user", content="hi"),))


class Saying:
    """A provider that says these pieces, and counts how many it was asked for."""

    name = model = "saying"

    def __init__(self, *pieces: str, reason: str = "stop") -> None:
        self.pieces, self.reason = pieces, reason
        self.said = 0
        self.left = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        try:
            for piece in self.pieces:
                self.said += 1
                yield TextDelta(text=piece)
            yield Finished(reason=self.reason, provider=self.name, model=self.model)
        finally:
            self.left = True

    async def close(self) -> None:
        """Nothing to close."""


def test_answer_comes_with_the_reason_of_its_end() -> None:
    """Lost if red: a refusal, or half of an answer, that passes for an answer."""
    assert asyncio.run(ask_text(Saying("Hel", "lo", reason="refusal"), REQUEST)) == (
        "Hello",
        "refusal",
    )
    assert asyncio.run(ask_whole(Saying("Hel", "lo"), REQUEST)) == "Hello"
    with pytest.raises(CutOff):
        asyncio.run(ask_whole(Saying("Hel", reason="length"), REQUEST))


def test_rest_of_an_answer_without_an_end_is_not_waited_for() -> None:
    """Lost if red: a process's memory, to a model that repeats itself."""
    endless = Saying(*["ab"] * 1_000)
    text, reason = asyncio.run(ask_text(endless, REQUEST, at_most=9))
    assert (text, reason) == ("ab" * 5, "")
    assert endless.said == 5
    assert endless.left


@pytest.mark.parametrize(
    "text", ["a\nb", "a\x85b", "a\u2028b", "a\u2029b", "a\x7fb\r\n", "\x0b\x0c"]
)
def test_no_text_ends_its_line(text: str) -> None:
    """Lost if red: a message that passes for another one, or for the end of them."""
    line = json_line({"text": text})
    assert len(line.splitlines()) == 1
    assert line.isprintable()
