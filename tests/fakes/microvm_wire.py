"""The REST-JSON of AWS's microVM API: requests read and answered by botocore's model of it."""

import json
import re
from typing import Any, Final
from urllib.parse import unquote

import botocore.session
from aiohttp import web
from botocore.validate import ParamValidator

MODEL: Final = botocore.session.get_session().get_service_model("lambda-microvms")
_LONGEST: Final = {"expirationInMinutes": 60, "maximumDurationInSeconds": 28_800}


def read_call(request: web.Request, body: bytes) -> tuple[str, dict[str, Any]]:
    """The operation and its parameters, from where the model puts each of them."""
    for name in MODEL.operation_names:
        operation = MODEL.operation_model(name)
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation.http["requestUri"])
        match = re.fullmatch(pattern, request.raw_path.partition("?")[0])
        if request.method != operation.http["method"] or match is None:
            continue
        found: dict[str, Any] = json.loads(body) if body else {}
        found |= {key: unquote(value) for key, value in match.groupdict().items()}
        for key, value in request.query.items():
            shape = operation.input_shape.members[key]
            found[key] = int(value) if shape.type_name == "integer" else value
        return name, found
    raise web.HTTPNotFound


def problem_of(operation: str, parameters: dict[str, Any]) -> str:
    """Why AWS would not take it; empty if it would."""
    shape = MODEL.operation_model(operation).input_shape
    report = ParamValidator().validate(parameters, shape)
    if report.has_errors():
        return report.generate_report()
    for name, most in _LONGEST.items():
        if parameters.get(name, 0) > most:
            return f"{name} is over {most}."
    return ""


def refusal(operation: str, code: str, message: str) -> web.Response:
    """An error that the operation has."""
    errors = {shape.name: shape for shape in MODEL.operation_model(operation).error_shapes}
    assert code in errors, f"{operation} has no {code}"
    return web.json_response(
        {"message": message},
        status=errors[code].metadata["error"]["httpStatusCode"],
        headers={"x-amzn-ErrorType": code},
    )
