"""A handler for the Lambda loop in a process of its own; `event["want"]` says what to answer."""

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from chalicelib.stream.response import LambdaContext, Streamed

SECRET = "password=hunter2"

_finished: list[str] = []
"""The invocations whose work after the answer is done; the next answers tell how many."""


class BackendGone(Exception):
    """Fails with a text that no caller may see."""


async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
    """Two pieces for `events`; see `_body` for the rest. `refuse` fails before any."""
    if event["want"] == "refuse":
        raise BackendGone(SECRET)
    return Streamed(
        status=201,
        headers=[
            ("Content-Type", "text/event-stream; charset=utf-8"),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"),
        ],
        body=_body(event["want"], context),
        after=_finish(context.aws_request_id),
    )


async def _body(want: str, context: LambdaContext) -> AsyncIterator[bytes]:
    yield f"data: pid {os.getpid()}\n\n".encode()
    if want == "break":
        raise BackendGone(SECRET)
    if want == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    trace = os.environ.get("_X_AMZN_TRACE_ID", "none")
    left = context.get_remaining_time_in_millis() > 0
    yield f"data: finished {len(_finished)}, trace {trace}, time left {left}\n\n".encode()


async def _finish(request_id: str) -> None:
    _finished.append(request_id)
    print(f"finished {request_id}")
