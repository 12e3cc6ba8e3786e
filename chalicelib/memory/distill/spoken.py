"""What a person's message says in their own name. Pure."""

import re
from typing import Final

# a line that is told to be someone else's: a role at its beginning, or the sign of a forwarded mail
_ANOTHER: Final = re.compile(
    r"[ \t>*#\"'“\[(<|]*(?:(?:assistant|system|tool|developer|ai|bot|chatbot|model|function)"
    r"(?:\s*\([^)\n]*\))?[\]*|>\"']*\s*[:：]|>)",
    re.IGNORECASE,
)


def spoken(text: str) -> str:
    """This text without the lines that another is said to speak, or that are quoted by `>`."""
    lines = text.split("\n")
    own = [line for line in lines if not _ANOTHER.match(line)]
    return text if len(own) == len(lines) else "\n".join(own)
