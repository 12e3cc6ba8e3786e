"""Getting a queued turn to someone who runs it: this process, or an SQS queue's worker.

A dispatch may be lost; the sweep dispatches what no one claimed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from chalicelib.sessions.engine import Engine

Dispatch = Callable[[str, str], Awaitable[None]]
"""Called with (tenant id, session id) once a turn is queued."""


def dispatch_here(engine: "Engine") -> Dispatch:
    """Run turns in this process."""

    async def dispatch(tenant_id: str, session_id: str) -> None:
        engine.start(tenant_id, session_id)

    return dispatch


def dispatch_to_queue(queue_url: str) -> Dispatch:
    """Send turns to an SQS queue as `{"tenantId", "sessionId"}`."""
    client: Any = None

    def send(tenant_id: str, session_id: str) -> None:
        nonlocal client
        if client is None:
            import boto3  # 170 ms of import, paid only where a queue is set

            client = boto3.client("sqs")
        body = orjson.dumps({"tenantId": tenant_id, "sessionId": session_id}).decode()
        client.send_message(QueueUrl=queue_url, MessageBody=body)

    async def dispatch(tenant_id: str, session_id: str) -> None:
        await asyncio.to_thread(send, tenant_id, session_id)

    return dispatch
