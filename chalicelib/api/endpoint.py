"""`endpoint`: from an async view to a Chalice view, with auth, parsing and errors in one place.

A view takes a `Request` and returns an `Answer` or a body. The same view is served by Chalice
(`endpoint` gives it a synchronous face) and natively on the loop (`serve`, used by the stream
handler). Errors become statuses here, in a decorator, because Chalice turns any plain exception of
a view into a 500 before its own middleware sees it.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from chalicelib import bridge, telemetry
from chalicelib.api.app import answer_response, current_call
from chalicelib.api.call import Answer, Call, error_answer
from chalicelib.auth import Principal, Scope
from chalicelib.errors import InvalidField, PalError
from chalicelib.idempotency import Once
from chalicelib.services import Services, services

if TYPE_CHECKING:
    from pydantic import BaseModel

_log = logging.getLogger(__name__)

B = TypeVar("B", bound="BaseModel | None")

_DETAILS_AT_MOST: Final = 20
_FIELD_AT_MOST: Final = 300


@dataclass(frozen=True, kw_only=True)
class Request(Generic[B]):
    """What a view gets: the call, who makes it, its parsed body and the process's services."""

    call: Call
    caller: Principal
    body: B
    once: Once | None
    """None where the operation keeps no answers, and without an `Idempotency-Key`."""
    services: Services


View = Callable[[Request[Any]], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A view with what the API document says of it.

    `answers` maps a status to a model, or to the name of one of `schemas` where a call of the view
    is not to wait for the import of all models.
    """

    name: str
    view: View
    scope: Scope | None
    body: "type[BaseModel] | None"
    answers: dict[int, Any]
    summary: str
    status: int
    query: dict[str, str] = field(default_factory=dict)
    idempotent: bool = False


REPLAYED: Final = {"Idempotent-Replayed": "true"}
"""The header of an answer that was given before."""

OPERATIONS: dict[str, Operation] = {}
"""Every operation by its view's name, which is also the route's name."""

ANYONE = Principal(tenant_id="", key_id="", scopes=frozenset())


def endpoint(
    *,
    scope: Scope | None,
    answers: dict[int, Any],
    body: "type[BaseModel] | None" = None,
    query: dict[str, str] | None = None,
    idempotent: bool = False,
) -> Callable[[View], Callable[..., Any]]:
    """Make a view of this async function; `scope` None is for everyone, without a key."""

    def wrap(view: View) -> Callable[..., Any]:
        operation = Operation(
            name=view.__name__,
            view=view,
            scope=scope,
            body=body,
            answers=answers,
            summary=(view.__doc__ or "").strip().splitlines()[0],
            status=min(answers),
            query=query or {},
            idempotent=idempotent,
        )
        OPERATIONS[operation.name] = operation

        def chalice_view(**params: str) -> Any:
            return answer_response(bridge.run(serve(operation, current_call(params))))

        chalice_view.__name__, chalice_view.__module__ = view.__name__, view.__module__
        chalice_view.__doc__ = view.__doc__
        return chalice_view

    return wrap


async def serve(operation: Operation, call: Call) -> Answer:
    """The operation's answer to this call; never raises."""
    telemetry.bind(request_id=call.request_id)
    try:
        request = await admit(operation, call)
        result = await operation.view(request)
        if isinstance(result, Answer):
            return result
        again = request.once is not None and request.once.replayed
        return Answer(status=operation.status, body=result, headers=REPLAYED if again else {})
    except PalError as exc:
        return error_answer(exc, call.request_id)
    except Exception:
        _log.exception("a view broke", extra={"action": "view_broke", "view": operation.name})
        return error_answer(PalError("Something went wrong on our side."), call.request_id)


async def admit(operation: Operation, call: Call) -> Request[Any]:
    """Authenticate, authorise, parse: the request the view gets; raises PalError to refuse."""
    ready = await services()
    call.require_size()
    caller = ANYONE
    if operation.scope is not None:
        caller = await ready.auth.bearer(call.headers.get("authorization"))
        caller.require(operation.scope)
        telemetry.bind(tenant_id=caller.tenant_id)
    body = None if operation.body is None else parse(operation.body, call.json())
    once = None
    if operation.idempotent:
        once = Once.of(
            method=call.method,
            path=call.path,
            key=call.headers.get("idempotency-key"),
            body=call.body,
        )
    return Request(call=call, caller=caller, body=body, once=once, services=ready)


M = TypeVar("M", bound="BaseModel")


def parse(model: type[M], value: Any) -> M:
    """The model of this JSON value; raises InvalidField naming the wrong fields by their paths."""
    from pydantic import ValidationError

    try:
        return model.model_validate(value)
    except ValidationError as exc:
        details = [
            {
                "field": ".".join(str(part) for part in error["loc"])[:_FIELD_AT_MOST] or "body",
                "reason": str(error["msg"]).removeprefix("Value error, "),
            }
            for error in exc.errors(include_url=False, include_input=False, include_context=False)[
                :_DETAILS_AT_MOST
            ]
        ]
        first = details[0]
        raise InvalidField(f"{first['field']}: {first['reason']}", details=details) from None


def name_of(view: Callable[..., Any]) -> str:
    """The operation's name of a decorated view."""
    return view.__name__
