"""The API's description of itself: valid, complete, and true to what the code sends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from app import app
from chalicelib import errors
from chalicelib.api.document import EVENTS, build_document
from chalicelib.api.endpoint import OPERATIONS
from chalicelib.errors import InvalidField
from chalicelib.idempotency import Once
from chalicelib.ids import new_id
from chalicelib.sessions.reader import FeedEvent, LivePiece, Position, Reader
from chalicelib.sessions.resume import finished_event
from chalicelib.sessions.rows import FinishedTurn

DOCUMENT = build_document()
ROUTES = sorted(
    (path, method.lower()) for path, methods in app.routes.items() for method in methods
)
ROUTE_IDS = [f"{method} {path}" for path, method in ROUTES]
SESSION, TURN = new_id("sess"), new_id("tur")


def operation(path: str, method: str) -> dict[str, Any]:
    return DOCUMENT["paths"][path][method]


def resolve(part: dict[str, Any]) -> dict[str, Any]:
    """The part itself, or what its `$ref` points at; KeyError if that leads nowhere."""
    while "$ref" in part:
        found: Any = DOCUMENT
        root, *steps = part["$ref"].split("/")
        assert root == "#"
        for step in steps:
            found = found[step]
        part = found
    return part


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def parameters(path: str, method: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in map(resolve, operation(path, method)["parameters"])}


def media_types(path: str, method: str, status: int) -> set[str]:
    answer = resolve(operation(path, method)["responses"][str(status)])
    return set(answer.get("content", {}))


def names_the_error_shape(answer: dict[str, Any]) -> bool:
    schema = answer["content"]["application/json"]["schema"]
    one_of_them = schema.get("anyOf", [schema])
    return {"$ref": "#/components/schemas/ErrorOut"} in one_of_them


def test_document_is_valid_openapi_3_1() -> None:
    """Lost if red: client generators and API browsers, which refuse an invalid document."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


def test_document_has_every_route_and_no_other() -> None:
    """Lost if red: a call that exists but cannot be found, or one that is promised and is a 404."""
    told = sorted((path, method) for path, item in DOCUMENT["paths"].items() for method in item)
    assert told == ROUTES


def test_every_reference_resolves() -> None:
    """Lost if red: generated clients, which break at the first reference that leads nowhere."""
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        assert resolve({"$ref": reference})


MORE_ERRORS: dict[tuple[str, str], set[int]] = {
    # what has ended stays as it is
    ("/v1/sessions/{session_id}/pins", "put"): {409},
    # one pass of a tenant at a time, and a model that has to answer
    ("/v1/memory/distill", "post"): {409, 502},
    # a person may be named
    ("/v1/memory/search", "get"): {404},
}
"""What does not follow from an operation's shape."""


def test_every_component_is_used() -> None:
    """Lost if red: a document that tells of bodies, headers and errors that never come."""
    told = {
        f"#/components/{kind}/{name}"
        for kind, parts in DOCUMENT["components"].items()
        if kind != "securitySchemes"
        for name in parts
    }
    assert told - set(references(DOCUMENT)) == set()


def test_operation_ids_are_unique() -> None:
    """Lost if red: one of two generated client methods, which overwrite each other by this name."""
    ids = [operation(path, method)["operationId"] for path, method in ROUTES]
    assert sorted(set(ids)) == sorted(ids)
    assert all(name.isidentifier() for name in ids)


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=ROUTE_IDS)
def test_operation_tells_what_it_does_and_how_it_fails(path: str, method: str) -> None:
    """Lost if red: what a call is for, and the shape to read its errors by."""
    told = operation(path, method)
    assert told["summary"].endswith(".")
    failures = {
        status: resolve(answer)
        for status, answer in told["responses"].items()
        if status == "default" or int(status) >= 400
    }
    assert {"default", "503"} <= failures.keys()
    assert [status for status, one in failures.items() if not names_the_error_shape(one)] == []


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=ROUTE_IDS)
def test_operation_tells_every_error_it_can_give(path: str, method: str) -> None:
    """Lost if red: the errors a client has to be ready for."""
    told = operation(path, method)
    statuses = {int(status) for status in told["responses"] if status != "default"}
    expected = {503}
    if told["security"]:
        expected |= {401, 403, 429}
    if "{" in path:
        expected |= {404}
    if "requestBody" in told:
        expected |= {400, 404, 413, 415, 422}
    if "Idempotency-Key" in parameters(path, method):
        expected |= {409, 422}
    if any(one["in"] == "query" for one in parameters(path, method).values()):
        expected |= {422}
    expected |= MORE_ERRORS.get((path, method), set())
    assert {status for status in statuses if status >= 400} == expected


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=ROUTE_IDS)
def test_operation_tells_the_headers_of_its_answers(path: str, method: str) -> None:
    """Lost if red: the id to report a failure by, when to try again, and the next page's token."""
    told = operation(path, method)
    for status, answer in told["responses"].items():
        headers = resolve(answer)["headers"]
        assert "X-Request-Id" in headers, status
        retried = status in ("409", "429") or answer.get("$ref", "").endswith("/Unavailable")
        assert ("Retry-After" in headers) == retried, status
        paged = "pageToken" in parameters(path, method) and status == "200"
        assert ("X-Next-Page-Token" in headers) == paged, status


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=ROUTE_IDS)
def test_operation_tells_its_path_parameters(path: str, method: str) -> None:
    """Lost if red: generated clients, which cannot fill a path whose parameter is not declared."""
    declared = {
        one["name"]
        for one in parameters(path, method).values()
        if one["in"] == "path" and one["required"]
    }
    assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}


@pytest.mark.parametrize("path", ["/healthz", "/openapi.json"])
def test_public_operations_need_no_key(path: str) -> None:
    """Lost if red: probes and API browsers, which would be told to send a key they do not have."""
    assert operation(path, "get")["security"] == []
    assert {"401", "403"}.isdisjoint(operation(path, "get")["responses"])


@pytest.mark.parametrize(("path", "method"), ROUTES, ids=ROUTE_IDS)
def test_operation_tells_the_scope_its_key_needs(path: str, method: str) -> None:
    """Lost if red: which scope to give a key; found out by a 403 instead."""
    told = operation(path, method)
    view = OPERATIONS.get(told["operationId"])
    scope = "sessions" if view is None else view.scope
    if scope is None:
        assert told["security"] == []
        return
    assert {"bearer": [scope]} in told["security"]
    assert f"`{scope}`" in told["description"]
    assert DOCUMENT["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_words_of_a_query_are_those_of_its_route() -> None:
    """Lost if red: a filter that is refused with the words of another list's states."""
    found = {
        path: set(parameters(path, "get")["status"]["schema"]["enum"])
        for path in ("/v1/sessions", "/v1/approvals")
    }
    assert "awaiting_approval" in found["/v1/sessions"]
    assert "pending" in found["/v1/approvals"]
    assert found["/v1/sessions"] & found["/v1/approvals"] == set()


def test_a_secret_is_in_no_answer() -> None:
    """Lost if red: clients that wait for a key which never comes back."""
    taken_in, given_out = set(), set()
    for route in ROUTES:
        if "/admin/" not in route[0]:
            continue
        told = operation(*route)
        if "requestBody" in told:
            taken_in |= names_in(told["requestBody"])
        given_out |= names_in(told["responses"]["204" if route[1] == "delete" else "200"])
    assert {"apiKey", "value"} <= taken_in
    assert {"apiKey", "value"} & given_out == set()
    assert {"hint", "updatedAt"} <= given_out


def names_in(part: Any) -> set[str]:
    """The names of all fields of a part of the document, and of what it refers to."""
    if isinstance(part, list):
        return set().union(*map(names_in, part))
    if not isinstance(part, dict):
        return set()
    whole = resolve(part)
    found = set(whole.get("properties", {}))
    return found.union(*(names_in(one) for one in whole.values()))


def test_event_stream_is_told_with_its_ways_in() -> None:
    """Lost if red: how to read a reply, resume a stream, and open one from a browser."""
    path = "/v1/sessions/{session_id}/events"
    assert media_types(path, "get", 200) == {"text/event-stream"}
    places = {name: one["in"] for name, one in parameters(path, "get").items()}
    assert places == {
        "session_id": "path",
        "Last-Event-ID": "header",
        "after": "query",
        "token": "query",
    }
    token = DOCUMENT["components"]["securitySchemes"]["streamToken"]
    assert (token["type"], token["in"], token["name"]) == ("apiKey", "query", "token")
    with_token = [route for route in ROUTES if {"streamToken": []} in operation(*route)["security"]]
    assert with_token == [(path, "get")], "a stream token reads events and nothing else"


def test_posting_a_message_has_both_its_answers() -> None:
    """Lost if red: that a post can stream its own reply."""
    path = "/v1/sessions/{session_id}/messages"
    assert media_types(path, "post", 202) == {"application/json"}
    assert media_types(path, "post", 200) == {"text/event-stream"}
    answer = resolve(operation(path, "post")["responses"]["200"])
    assert "Idempotent-Replayed" in answer["headers"]
    assert "text/event-stream" in answer["description"]


def test_unhealthy_answer_is_told() -> None:
    """Lost if red: which part of the system a failing probe's answer blames."""
    answer = resolve(operation("/healthz", "get")["responses"]["503"])
    schema = answer["content"]["application/json"]["schema"]
    assert {"$ref": "#/components/schemas/HealthOut"} in schema["anyOf"]


def test_idempotency_key_is_told_as_it_is_checked() -> None:
    """Lost if red: keys that follow the document and are refused all the same."""
    schema = parameters("/v1/sessions", "post")["Idempotency-Key"]["schema"]
    assert (schema["minLength"], sent_with_key("k" * schema["maxLength"])) == (1, True)
    assert not sent_with_key("k" * (schema["maxLength"] + 1))
    told = {
        operation(*route)["operationId"]
        for route in ROUTES
        if "Idempotency-Key" in parameters(*route)
    }
    assert told == {one.name for one in OPERATIONS.values() if one.idempotent}


def sent_with_key(key: str) -> bool:
    try:
        return Once.of(method="POST", path="/v1/sessions", key=key, body=b"") is not None
    except InvalidField:
        return False


def taken(kind: str, *, provider_tells: bool) -> FeedEvent:
    """An event of this kind, as the code that writes it makes it."""
    if kind == "message_delta":
        reader = Reader(SESSION, Position(seq=3, turn_id=TURN), most=1 << 20)
        reader.take_piece(TURN, 0, LivePiece(0, "ein „Wort“", json.dumps("ein „Wort“")))
        (event,) = reader.drain()
        return event
    turn = FinishedTurn(
        turn_id=TURN,
        status="completed" if kind == "message_completed" else "failed",
        generation=1,
        text="ein Wort",
        tokens_in=7 if provider_tells else None,
        tokens_out=2 if provider_tells else None,
        tokens_cached=0 if provider_tells else None,
        cost_usd=0.25 if provider_tells else None,
        message_id=new_id("msg"),
        finish_reason="stop",
        error="The turn was cancelled.",
        error_code="cancelled",
    )
    return FeedEvent("4", *finished_event(SESSION, turn))


def stream_item_error(event: FeedEvent) -> str | None:
    """What the document holds against this event, its data included; None if it is as told."""
    sent = {"id": event.id, "event": event.name, "data": event.data}
    kinds = resolve({"$ref": "#/components/schemas/EventStream"})["items"]["oneOf"]
    kind = next(one for one in kinds if Draft202012Validator(one).is_valid(sent))
    schema = kind["properties"]["data"]["contentSchema"]
    whole = {
        **resolve(schema),
        "components": DOCUMENT["components"],
        "additionalProperties": False,
    }
    problems = Draft202012Validator(whole).iter_errors(json.loads(event.data))
    return next((one.message for one in problems), None)


@pytest.mark.parametrize("provider_tells", [True, False], ids=["tokens told", "tokens not told"])
@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_events_are_sent_as_they_are_told(kind: str, provider_tells: bool) -> None:
    """Lost if red: every client that reads events by the document; it would fail at run time."""
    event = taken(kind, provider_tells=provider_tells)
    assert event.name == kind
    assert stream_item_error(event) is None


def test_an_event_that_is_not_as_told_is_noticed() -> None:
    """Lost if red: the test above, which would let anything through."""
    event = taken("message_completed", provider_tells=True)
    broken = json.loads(event.data)
    broken["usage"]["tokensIn"] = "7"
    assert stream_item_error(event._replace(data=json.dumps(broken))) is not None
    assert stream_item_error(event._replace(name="message_error")) is not None


def test_every_error_answer_is_one_the_code_can_give() -> None:
    """Lost if red: the status of an error class that was changed, and not in the document."""
    for name, answer in DOCUMENT["components"]["responses"].items():
        assert issubclass(getattr(errors, name), errors.PalError)
        assert names_the_error_shape(answer)
    given = (*errors.BY_STATUS.values(), errors.ProviderError)
    by_status = {cls.status: cls.__name__ for cls in given}
    for route in ROUTES:
        for status, answer in operation(*route)["responses"].items():
            if status != "default" and "$ref" in answer:
                assert answer["$ref"].endswith(f"/{by_status[int(status)]}")


def test_document_is_the_same_in_every_process(root: Path) -> None:
    """Lost if red: a document that can be kept in a repository and compared by its text."""
    program = (
        "import json; from chalicelib.api.document import build_document;"
        "print(json.dumps(build_document()))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert {json.dumps(json.loads(text)) for text in texts} == {json.dumps(DOCUMENT)}
