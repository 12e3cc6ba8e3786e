"""Makers of API Gateway's types."""

import json
from typing import Any

from .place import Place, call
from .values import Made

_INTEGRATION = "x-amazon-apigateway-integration"
_RESPONSES = "x-amazon-apigateway-gateway-responses"
_ANY = "x-amazon-apigateway-any-method"


def rest_api(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The API as its OpenAPI body says it."""
    aws = place.client("apigateway")
    body = properties["Body"]
    title = properties.get("Name") or body["info"]["title"]
    every = aws.get_rest_apis(limit=500)["items"]
    same = [one["id"] for one in every if one["name"] == title]
    if same:
        api = same[0]
    else:
        endpoint = properties.get("EndpointConfiguration") or {}
        types = endpoint.get("Types") if isinstance(endpoint, dict) else [endpoint]
        own = {"endpointConfiguration": {"types": types}} if types else {}
        api = aws.create_rest_api(name=title, **own)["id"]
    if place.emulator == "moto":
        body = _for_moto(body)
    aws.put_rest_api(restApiId=api, mode="overwrite", body=json.dumps(body).encode())
    if place.emulator == "moto":
        for kind, said in body.get(_RESPONSES, {}).items():
            aws.put_gateway_response(restApiId=api, responseType=kind, **said)
    every = aws.get_resources(restApiId=api, limit=500)["items"]
    root = next(one["id"] for one in every if one["path"] == "/")
    return Made(ref=api, attributes={"RestApiId": api, "RootResourceId": root})


def _for_moto(body: dict[str, Any]) -> dict[str, Any]:
    """moto reads OpenAPI 3 only, and of it methods with their responses and integrations."""
    paths = {}
    for path, methods in body["paths"].items():
        paths[path] = {
            "any" if method == _ANY else method: said
            for method, said in methods.items()
            if isinstance(said, dict)
        }
    rest = {key: value for key, value in body.items() if key not in ("swagger", "paths")}
    return {**rest, "openapi": "3.0.1", "paths": paths}


def deployment(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """A deployment of the API as it is now."""
    aws = place.client("apigateway")
    found = aws.create_deployment(
        restApiId=properties["RestApiId"], description=properties.get("Description", name)
    )
    return Made(ref=found["id"], attributes={"DeploymentId": found["id"]})


def stage(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The stage, set to that deployment."""
    aws = place.client("apigateway")
    given = {"restApiId": properties["RestApiId"], "stageName": properties["StageName"]}
    try:
        aws.get_stage(**given)
    except aws.exceptions.NotFoundException:
        aws.create_stage(**given, deploymentId=properties["DeploymentId"])
    changes = {"/deploymentId": properties["DeploymentId"]}
    if "TracingEnabled" in properties:
        changes["/tracingEnabled"] = str(properties["TracingEnabled"]).lower()
    if log := properties.get("AccessLogSetting"):
        changes["/accessLogSettings/destinationArn"] = log["DestinationArn"]
        changes["/accessLogSettings/format"] = log["Format"]
    for method in properties.get("MethodSettings", []):
        where = f"/{method['ResourcePath'].strip('/').replace('/', '~1')}/{method['HttpMethod']}"
        where = "/*/*" if method["ResourcePath"] == "/*" else where
        for key, path in _METHOD_SETTINGS.items():
            if key in method:
                value = method[key]
                changes[where + path] = (
                    str(value).lower() if isinstance(value, bool) else str(value)
                )
    aws.update_stage(
        **given,
        patchOperations=[{"op": "replace", "path": k, "value": v} for k, v in changes.items()],
    )
    return Made(ref=properties["StageName"])


_METHOD_SETTINGS = {
    "LoggingLevel": "/logging/loglevel",
    "DataTraceEnabled": "/logging/dataTrace",
    "MetricsEnabled": "/metrics/enabled",
    "ThrottlingRateLimit": "/throttling/rateLimit",
    "ThrottlingBurstLimit": "/throttling/burstLimit",
}


def account(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The role by which API Gateway writes logs."""
    role = properties["CloudWatchRoleArn"]
    place.client("apigateway").update_account(
        patchOperations=[{"op": "replace", "path": "/cloudwatchRoleArn", "value": role}]
    )
    return Made(ref=name)


def gateway_response(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """What the gateway answers by itself in one case."""
    own = {
        "restApiId": properties["RestApiId"],
        "responseType": properties["ResponseType"],
        "statusCode": properties.get("StatusCode"),
        "responseParameters": properties.get("ResponseParameters"),
        "responseTemplates": properties.get("ResponseTemplates"),
    }
    given = {key: value for key, value in own.items() if value is not None}
    call(place.client("apigateway"), "put_gateway_response", given)
    parts = (own["restApiId"], own["responseType"])
    return Made(ref="|".join(parts), parts=parts)
