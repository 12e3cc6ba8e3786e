"""What the agent will not do, told in a sentence for the model that asked."""

from __future__ import annotations


class Refused(Exception):
    """Becomes an answer of this status: `{"error": sentence, "code": code}`."""

    def __init__(self, sentence: str, code: str = "invalid", *, status: int = 400) -> None:
        super().__init__(sentence)
        self.code = code
        self.status = status
