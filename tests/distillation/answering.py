"""The scripted answers of the set, for a fake provider that only sees what it is asked."""

import re
from functools import cache

from tests.distillation.corpus import Conversation, load_corpus

# characters that a prompt may write otherwise than they were said
_ESCAPED = re.compile(r"[\"'\\<>&\s]*[\"'\\<>&\n]+[\"'\\<>&\s]*")


def scripted_answer(asked: str) -> str | None:
    """What the scripted model answers to a prompt, by the messages it holds; None if it is none.

    Of two conversations that it holds whole, the longer one is meant.
    """
    held = [
        (size, talk)
        for size, pieces, talk in _conversations()
        if all(one in asked for one in pieces)
    ]
    return max(held, key=lambda one: one[0])[1].answer if held else None


@cache
def _conversations() -> list[tuple[int, tuple[str, ...], Conversation]]:
    found = []
    for one in load_corpus():
        for talk in one.conversations:
            pieces = tuple(
                max(_ESCAPED.split(said.text.strip()), key=len) for said in talk.messages
            )
            found.append((sum(map(len, pieces)), pieces, talk))
    return found
