"""Log lines by Powertools' formatter, and without the texts of exceptions."""

import logging
import traceback
from typing import Any

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter


def make_formatter(*, discreet: bool) -> logging.Formatter:
    """The formatter of all lines; a discreet one tells an exception's class and place alone."""
    kind = _Discreet if discreet else LambdaPowertoolsFormatter
    return kind(service="palimpsest", serialize_stacktrace=False)


class _Discreet(LambdaPowertoolsFormatter):
    """Powertools' formatter, without the texts of exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == "asyncio":
            # below its first line it shows the task, and in it the exception
            record.msg, record.args = record.getMessage().partition("\n")[0], ()
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(_places(ei[1]))

    def serialize(self, log: Any) -> str:
        log.pop("exception_notes", None)
        return super().serialize(log)


def _places(exc: BaseException | None) -> list[str]:
    """The exception's class and frames, after those of what led to it."""
    told: list[str] = []
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        name = f"{type(exc).__module__}.{type(exc).__qualname__}"
        told[:0] = [name, *map(str.rstrip, traceback.format_tb(exc.__traceback__))]
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return told
