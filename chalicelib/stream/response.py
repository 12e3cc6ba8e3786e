"""What a streaming function is told of its invocation, and what it answers.

Shared by the handler, the Lambda loop and the gateway, so it imports none of them.
"""

import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LambdaContext:
    """One invocation as Lambda describes it.

    The names are those of the managed Python runtime, so libraries that expect its context (as
    Powertools does) take this one.
    """

    aws_request_id: str
    deadline_ms: int
    """When Lambda cuts the invocation off, in milliseconds since 1970."""
    invoked_function_arn: str = ""
    trace_id: str | None = None
    function_name: str = ""
    function_version: str = ""
    memory_limit_in_mb: int = 0
    log_group_name: str = ""
    log_stream_name: str = ""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the deadline; 0 once it has passed."""
        return max(0, self.deadline_ms - time.time_ns() // 1_000_000)


@dataclass(kw_only=True)
class Streamed:
    """An HTTP answer whose body is made while it is sent.

    `headers` are (name, value) pairs; a name may come twice. Empty pieces of `body` send nothing.
    The body is closed (`aclose`) when it ends, fails or has lost its reader. `after` is the work
    that outlives the answer: it is awaited exactly once whatever became of the body, and its
    failure is logged, never raised.
    """

    status: int
    headers: list[tuple[str, str]]
    body: AsyncIterator[bytes]
    after: Awaitable[None] | None = None
