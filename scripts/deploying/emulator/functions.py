"""Makers of Lambda's types: functions, their versions, aliases, URLs, sources and permissions."""

import base64
import hashlib
from typing import Any

from botocore.exceptions import ClientError

from .place import Place, call
from .values import Made


def function(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The function, with the concurrency that is kept for it."""
    aws = place.client("lambda")
    own = {"FunctionName": f"{place.stack}-{name}", **properties}
    given = {"FunctionName": own["FunctionName"]}
    try:
        aws.get_function(**given)
    except aws.exceptions.ResourceNotFoundException:
        found = call(aws, "create_function", own)
    else:
        code = {k: v for k, v in own["Code"].items() if k in ("S3Bucket", "S3Key", "ImageUri")}
        aws.update_function_code(**given, **code)
        aws.get_waiter("function_updated_v2").wait(**given)
        found = call(aws, "update_function_configuration", own)
    aws.get_waiter("function_active_v2").wait(**given)
    kept = properties.get("ReservedConcurrentExecutions")
    if kept is not None:
        aws.put_function_concurrency(**given, ReservedConcurrentExecutions=int(kept))
    return Made(ref=own["FunctionName"], attributes={"Arn": _unqualified(found["FunctionArn"])})


def version(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The version that the function's code has, published unless it has been."""
    aws = place.client("lambda")
    of = properties["FunctionName"]
    now = aws.get_function_configuration(FunctionName=of)
    every = aws.list_versions_by_function(FunctionName=of)["Versions"]
    same = [
        one
        for one in every
        if one["Version"] != "$LATEST" and one["CodeSha256"] == now["CodeSha256"]
    ]
    number = same[-1]["Version"] if same else aws.publish_version(FunctionName=of)["Version"]
    arn = f"{_unqualified(now['FunctionArn'])}:{number}"
    return Made(ref=arn, attributes={"Version": number, "FunctionArn": arn})


def alias(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The alias, and the concurrency that is provisioned for it."""
    aws = place.client("lambda")
    given = {"FunctionName": properties["FunctionName"], "Name": properties["Name"]}
    try:
        aws.get_alias(**given)
        operation = "update_alias"
    except aws.exceptions.ResourceNotFoundException:
        operation = "create_alias"
    found = call(aws, operation, properties)
    provisioned = properties.get("ProvisionedConcurrencyConfig")
    if provisioned and place.emulator != "moto":
        aws.put_provisioned_concurrency_config(
            FunctionName=given["FunctionName"],
            Qualifier=given["Name"],
            ProvisionedConcurrentExecutions=int(provisioned["ProvisionedConcurrentExecutions"]),
        )
    return Made(ref=found["AliasArn"], attributes={"AliasArn": found["AliasArn"]})


def url(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The function's URL, or its alias's."""
    aws = place.client("lambda")
    target, qualifier = _split(properties["TargetFunctionArn"])
    given = {"FunctionName": target}
    if qualifier := properties.get("Qualifier") or qualifier:
        given["Qualifier"] = qualifier
    own = {key: value for key, value in properties.items() if key != "Qualifier"}
    try:
        aws.get_function_url_config(**given)
        operation = "update_function_url_config"
    except aws.exceptions.ResourceNotFoundException:
        operation = "create_function_url_config"
    found = call(aws, operation, own, **given)
    return Made(
        ref=found["FunctionArn"],
        attributes={"FunctionUrl": found["FunctionUrl"], "FunctionArn": found["FunctionArn"]},
        parts=(target, qualifier),
    )


def permission(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """A statement of the function's policy, which has the resource's name."""
    aws = place.client("lambda")
    target, qualifier = _split(properties["FunctionName"])
    given = {"FunctionName": target} | ({"Qualifier": qualifier} if qualifier else {})
    try:
        aws.remove_permission(**given, StatementId=name)
    except ClientError as exc:
        if exc.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
    own = {key: value for key, value in properties.items() if key != "FunctionName"}
    call(aws, "add_permission", own, **given, StatementId=name)
    return Made(ref=name, parts=(target, qualifier, name))


def event_source(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The mapping from a queue to the function."""
    aws = place.client("lambda")
    every = aws.list_event_source_mappings(
        EventSourceArn=properties["EventSourceArn"], FunctionName=properties["FunctionName"]
    )["EventSourceMappings"]
    if every:
        given = {k: v for k, v in properties.items() if k != "EventSourceArn"}
        found = call(aws, "update_event_source_mapping", given, UUID=every[0]["UUID"])
    else:
        found = call(aws, "create_event_source_mapping", properties)
    return Made(ref=found["UUID"], attributes={"Id": found["UUID"]})


def event_invoke(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """How often an event is tried again."""
    aws = place.client("lambda")
    call(aws, "put_function_event_invoke_config", properties)
    target, qualifier = properties["FunctionName"], properties["Qualifier"]
    return Made(ref=f"{target}|{qualifier}", parts=(target, qualifier))


def layer(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The layer's version that has this content, published unless it has been."""
    aws = place.client("lambda")
    own = {"LayerName": name, **properties}
    content = own["Content"]
    body = place.client("s3").get_object(Bucket=content["S3Bucket"], Key=content["S3Key"])["Body"]
    digest = hashlib.sha256()
    for piece in body.iter_chunks(1 << 20):
        digest.update(piece)
    wanted = base64.b64encode(digest.digest()).decode()
    for one in aws.list_layer_versions(LayerName=own["LayerName"])["LayerVersions"]:
        there = aws.get_layer_version(LayerName=own["LayerName"], VersionNumber=one["Version"])
        if there["Content"]["CodeSha256"] == wanted:
            break
    else:
        there = call(aws, "publish_layer_version", own)
    parts = (own["LayerName"], str(there["Version"]))
    return Made(ref=there["LayerVersionArn"], parts=parts)


def _unqualified(arn: str) -> str:
    return ":".join(arn.split(":")[:7])


def _split(function: str) -> tuple[str, str]:
    """A function by name or ARN, and the alias or version that the ARN names."""
    parts = function.split(":")
    if len(parts) == 8:
        return ":".join(parts[:7]), parts[7]
    return function, ""
