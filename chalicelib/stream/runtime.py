"""The Lambda loop of the streaming function: Python's managed runtime cannot stream.

One invocation at a time: ask for it, call the handler, send its answer piece by piece, finish the
work after it, and only then ask for the next, because a function that waits for one is frozen.

`python -m chalicelib.stream.runtime [module:function]` serves that handler, or else
`lambda_entry`'s.

A function URL is reported to announce a chunked body and never to end it when a streamed answer
has none (aws/aws-lambda-web-adapter#499, aws/aws-lambda-nodejs-runtime-interface-client#95), so
that its reader waits until the function times out. An empty answer is therefore sent with a line
break as its body, except where HTTP forbids a body (204, 304): there no reader waits for one.
"""

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

from chalicelib.errors import PalError
from chalicelib.stream.response import LambdaContext, Streamed
from chalicelib.stream.runtime_api import (
    ConnectionLost,
    Invocation,
    RuntimeApi,
    RuntimeApiError,
    encode_prelude,
)

Handler = Callable[[dict[str, Any], LambdaContext], Awaitable[Streamed]]

logger = logging.getLogger(__name__)

DEFAULT_HANDLER: Final = "chalicelib.stream.lambda_entry:handler"

_FAILURES: Final = (Exception, asyncio.CancelledError)
_BROKE_OFF: Final = "The answer broke off in the middle; what came of it is void."
_NOT_STARTED: Final = "The function could not start; its log says why."
_BODILESS: Final = frozenset({204, 304})


async def serve(handler: Handler, *, api: str, invocations: int | None = None) -> None:
    """Serve invocations of the Runtime API at `api` (`host:port`), in the main thread only.

    Returns after `invocations` of them, or on SIGTERM once the current one and its work after the
    answer are done. RuntimeApiError when the API refuses or is gone; a handler's failure is an
    answer, never raised.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    client = RuntimeApi(api)
    served = 0
    try:
        while not stopping.is_set() and (invocations is None or served < invocations):
            invocation = await _next_unless(stopping, client)
            if invocation is None:
                return
            # in a task of its own, so that its context variables end with it
            await asyncio.create_task(_invoke(handler, client, invocation))
            served += 1
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        client.close()


async def _next_unless(stopping: asyncio.Event, client: RuntimeApi) -> Invocation | None:
    asking = asyncio.create_task(client.next())
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({asking, stop}, return_when=asyncio.FIRST_COMPLETED)
        return asking.result() if asking.done() else None
    finally:
        asking.cancel()
        stop.cancel()
        await asyncio.gather(asking, stop, return_exceptions=True)


async def _invoke(handler: Handler, client: RuntimeApi, invocation: Invocation) -> None:
    context = _context(invocation)
    if context.trace_id is None:
        os.environ.pop("_X_AMZN_TRACE_ID", None)
    else:
        os.environ["_X_AMZN_TRACE_ID"] = context.trace_id
    try:
        streamed = await handler(json.loads(invocation.payload), context)
    except _FAILURES as exc:
        _raise_if_cancelled(exc)
        _log_failure("handler_failed", exc, context)
        streamed = _internal_error(context)
    last: list[Awaitable[None]] = []
    acknowledged = await _send(client, streamed, context)
    if acknowledged is not None:
        last.append(acknowledged)
    if streamed.after is not None:
        last.append(streamed.after)
    # side by side: the caller's stream ends with the acknowledgement, not with the work after it
    for outcome in await asyncio.gather(*last, return_exceptions=True):
        if outcome is not None:
            lost = isinstance(outcome, ConnectionLost)
            _log_failure("caller_gone" if lost else "after_failed", outcome, context)


async def _send(
    client: RuntimeApi, streamed: Streamed, context: LambdaContext
) -> Awaitable[None] | None:
    """Send the answer and close its body; what is left to wait for, None when nobody reads."""
    try:
        prelude = encode_prelude(streamed.status, streamed.headers)
        answer = await client.answer(context.aws_request_id, prelude)
        empty = True
        try:
            async for piece in streamed.body:
                await answer.send(piece)
                empty = empty and not piece
            if empty and streamed.status not in _BODILESS:
                await answer.send(b"\n")
        except ConnectionLost:
            raise
        except _FAILURES as exc:
            _raise_if_cancelled(exc)
            _log_failure("body_failed", exc, context)
            await answer.fail(type(exc).__name__, _BROKE_OFF)
        else:
            await answer.end()
        return answer.acknowledged()
    except ConnectionLost as exc:
        _log_failure("caller_gone", exc, context)
        return None
    finally:
        await _close(streamed.body, context)


async def _close(body: AsyncIterator[bytes], context: LambdaContext) -> None:
    close = getattr(body, "aclose", None)
    if close is None:
        return
    try:
        await close()
    except _FAILURES as exc:
        _raise_if_cancelled(exc)
        _log_failure("body_failed", exc, context)


def _context(invocation: Invocation) -> LambdaContext:
    told, env = invocation.headers, os.environ
    return LambdaContext(
        aws_request_id=invocation.request_id,
        deadline_ms=int(told.get("lambda-runtime-deadline-ms", 0)),
        invoked_function_arn=told.get("lambda-runtime-invoked-function-arn", ""),
        trace_id=told.get("lambda-runtime-trace-id"),
        function_name=env.get("AWS_LAMBDA_FUNCTION_NAME", ""),
        function_version=env.get("AWS_LAMBDA_FUNCTION_VERSION", ""),
        memory_limit_in_mb=int(env.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", 0)),
        log_group_name=env.get("AWS_LAMBDA_LOG_GROUP_NAME", ""),
        log_stream_name=env.get("AWS_LAMBDA_LOG_STREAM_NAME", ""),
    )


def _internal_error(context: LambdaContext) -> Streamed:
    shape = PalError("Something went wrong on our side.").body(context.aws_request_id)

    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(shape).encode()

    headers = [("Content-Type", "application/json"), ("X-Request-Id", context.aws_request_id)]
    return Streamed(status=PalError.status, headers=headers, body=body())


def _raise_if_cancelled(exc: BaseException) -> None:
    """Raise `exc` on if it is this task that is cancelled, not something it waited for."""
    task = asyncio.current_task()
    if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
        raise exc


def _log_failure(action: str, exc: BaseException, context: LambdaContext) -> None:
    # An exception's text may quote a message or a key, so above debug only its class and place.
    frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(exc.__traceback__)]
    logger.error(
        "%s: %s at %s",
        action,
        type(exc).__name__,
        frames[-1] if frames else "?",
        extra={"action": action, "aws_request_id": context.aws_request_id, "frames": frames},
    )
    logger.debug("%s, in full", action, exc_info=exc)


def load_handler(name: str) -> Handler:
    """The function that `module:function` names; what its import raises, or TypeError."""
    module, _, function = name.partition(":")
    handler = getattr(importlib.import_module(module), function)
    if not callable(handler):
        raise TypeError(f"{name} is not a function")
    return cast(Handler, handler)


def main() -> None:
    """Serve the handler that the first argument names; exits 1 if it cannot be loaded."""
    name = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_HANDLER
    api = os.environ["AWS_LAMBDA_RUNTIME_API"]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            gc.disable()  # what is imported stays, and need not be looked through over and over
            handler = load_handler(name)
            gc.enable()
        except (Exception, SystemExit) as exc:
            logger.critical("the handler cannot be loaded", exc_info=exc)
            runner.run(RuntimeApi(api).init_error(type(exc).__name__, _NOT_STARTED))
            sys.exit(1)
        try:
            runner.run(serve(handler, api=api))
        except RuntimeApiError as exc:
            logger.critical("%s", exc, extra={"action": "runtime_api_lost"})
            sys.exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
