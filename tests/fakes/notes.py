"""What a person said in a prompt's message, without the notes that our prompts put beside it."""

import re
from typing import Final

_TIME: Final = r"It is \w+day, \d+ \w+ \d{4}, \d\d:\d\d \([^)\n]*\)\.\n\n"
# blocks that nothing inside can close, then the time of the turn
_NOTES: Final = re.compile(rf"(?:<(\w+)>\n.*?\n</\1>\n\n)*{_TIME}", re.DOTALL)


def said(text: str) -> str:
    """The text without the notes in it."""
    return _NOTES.sub("", text)


def without_time(text: str) -> str:
    """The text without the line of the notes that tells the time."""
    return re.sub(_TIME, "", text)
