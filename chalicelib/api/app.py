"""The Chalice application, made safe for threads, and its answers made ours.

Chalice keeps its current request in one attribute of the app. The gateway calls the app from
several threads at once: with 8 of them, 2,399 of 2,400 requests read another caller's headers. So
`current_request` and `lambda_context` are context variables here.

Chalice's own answers (404, 405, 415, malformed JSON, a view's exception) come as
`{"Code", "Message"}`; they are put into the contract's error shape, and every answer gets its
request id and CORS headers.
"""

import json
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from chalice.app import Chalice, Request, Response

from chalicelib import config
from chalicelib.api.call import Answer, Call, error_answer, no_path
from chalicelib.api.cors import cors_headers, preflight_headers
from chalicelib.errors import BY_STATUS, PalError

_request: ContextVar[Request | None] = ContextVar("request", default=None)
_context: ContextVar[Any] = ContextVar("context", default=None)


class PalApp(Chalice):
    """Chalice with a current request per thread and task, and the contract's answers."""

    def __init__(self, app_name: str) -> None:
        super().__init__(app_name, configure_logs=False)
        self._later: dict[str, tuple[str, ...]] = {}

    def register_all(self, modules: Mapping[str, tuple[str, ...]]) -> None:
        """Register the blueprint of each of these modules."""
        for module in modules:
            self.register_blueprint(import_module(module).blueprint)

    def register_later(self, modules: Mapping[str, tuple[str, ...]]) -> None:
        """Register each blueprint at the first call of a path that begins with one of its heads."""
        self._later = dict(modules)

    def register_rest(self) -> None:
        """Register what has not been asked for yet."""
        rest, self._later = self._later, {}
        self.register_all(rest)

    @property
    def current_request(self) -> Request | None:
        """The request this thread or task serves."""
        return _request.get()

    @current_request.setter
    def current_request(self, request: Request | None) -> None:
        _request.set(request)

    @property
    def lambda_context(self) -> Any:
        """The Lambda context of the call this thread or task serves."""
        return _context.get()

    @lambda_context.setter
    def lambda_context(self, context: Any) -> None:
        _context.set(context)

    def __call__(self, event: dict[str, Any], context: Any) -> dict[str, Any]:
        """Answer a REST API proxy event with a proxy response."""
        before = _request.set(None), _context.set(None)
        try:
            return self._answer(event, context)
        finally:
            _request.reset(before[0])
            _context.reset(before[1])

    def _answer(self, event: dict[str, Any], context: Any) -> dict[str, Any]:
        request_context = event.setdefault("requestContext", {})
        request_id = request_context.setdefault("requestId", new_request_id())
        origin = _header(event, "origin")
        allowed = config.settings().cors_origins
        if request_context.get("httpMethod") == "OPTIONS":
            return proxy_response(
                Answer(status=204), request_id, preflight_headers(origin, allowed)
            )
        path = request_context.get("resourcePath")
        if self._later:
            self._register_for(str(path))
        if path not in self.routes:
            answer = error_answer(no_path(), request_id)
            return proxy_response(answer, request_id, cors_headers(origin, allowed))
        response: dict[str, Any] = super().__call__(event, context)
        ours = _ours(response, request_id)
        if ours is not None:
            return proxy_response(ours, request_id, cors_headers(origin, allowed))
        response["headers"] = {
            **response.get("headers", {}),
            "X-Request-Id": request_id,
            **cors_headers(origin, allowed),
        }
        return response

    def _register_for(self, path: str) -> None:
        head = path.removeprefix("/v1/").strip("/").partition("/")[0]
        for module in [one for one, heads in self._later.items() if head in heads]:
            self.register_all({module: self._later.pop(module)})


def new_request_id() -> str:
    """A fresh request id."""
    return uuid.uuid4().hex


def current_call(params: dict[str, str]) -> Call:
    """The request that Chalice is serving, as a `Call`."""
    request = _request.get()
    if request is None:
        raise RuntimeError("no request is being served")
    event = request.to_original_event()
    query = event.get("multiValueQueryStringParameters") or {}
    raw = request.raw_body
    return Call(
        method=request.method,
        # Chalice's test client sends the route's pattern alone
        path=event.get("path") or request.path.format_map(params),
        headers={name.lower(): value for name, value in (event.get("headers") or {}).items()},
        query={name: values[-1] for name, values in query.items() if values},
        body=raw if isinstance(raw, bytes) else raw.encode(),
        request_id=event["requestContext"]["requestId"],
        params=params,
    )


def answer_response(answer: Answer) -> Response:
    """An `Answer` as Chalice returns it."""
    headers: dict[str, str | list[str]] = {**answer.headers}
    if answer.body is not None:
        headers["Content-Type"] = "application/json"
    return Response(body=answer.text(), status_code=answer.status, headers=headers)


def _ours(response: dict[str, Any], request_id: str) -> Answer | None:
    status = response["statusCode"]
    if status < 400:
        return None
    try:
        body = json.loads(response.get("body") or "")
        message = str(body["Message"])
    except (ValueError, KeyError, TypeError):
        return None
    known = BY_STATUS.get(status)
    if known is None:
        return error_answer(PalError("Something went wrong on our side."), request_id)
    allow = _header(response, "allow")
    error = known(message if message.endswith(".") else message + ".")
    if allow:
        error.headers["Allow"] = allow
    return error_answer(error, request_id)


def proxy_response(answer: Answer, request_id: str, headers: dict[str, str]) -> dict[str, Any]:
    """An `Answer` as API Gateway takes it."""
    usual = {"X-Request-Id": request_id}
    if answer.body is not None:
        usual["Content-Type"] = "application/json"
    return {
        "statusCode": answer.status,
        "headers": {**usual, **headers, **answer.headers},
        "multiValueHeaders": {},
        "body": answer.text(),
    }


def _header(carrier: dict[str, Any], name: str) -> str | None:
    for key, value in (carrier.get("headers") or {}).items():
        if key.lower() == name:
            return str(value)
    return None
