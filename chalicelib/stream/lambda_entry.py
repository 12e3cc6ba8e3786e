"""What the streaming Lambda runs: an event of either front door in, a streamed answer out.

Takes a function URL's event (payload 2.0) and a REST API's (1.0).
"""

import base64
import os
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qsl

from chalicelib.api.app import new_request_id
from chalicelib.api.call import Call
from chalicelib.stream.handler import respond
from chalicelib.stream.response import LambdaContext, Streamed

# what the parts of a turn import when they are first asked for
_OF_TURNS: Final = (
    "aiohttp",
    "chalicelib.api.distillates",
    "chalicelib.api.sessions",
    "chalicelib.loglines",
    "chalicelib.memory.tooling",
    "chalicelib.providers.openai",
    "chalicelib.sessions.contexts",
    "chalicelib.sessions.engine",
    "chalicelib.sessions.produce",
    "chalicelib.tools.toolbox",
)
if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "provisioned-concurrency":
    # made ready before anyone calls: the first turn is not to wait for them
    for _name in _OF_TURNS:
        import_module(_name)


async def handler(event: dict[str, Any], context: LambdaContext) -> Streamed:
    """Answer one invocation."""
    return await respond(to_call(event))


def to_call(event: dict[str, Any]) -> Call:
    """The request that a function URL's or a REST API's event describes."""
    about = event.get("requestContext") or {}
    body = event.get("body") or ""
    raw = (
        base64.b64decode(body) if event.get("isBase64Encoded") else body.encode("utf-8", "replace")
    )
    request_id = about.get("requestId") or new_request_id()
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    if event.get("version") == "2.0":
        return Call(
            method=about["http"]["method"],
            path=event.get("rawPath") or about["http"]["path"],
            headers=headers,
            query=dict(parse_qsl(event.get("rawQueryString") or "", keep_blank_values=True)),
            body=raw,
            request_id=request_id,
        )
    query = event.get("multiValueQueryStringParameters") or {}
    return Call(
        method=event["httpMethod"],
        path=event["path"],
        headers=headers,
        query={name: values[-1] for name, values in query.items() if values},
        body=raw,
        request_id=request_id,
    )
