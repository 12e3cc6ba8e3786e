"""The API's own description, OpenAPI 3.1, made from the operations and the Chalice routes.

What an operation may answer follows from what it is: its scope, its body, its path. Only what an
`Operation` cannot say is told here: the event stream, and the answers in `_MORE_ANSWERS`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaMode

from chalicelib import errors
from chalicelib.api import schemas, streams
from chalicelib.api.call import BODY_AT_MOST, PAGE_SIZE, PAGE_SIZE_AT_MOST
from chalicelib.api.endpoint import OPERATIONS, Operation
from chalicelib.api.memory import QUERY_AT_MOST, RESULTS, RESULTS_AT_MOST
from chalicelib.api.schemas import ApprovalStatus, ErrorOut, HealthOut, SessionStatus
from chalicelib.auth import STREAM_TOKEN_SECONDS
from chalicelib.memory.candidates import Status
from chalicelib.memory.episodes import EpisodeKind

VERSION: Final = "0.1.0"
_ABOUT: Final = "Sessions that stream and memory that lasts."
_REF: Final = "#/components/schemas/{model}"
_CAMEL: Final = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)

_Json = dict[str, Any]
_Shapes = Mapping[tuple[Any, JsonSchemaMode], _Json]


class _Data(BaseModel):
    model_config = _CAMEL

    session_id: str
    turn_id: str


class MessageDelta(_Data):
    """Data of `message_delta`: a piece of the reply. `seq` counts from 1 within the turn."""

    seq: Annotated[int, Field(ge=1)]
    delta: str


class Usage(BaseModel):
    """What a reply took, as far as its provider tells; `tokensCached` are some of `tokensIn`."""

    model_config = _CAMEL

    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_usd: float | None


class MessageCompleted(_Data):
    """Data of `message_completed`: the whole reply; the turn has ended."""

    text: str
    usage: Usage
    message_id: str
    finish_reason: str


class MessageError(_Data):
    """Data of `message_error`: the turn has ended without a reply, any partial text is void."""

    error: str
    code: str


EVENTS: Final[dict[str, type[BaseModel]]] = {
    "message_delta": MessageDelta,
    "message_completed": MessageCompleted,
    "message_error": MessageError,
}
_STREAM: Final = object()  # in place of a model: the answer is an event stream

_SESSION_EVENTS: Final = Operation(
    name="session_events",
    view=streams.session_events,
    scope="sessions",
    body=None,
    answers={200: _STREAM},
    summary=(streams.session_events.__doc__ or "").splitlines()[0],
    status=200,
    query={
        "after": "The id of the last event received, where headers cannot be set.",
        "token": "A stream token, in place of the Authorization header.",
    },
)
_MORE_ANSWERS: Final[dict[str, dict[int, Any]]] = {
    "post_message": {200: _STREAM},
    "healthz": {503: HealthOut},
}
_IDEMPOTENCY_KEY: Final = "For 24 hours, the same key and body get the first call's answer again."
_HEADERS: Final = {
    "X-Request-Id": "The request's id, also in the logs.",
    "X-Next-Page-Token": "`pageToken` of the next page; absent on the last one.",
    "Retry-After": "Seconds after which to try again.",
    "Idempotent-Replayed": "`true` when the stream is that of the first call with this key.",
}
_PARAMETERS: Final[dict[str, _Json]] = {
    "pageSize": {"type": "integer", "minimum": 1, "default": PAGE_SIZE},
    "list_sessions.status": {"type": "string", "enum": list(get_args(SessionStatus))},
    "list_approvals.status": {"type": "string", "enum": list(get_args(ApprovalStatus))},
    "list_candidates.status": {"type": "string", "enum": list(get_args(Status))},
    "list_episodes.kind": {"type": "string", "enum": list(get_args(EpisodeKind))},
    "list_distillates.limit": {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_AT_MOST},
    "search_memory.q": {"type": "string", "minLength": 1, "maxLength": QUERY_AT_MOST},
    "search_memory.limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": RESULTS_AT_MOST,
        "default": RESULTS,
    },
    "since": {"type": "string", "format": "date-time"},
    "until": {"type": "string", "format": "date-time"},
    "Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255},
}
_REQUIRED: Final = {"search_memory.q"}
_MORE_REFUSALS: Final[dict[str, tuple[type[errors.PalError], ...]]] = {
    "put_pins": (errors.Conflict,),
    "distill": (errors.Conflict, errors.ProviderError),
    "search_memory": (errors.NotFound,),
}
_ERRORS: Final[dict[type[errors.PalError], str]] = {
    errors.InvalidRequest: "The body is not valid JSON.",
    errors.Unauthorized: "The key or token is missing, unknown, revoked or expired.",
    errors.Forbidden: "The key lacks the scope.",
    errors.NotFound: "There is no such object, or it is another tenant's.",
    errors.Conflict: "The object's state refuses it, the name is taken (`agent_exists`), a handle "
    "is someone else's (`handle_taken`), the Idempotency-Key was used with another body "
    "(`idempotency_conflict`) or by a call that still runs, or another pass of the tenant does "
    "(`in_progress`).",
    errors.TooLarge: f"The body is larger than {BODY_AT_MOST} bytes, or a prompt than the model's "
    "room: by its message (`message_too_large`) or by what is in each (`context_too_large`).",
    errors.UnsupportedMediaType: "The body is not declared as application/json.",
    errors.InvalidField: "A field is not allowed; `details` names each and says why.",
    errors.TooManyRequests: "Too many calls or open streams.",
    errors.Unavailable: "The database cannot be reached, this process is shutting down, or no key "
    "is set to keep secrets with (`vault_unavailable`).",
    errors.ProviderError: "No model gave an answer, or none that can be read.",
    errors.PalError: "Any other error.",
}
_SECURITY: Final[dict[str, _Json]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "streamToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": f"A stream token: one session's events, {STREAM_TOKEN_SECONDS} seconds.",
    },
}
_ERROR: Final[_Json] = {"$ref": _REF.format(model=ErrorOut.__name__)}
_EVENT_STREAM: Final[_Json] = {"$ref": _REF.format(model="EventStream")}
_RETRIED: Final = (errors.Conflict, errors.TooManyRequests, errors.Unavailable)


@cache  # it takes 5 ms of the event loop, and anyone may ask
def build_document() -> dict[str, Any]:
    """The document, made at the first call; LookupError if a route has no operation."""
    from app import app  # it imports this package, so not before it is all there

    app.register_rest()
    known = {**OPERATIONS, _SESSION_EVENTS.name: _SESSION_EVENTS}
    for name, more in _MORE_ANSWERS.items():
        known[name] = replace(known[name], answers={**known[name].answers, **more})
    routes = {
        (path, method): known[entry.view_name]
        for path, methods in sorted(app.routes.items())
        for method, entry in sorted(methods.items())
    }
    shapes, components = _schemas(routes.values())
    paths: dict[str, _Json] = {}
    for (path, method), operation in routes.items():
        paths.setdefault(path, {})[method.lower()] = _operation(operation, path, shapes)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Palimpsest", "version": VERSION, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": {**components, "EventStream": _event_stream()},
            "responses": {cls.__name__: _error(cls) for cls in _ERRORS},
            "parameters": {
                "Idempotency-Key": _parameter("header", "Idempotency-Key", _IDEMPOTENCY_KEY)
            },
            "headers": {
                name: {"description": about, "schema": {"type": "string"}}
                for name, about in _HEADERS.items()
            },
            "securitySchemes": _SECURITY,
        },
    }


def _answers(operation: Operation) -> Iterator[tuple[int, Any]]:
    for status, model in operation.answers.items():
        yield status, getattr(schemas, model) if isinstance(model, str) else model


def _schemas(operations: Iterable[Operation]) -> tuple[_Shapes, _Json]:
    wanted: list[tuple[Any, JsonSchemaMode]] = [(ErrorOut, "serialization")]
    wanted += [(model, "serialization") for model in EVENTS.values()]
    for one in operations:
        wanted += [(model, "serialization") for _, model in _answers(one)]
        wanted.append((one.body, "validation"))
    shapes, definitions = TypeAdapter.json_schemas(
        [(key, mode, TypeAdapter(key)) for key, mode in wanted if key not in (None, _STREAM)],
        ref_template=_REF,
    )
    return shapes, definitions["$defs"]


def _operation(operation: Operation, path: str, shapes: _Shapes) -> _Json:
    scope = operation.scope
    security: list[_Json] = [] if scope is None else [{"bearer": [scope]}]
    if operation is _SESSION_EVENTS:
        security.append({"streamToken": []})
    described: _Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs a key with the scope `{scope}`." if scope else "Needs no key.",
        "tags": [scope or "system"],
        "security": security,
        "parameters": _parameters(operation, path),
    }
    if operation.body is not None:
        content = {"application/json": {"schema": shapes[operation.body, "validation"]}}
        described["requestBody"] = {"required": True, "content": content}
    responses = {
        str(cls.status): {"$ref": f"#/components/responses/{cls.__name__}"}
        for cls in _refusals(operation, path)
    }
    for status, model in _answers(operation):
        responses[str(status)] = _answer(operation, status, model, shapes)
    described["responses"] = {
        **dict(sorted(responses.items())),
        "default": {"$ref": f"#/components/responses/{errors.PalError.__name__}"},
    }
    return described


def _parameters(operation: Operation, path: str) -> list[_Json]:
    found = [
        _parameter("path", name, f"The {name.replace('_', ' ')}.", required=True)
        for name in re.findall(r"{(\w+)}", path)
    ]
    found += [
        _parameter("query", name, about, of=operation.name, **_required(operation, name))
        for name, about in operation.query.items()
    ]
    if operation.idempotent:
        found.append({"$ref": "#/components/parameters/Idempotency-Key"})
    if operation is _SESSION_EVENTS:
        about = "The id of the last event received; the stream goes on right after it."
        found.append(_parameter("header", "Last-Event-ID", about))
    return found


def _parameter(place: str, name: str, about: str, *, of: str = "", **more: bool) -> _Json:
    schema = _PARAMETERS.get(f"{of}.{name}") or _PARAMETERS.get(name, {"type": "string"})
    return {"name": name, "in": place, **more, "description": about, "schema": schema}


def _required(operation: Operation, name: str) -> dict[str, bool]:
    return {"required": True} if f"{operation.name}.{name}" in _REQUIRED else {}


def _refusals(operation: Operation, path: str) -> Iterable[type[errors.PalError]]:
    yield errors.Unavailable
    if operation.scope is not None:
        yield from (errors.Unauthorized, errors.Forbidden, errors.TooManyRequests)
    if "{" in path or operation.body is not None:
        yield errors.NotFound
    if operation.body is not None:
        yield from (errors.InvalidRequest, errors.TooLarge, errors.UnsupportedMediaType)
    if operation.body is not None or operation.query or operation.idempotent:
        yield errors.InvalidField
    if operation.idempotent:
        yield errors.Conflict
    yield from _MORE_REFUSALS.get(operation.name, ())


def _answer(operation: Operation, status: int, model: Any, shapes: _Shapes) -> _Json:
    about = HTTPStatus(status).phrase
    if model is None:
        return _response(about)
    if model is _STREAM:
        if operation is not _SESSION_EVENTS:
            about = "With `Accept: text/event-stream`: the events of this message's turn."
        replayed = ("Idempotent-Replayed",) if operation.idempotent else ()
        return _response(about, *replayed, schema=_EVENT_STREAM, kind="text/event-stream")
    schema = shapes[model, "serialization"]
    if status >= 400:
        schema = {"anyOf": [schema, _ERROR]}
    paged = ("X-Next-Page-Token",) if "pageToken" in operation.query else ()
    return _response(about, *paged, schema=schema)


def _error(cls: type[errors.PalError]) -> _Json:
    retry = ("Retry-After",) if cls in _RETRIED else ()
    return _response(_ERRORS[cls], *retry, schema=_ERROR)


def _response(
    about: str, *headers: str, schema: _Json | None = None, kind: str = "application/json"
) -> _Json:
    names = ("X-Request-Id", *headers)
    refs = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    response: _Json = {"description": about, "headers": refs}
    if schema is not None:
        response["content"] = {kind: {"schema": schema}}
    return response


def _event_stream() -> _Json:
    kinds = [_event({"const": name}, model) for name, model in EVENTS.items()]
    kinds.append(_event({"type": "string", "not": {"enum": list(EVENTS)}}, None))
    return {
        "type": "array",
        "description": "Server-sent events. A turn has any number of `message_delta`, then one of "
        "`message_completed` and `message_error`. Events of other names, such as `turn_started`, "
        "`tool_call_completed`, `approval_required`, `vm_replaced` and `session_ended`, may be "
        "ignored. A comment line comes every 15 s.",
        "items": {"oneOf": kinds},
    }


def _event(name: _Json, model: type[BaseModel] | None) -> _Json:
    data: _Json = {"type": "string", "contentMediaType": "application/json"}
    if model is not None:
        data["contentSchema"] = {"$ref": _REF.format(model=model.__name__)}
    return {
        "type": "object",
        "properties": {"id": {"type": "string"}, "event": name, "data": data},
        "required": ["id", "event", "data"],
    }
