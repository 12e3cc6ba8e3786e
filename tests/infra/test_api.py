"""The REST API of the packaged stack: one base URL, and answers that are all of one shape."""

import json
import re
from typing import Any

import pytest

from app import app
from chalicelib import config
from chalicelib.config import Settings
from chalicelib.errors import BY_STATUS
from chalicelib.stream.handler import streams
from scripts.scanlib.expansion import expand
from tests.support.package import Package

ANY = "x-amazon-apigateway-any-method"
INTEGRATION = "x-amazon-apigateway-integration"
GATEWAY = "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path"
HANDLER = f"{GATEWAY}/2015-03-31/functions/${{APIHandler.Arn}}/invocations"
STREAM = f"{GATEWAY}/2021-11-15/functions/${{StreamAliaslive}}/response-streaming-invocations"


@pytest.fixture
def api(dev_package: Package) -> dict[str, Any]:
    return dev_package.properties("RestAPI")


@pytest.fixture
def paths(api: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = api["DefinitionBody"]["paths"]
    return found


def test_one_base_url_serves_what_streams_and_what_does_not(
    paths: dict[str, dict[str, Any]],
) -> None:
    """A stream would come whole at its end, cut at 29 seconds, or a caller need two URLs."""
    streaming = set()
    for path, methods in paths.items():
        for method, told in methods.items():
            integration = told[INTEGRATION]
            assert (integration["type"], integration["httpMethod"]) == ("aws_proxy", "POST")
            if integration["uri"] == {"Fn::Sub": STREAM}:
                streaming.add((method.upper(), path))
                assert integration["responseTransferMode"] == "STREAM"
                # the longest that API Gateway and Lambda allow
                assert integration["timeoutInMillis"] == 900_000
            else:
                assert integration["uri"] == {"Fn::Sub": HANDLER}, (method, path)
    routes = {(method, path) for path, methods in app.routes.items() for method in methods}
    assert streaming == {
        (method, path) for method, path in routes if streams(method, re.sub(r"{\w+}", "x", path))
    }
    assert len(streaming) == 3


def test_gateway_may_call_the_functions(dev_package: Package) -> None:
    """Every request, or every stream, would be answered with 500."""
    for permission, function in (
        ("APIHandlerInvokePermission", {"Ref": "APIHandler"}),
        ("StreamInvokePermission", {"Ref": "StreamAliaslive"}),
    ):
        told = dev_package.properties(permission)
        assert told["FunctionName"] == function
        assert (told["Action"], told["Principal"]) == (
            "lambda:InvokeFunction",
            "apigateway.amazonaws.com",
        )
        assert "${RestAPI" in str(told["SourceArn"])


def test_api_is_regional_and_bounded(api: dict[str, Any]) -> None:
    """An edge endpoint cuts a stream that is idle for 30 seconds; one caller could take it all."""
    assert api["EndpointConfiguration"] == "REGIONAL"
    (settings,) = api["MethodSettings"]
    assert (settings["ResourcePath"], settings["HttpMethod"]) == ("/*", "*")
    assert settings["ThrottlingRateLimit"] == {"Ref": "ApiRateLimit"}
    assert settings["ThrottlingBurstLimit"] == {"Ref": "ApiBurstLimit"}


def test_api_has_one_stage(dev_package: Package) -> None:
    """All of it could be had by a second stage of SAM's, which nothing bounds and nothing logs."""
    made = expand(dev_package.template)["Resources"].values()
    stages = [one for one in made if one["Type"] == "AWS::ApiGateway::Stage"]
    assert [one["Properties"]["StageName"] for one in stages] == ["api"]
    (deployment,) = [one for one in made if one["Type"] == "AWS::ApiGateway::Deployment"]
    assert "StageName" not in deployment["Properties"]


def test_api_logs_requests_without_what_they_say(api: dict[str, Any]) -> None:
    """A stream token in a query, or a key in a header, would be kept for whoever reads logs."""
    told = json.loads(api["AccessLogSetting"]["Format"])
    assert {"requestId", "status", "route", "latencyMs"} <= set(told)
    for value in told.values():
        assert value.startswith("$context.")
        assert not any(part in value for part in ("path.", "querystring", "header", "requestOver"))
    assert "$context.path" not in told.values()
    assert api["MethodSettings"][0]["DataTraceEnabled"] is False
    assert api["MethodSettings"][0]["LoggingLevel"] == "OFF"
    assert api["TracingEnabled"] is True


# --- what reaches the handler --------------------------------------------------------------------
def test_all_that_no_route_takes_reaches_the_handler(paths: dict[str, dict[str, Any]]) -> None:
    """A browser's preflight would be 403, and an unknown path a complaint about a signature."""
    assert set(paths) == {*app.routes, "/", "/{proxy+}"}
    for path, methods in paths.items():
        assert methods[ANY][INTEGRATION]["uri"] == {"Fn::Sub": HANDLER}, path
        assert "options" not in methods


@pytest.mark.parametrize(
    ("resource", "method", "status"),
    [
        pytest.param("/{proxy+}", "GET", 404, id="unknown path"),
        pytest.param("/", "GET", 404, id="root"),
        pytest.param("/v1/agents", "PATCH", 405, id="wrong method"),
        pytest.param("/v1/agents", "OPTIONS", 204, id="preflight"),
        pytest.param(
            "/v1/sessions/{session_id}/events", "OPTIONS", 204, id="preflight of a stream"
        ),
        pytest.param("/{proxy+}", "OPTIONS", 204, id="preflight of an unknown path"),
    ],
)
def test_handler_answers_what_no_route_takes(resource: str, method: str, status: int) -> None:
    """A page would be told of a CORS error in place of what is wrong."""
    event = {
        "path": resource,
        "headers": {"Origin": "https://ours.example", "Authorization": "Bearer pal_x"},
        "requestContext": {"requestId": "r-1", "httpMethod": method, "resourcePath": resource},
        "multiValueQueryStringParameters": None,
        "pathParameters": None,
        "stageVariables": None,
        "body": None,
        "isBase64Encoded": False,
    }
    config.use(Settings(cors_origins=("https://ours.example",)))
    try:
        answer = app(event, None)
    finally:
        config.use(None)
    assert answer["statusCode"] == status
    assert answer["headers"]["Access-Control-Allow-Origin"] == "https://ours.example"
    assert answer["headers"]["X-Request-Id"] == "r-1"
    if status == 204:
        assert "Idempotency-Key" in answer["headers"]["Access-Control-Allow-Headers"]


# --- what the gateway answers by itself ----------------------------------------------------------
def test_gateways_own_answers_have_the_contracts_shape(api: dict[str, Any]) -> None:
    """A client that reads `code` and `requestId` would break on the answers it most needs."""
    told = api["GatewayResponses"]
    assert {"DEFAULT_4XX", "DEFAULT_5XX", "REQUEST_TOO_LARGE", "INTEGRATION_TIMEOUT"} <= set(told)
    assert told["MISSING_AUTHENTICATION_TOKEN"]["StatusCode"] == 404
    for kind, response in told.items():
        (template,) = response["ResponseTemplates"].values()
        body = json.loads(template)
        assert set(body) == {"error", "code", "requestId"}
        assert body["requestId"] == "$context.requestId"
        headers = response["ResponseParameters"]["Headers"]
        assert headers["X-Request-Id"] == "context.requestId"
        status = response.get("StatusCode") or {"DEFAULT_4XX": 400, "DEFAULT_5XX": 500}[kind]
        assert body["code"] == (BY_STATUS[status].code if status in BY_STATUS else "internal")
        assert ("Retry-After" in headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("origins", "named"),
    [
        pytest.param("", None, id="none"),
        pytest.param("https://a.example", "'https://a.example'", id="one"),
        pytest.param("https://a.example,https://b.example", "'https://a.example'", id="several"),
    ],
)
def test_gateways_own_answers_name_an_allowed_origin(
    dev_package: Package, api: dict[str, Any], origins: str, named: str | None
) -> None:
    """A page of ours could not read why it was refused, or any page could."""
    conditions = dev_package.template["Conditions"]
    for response in api["GatewayResponses"].values():
        headers = {
            name: value
            for name, told in response["ResponseParameters"]["Headers"].items()
            if (value := _value(told, {"CorsOrigins": origins}, conditions)) is not None
        }
        assert headers.get("Access-Control-Allow-Origin") == named
        assert ("Vary" in headers) == (named is not None)


def _value(told: Any, parameters: dict[str, str], conditions: dict[str, Any]) -> Any:
    """What a value of the template comes to; None where there is none."""
    if isinstance(told, list):
        return [_value(one, parameters, conditions) for one in told]
    if not isinstance(told, dict):
        return told
    ((kind, what),) = told.items()
    if kind == "Ref":
        return None if what == "AWS::NoValue" else parameters[what]
    if kind == "Fn::If":
        chosen = 1 if _value(conditions[what[0]], parameters, conditions) else 2
        return _value(what[chosen], parameters, conditions)
    if kind == "Fn::Sub":
        text, names = what
        for name, value in names.items():
            text = text.replace(f"${{{name}}}", _value(value, parameters, conditions))
        return text
    made = _value(what, parameters, conditions)
    return {
        "Fn::Not": lambda: not made[0],
        "Fn::Equals": lambda: made[0] == made[1],
        "Fn::Select": lambda: made[1][made[0]],
        "Fn::Split": lambda: made[1].split(made[0]),
    }[kind]()
