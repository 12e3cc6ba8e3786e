"""Tools that are AWS Lambda functions, invoked with the arguments and waited for.

The process's own role invokes them, for every tenant, so the operator says which: PAL_TOOL_LAMBDAS
holds patterns of names, in which `{tenant}` is the tenant's id. A pattern without `:` is for the
names of functions of this account and region, in any version; one with `:` is compared with all
that the definition says, so an ARN, which may be of another account, has to be named as one.
"""

import base64
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from chalicelib.providers.base import ToolSpec
from chalicelib.threads import on_own_thread
from chalicelib.tools.base import Tool, ToolContext, ToolFailed
from chalicelib.tools.excerpt import beginning

if TYPE_CHECKING:
    from chalicelib.tools.definitions import LambdaTool
    from chalicelib.tools.toolbox import ToolDeps

_ANSWER_BYTES: Final = 6 << 20
_ERROR_AT_MOST: Final = 1000
_CONNECT_SECONDS: Final = 5.0
_CONNECTIONS: Final = 64
_ENDPOINT: Final = "AWS_ENDPOINT_URL_LAMBDA"

_TOLD: Final = {
    "ResourceNotFoundException": "does not exist",
    "AccessDeniedException": "may not be invoked by this service",
    "TooManyRequestsException": "is busy; try again later",
    "RequestTooLargeException": "does not take arguments of this size",
    "RequestEntityTooLargeException": "does not take arguments of this size",
}


async def lambda_tools(
    definition: "LambdaTool", /, *, tenant_id: str, deps: "ToolDeps"
) -> list[Tool]:
    """The one tool of this entry; whether its function may be invoked, each call asks."""
    timeout = definition.timeout or deps.settings.tool_timeout

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        function = definition.function
        if not may_invoke(function, tenant_id=tenant_id, patterns=deps.settings.tool_lambdas):
            raise ToolFailed(f"The function {function} is not one that tools may invoke here.")
        return await on_own_thread(
            lambda: _invoke(function, arguments, context, timeout), name="lambda-tool"
        )

    return [
        Tool(
            spec=ToolSpec(
                name=definition.name,
                description=definition.description or f"Runs {definition.name}.",
                parameters=definition.parameters,
            ),
            run=run,
            approval=definition.approval,
            read_only=definition.read_only,
            idempotent=definition.idempotent,
            timeout=timeout,
        )
    ]


def may_invoke(function: str, *, tenant_id: str, patterns: Sequence[str]) -> bool:
    """Whether the operator's patterns let this tenant's tools invoke this function."""
    name = None if function.startswith("arn:") else function.partition(":")[0]
    for pattern in patterns:
        wanted = function if ":" in pattern else name
        if wanted is None or ("{tenant}" in pattern and not tenant_id):
            continue
        pieces = pattern.replace("{tenant}", tenant_id).split("*")
        if re.fullmatch("[^:]*".join(map(re.escape, pieces)), wanted):
            return True
    return False


def _invoke(
    function: str, arguments: Mapping[str, Any], context: ToolContext, timeout: float
) -> str:
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        HTTPClientError,
        IncompleteReadError,
        ReadTimeoutError,
    )

    custom = {
        "tenantId": context.tenant_id,
        "sessionId": context.session_id,
        "turnId": context.turn_id,
        "callId": context.call_id,
    }
    try:
        answer = _client(math.ceil(timeout), os.environ.get(_ENDPOINT)).invoke(
            FunctionName=function,
            InvocationType="RequestResponse",
            ClientContext=base64.b64encode(json.dumps({"custom": custom}).encode()).decode(),
            Payload=json.dumps(arguments, ensure_ascii=False).encode(),
        )
        payload = _read(answer["Payload"])
    except ClientError as exc:
        raise ToolFailed(f"The function {function} {_told(exc.response)}.") from exc
    except ReadTimeoutError as exc:
        raise ToolFailed(
            f"The function did not answer within {timeout:g} s; "
            "whether it had an effect is unknown."
        ) from exc
    except (HTTPClientError, IncompleteReadError) as exc:
        raise ToolFailed(
            f"The connection to {function} broke off; whether it had an effect is unknown."
        ) from exc
    except BotoCoreError as exc:
        raise ToolFailed(f"The function {function} could not be reached.") from exc
    if "FunctionError" in answer:
        raise ToolFailed(f"The function failed: {_error_of(payload)}")
    return _text_of(payload)


def _told(response: Mapping[str, Any]) -> str:
    if response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        return "met an error of the Lambda service; whether it had an effect is unknown"
    return _TOLD.get(str(response.get("Error", {}).get("Code", "")), "was not invoked")


def _read(body: Any) -> bytes:
    """All of the answer, which Lambda bounds, and so does this; to its end, lest it be cut."""
    raw = bytearray()
    while len(raw) < _ANSWER_BYTES and (piece := body.read(1 << 16)):
        raw += piece
    return bytes(raw[:_ANSWER_BYTES])


@lru_cache(maxsize=32)
def _client(timeout: int, endpoint: str | None) -> Any:
    """A client that waits this many seconds for an answer, and asks once: a call may have effects.

    The endpoint is boto3's own variable, read anew so that it can change.
    """
    import boto3
    from botocore.config import Config

    # a session of its own: the default one is not to be shared by threads that make clients
    return boto3.session.Session().client(
        "lambda",
        endpoint_url=endpoint,
        config=Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=timeout,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_CONNECTIONS,
            tcp_keepalive=True,
        ),
    )


def _error_of(payload: bytes) -> str:
    """What the function says of its error, without the stack."""
    told: Any = None
    with suppress(ValueError, RecursionError):
        told = json.loads(payload)
    if not isinstance(told, dict):
        return "it did not say why."
    parts = (told.get("errorType"), told.get("errorMessage"))
    text = ": ".join(part for part in parts if isinstance(part, str) and part)
    return beginning(text or "it did not say why.", limit=_ERROR_AT_MOST)


def _text_of(payload: bytes) -> str:
    """The function's answer: JSON as it is, but a text without its quotes."""
    text = payload.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, str):
            return value
    return text
