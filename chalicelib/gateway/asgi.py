"""The ASGI application: streaming routes on the loop, every other call handed to Chalice.

Chalice is synchronous, so it runs on worker threads and gets the proxy event that API Gateway would
send. What it awaits runs on this loop (`bridge`). Written to the bare protocol: a stream costs one
task and one watcher of its connection, so thousands may lie idle.
"""

import asyncio
import base64
import contextvars
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.types import Receive, Scope, Send

from chalicelib import config
from chalicelib.api.app import PalApp, new_request_id, proxy_response
from chalicelib.api.call import BODY_AT_MOST, Call, error_answer, no_path, too_large
from chalicelib.api.cors import cors_headers
from chalicelib.errors import PalError, RequestTimeout
from chalicelib.gateway.routes import RouteTable, fill
from chalicelib.stream.handler import respond, streams
from chalicelib.stream.response import Streamed

_log = logging.getLogger(__name__)

THREADS = 8
BODY_SECONDS = 30.0
"""A request whose body has not come whole by then is given up."""


class Gateway:
    """One origin for the whole contract."""

    def __init__(self, app: PalApp) -> None:
        self._app = app
        self._routes = RouteTable(app.routes)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="chalice")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            return
        request_id = new_request_id()
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        answer: Streamed | dict[str, Any]
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive, headers)
            if body is None:
                return  # the caller hung up before it had sent its request
            answer = await self._answer(scope, headers, body, request_id)
        except PalError as exc:
            answer = _refusal(exc, headers, request_id)
        except TimeoutError:
            late = RequestTimeout(
                f"The body did not come within {BODY_SECONDS:g} s.", headers={"Connection": "close"}
            )
            answer = _refusal(late, headers, request_id)
        except Exception:
            _log.exception("a call broke", extra={"action": "view_broke"})
            error = PalError("Something went wrong on our side.")
            answer = _refusal(error, headers, request_id)
        if isinstance(answer, Streamed):
            await _send_stream(answer, receive, send)
        else:
            await _send_whole(send, answer["statusCode"], answer["headers"], answer["body"] or "")

    async def _answer(
        self, scope: Scope, headers: dict[str, str], body: bytes, request_id: str
    ) -> Streamed | dict[str, Any]:
        """What the stream handler or Chalice answers; raises NotFound."""
        method = scope["method"]
        pattern, params = self._route(scope)
        path = fill(pattern, params)
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if streams(method, path):
            call = Call(
                method=method,
                path=path,
                headers=headers,
                query={name: values[-1] for name, values in query.items()},
                body=body,
                request_id=request_id,
            )
            return await respond(call)
        event = {
            "httpMethod": method,
            "path": path,
            "resource": pattern,
            "headers": headers,
            "pathParameters": params,
            "multiValueQueryStringParameters": query or None,
            "stageVariables": None,
            "isBase64Encoded": True,
            "body": base64.b64encode(body).decode(),
            "requestContext": {
                "httpMethod": method,
                "resourcePath": pattern,
                "requestId": request_id,
                "identity": {"sourceIp": (scope.get("client") or ("", 0))[0]},
            },
        }
        # a context of its own, so that one request's ids are never on another's log lines
        context = contextvars.copy_context()
        response: dict[str, Any] = await asyncio.get_running_loop().run_in_executor(
            self._threads, context.run, self._app, event, None
        )
        return response

    def _route(self, scope: Scope) -> tuple[str, dict[str, str]]:
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        found = self._routes.match(raw_path.decode("latin-1"))
        if found is None and scope["method"] == "OPTIONS":
            return "/", {}  # a preflight asks what is allowed, not what is there
        if found is None:
            raise no_path()
        return found

    def close(self) -> None:
        """Let the worker threads go."""
        self._threads.shutdown(wait=False)


def _refusal(error: PalError, headers: dict[str, str], request_id: str) -> dict[str, Any]:
    cors = cors_headers(headers.get("origin"), config.settings().cors_origins)
    return proxy_response(error_answer(error, request_id), request_id, cors)


async def _read_body(receive: Receive, headers: dict[str, str]) -> bytes | None:
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > BODY_AT_MOST:
        raise too_large()
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_AT_MOST:
            raise too_large()
        if not message.get("more_body"):
            return bytes(body)


async def _send_whole(send: Send, status: int, headers: dict[str, Any], text: str) -> None:
    body = text.encode()
    pairs = [(name.lower().encode(), str(value).encode()) for name, value in headers.items()]
    if status not in (204, 304):
        pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(answer: Streamed, receive: Receive, send: Send) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    sender = asyncio.create_task(_send_body(answer, pairs, send))
    leaver = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait({sender, leaver}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sender, leaver):
            task.cancel()
        broken, _ = await asyncio.gather(sender, leaver, return_exceptions=True)
        if isinstance(broken, Exception):
            # the reader sees its stream end early, and goes on from its last id
            _log.error("a stream broke", extra={"action": "view_broke"}, exc_info=broken)
        if answer.after is not None:
            await answer.after


async def _send_body(answer: Streamed, pairs: list[tuple[bytes, bytes]], send: Send) -> None:
    # the headers go with the first piece: one write to the socket less
    begun = False
    async with aclosing(answer.body) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            if not begun:
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": pairs}
                )
                begun = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not begun:
        await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
