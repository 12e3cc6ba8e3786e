"""What the person who deploys sees, and is asked."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence

from .errors import DeployError


class Console:
    """Writes to a terminal or log; `ask` reads an answer, which `yes` gives in advance."""

    def __init__(self, *, yes: bool = False, ask: Callable[[str], str] = input) -> None:
        self._yes, self._ask = yes, ask

    def say(self, line: str) -> None:
        """One line; where no one reads any more, the work goes on all the same."""
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def step(self, what: str) -> None:
        """What begins now."""
        self.say(f"== {what}")

    def fail(self, why: str) -> None:
        """Why it ends."""
        sys.stdout.flush()
        sys.stderr.write(f"{why}\n")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows under a head, in columns."""
        lines = [list(head), *(list(row) for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        for line in lines:
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            self.say("  " + "  ".join(cells).rstrip())

    def agreed(self, question: str) -> bool:
        """Whether the answer is yes."""
        return self._yes or self._answer(f"{question} [y/N] ").lower() in ("y", "yes")

    def typed(self, question: str, word: str) -> bool:
        """Whether the word itself is typed; no option answers this in advance."""
        return self._answer(question) == word

    def _answer(self, question: str) -> str:
        try:
            return self._ask(question).strip()
        except EOFError as exc:
            raise DeployError("No one is there to answer; nothing was changed.") from exc
