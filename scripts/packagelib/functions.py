"""Functions, layers and their events in the Terraform module."""

from collections.abc import Mapping
from typing import Any

from .errors import PackagingError
from .expressions import Expressions, snake

TYPES = frozenset(
    {"AWS::Serverless::Function", "AWS::Serverless::Api", "AWS::Serverless::LayerVersion"}
)
# Chalice's module says these itself
_CHALICES = frozenset(
    {"Architectures", "CodeUri", "Events", "Handler", "MemorySize", "Role", "Runtime", "Tags"}
    | {"Timeout", "Tracing"}
)
_SIMPLE = {
    "Description": "description",
    "FunctionName": "function_name",
    "Layers": "layers",
    "ReservedConcurrentExecutions": "reserved_concurrent_executions",
}


def ids(template: Mapping[str, Any], functions: Mapping[str, Any]) -> dict[str, str]:
    """Chalice's name of each function of the template, by id."""
    by_id = {_id(name): name for name in functions}
    found = [
        name
        for name, one in template["Resources"].items()
        if one["Type"] == "AWS::Serverless::Function"
    ]
    if set(found) != set(by_id):
        raise PackagingError(f"the functions are not the same: {sorted(set(found) ^ set(by_id))}")
    return by_id


def _id(name: str) -> str:
    return "APIHandler" if name == "api_handler" else _camel(name)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.replace("-", "_").split("_"))


def role_of(name: str, known: Mapping[str, str]) -> str | None:
    """Chalice's name of a role that it made for a function; None for another role's id."""
    # it calls the API's function ApiHandler here, an id that it then changes
    return {_camel(f"{one}_role"): f"{one}_role" for one in known.values()}.get(name)


def names(template: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Expressions for what may be taken of functions and layers."""
    found = {
        "ManagedLayer": "aws_lambda_layer_version.managed-layer.arn",
        "EmbeddingsLayer": "aws_lambda_layer_version.embeddings_layer.arn",
    }
    for one, name in known.items():
        function = f"aws_lambda_function.{name}"
        found[one] = f"{function}.function_name"
        found[f"{one}.Arn"] = f"{function}.arn"
        found[f"{one}.Version"] = f"{function}.version"
        found[f"{one}Url"] = found[f"{one}Url.FunctionArn"] = f"{function}.arn"
        found[f"{one}Url.FunctionUrl"] = f"aws_lambda_function_url.{name}.function_url"
        alias = merged(template, one).get("AutoPublishAlias")
        if alias is not None:
            for form in (f"{one}.Alias", f"{one}Alias{alias}"):
                found[form] = f"aws_lambda_alias.{name}.arn"
    for name in template["Resources"]:
        if (role := role_of(name, known)) is not None:
            found[name] = f"aws_iam_role.{role}.name"
            found[f"{name}.Arn"] = f"aws_iam_role.{role}.arn"
    return found


def merged(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A function's properties, with the template's Globals below them as SAM has it."""
    globals_ = template.get("Globals", {}).get("Function", {})
    own: dict[str, Any] = template["Resources"][name]["Properties"]
    made: dict[str, Any] = _merged(globals_, own)
    return made


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        both = {**below, **above}
        return {
            k: _merged(below[k], v) if k in below and k in above else v for k, v in both.items()
        }
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


def lay_over(
    module: dict[str, Any],
    template: Mapping[str, Any],
    known: Mapping[str, str],
    expressions: Expressions,
) -> None:
    """Give Chalice's functions, roles and events what the template says of them."""
    made = module["resource"]
    made["aws_lambda_layer_version"]["embeddings_layer"] = {
        **_layer(template["Resources"]["EmbeddingsLayer"]["Properties"], expressions),
        "filename": "${path.module}/embeddings-layer.zip",
        "source_code_hash": '${filebase64sha256("${path.module}/embeddings-layer.zip")}',
    }
    for one, name in known.items():
        properties = merged(template, one)
        _function(made, name, properties, expressions)
        for event in properties.get("Events", {}).values():
            _event(made, name, event, expressions, alias=properties.get("AutoPublishAlias"))
    for one, resource in template["Resources"].items():
        if (role := role_of(one, known)) is not None:
            (policy,) = resource["Properties"]["Policies"]
            document = expressions.expression(policy["PolicyDocument"])
            made["aws_iam_role_policy"][role]["policy"] = f"${{jsonencode({document})}}"


def _layer(properties: Mapping[str, Any], expressions: Expressions) -> dict[str, Any]:
    return {
        snake(key): expressions.value(value)
        for key, value in properties.items()
        if key != "ContentUri"
    }


def _function(
    made: dict[str, Any], name: str, properties: Mapping[str, Any], expressions: Expressions
) -> None:
    function = made["aws_lambda_function"][name]
    address = f"${{aws_lambda_function.{name}.function_name}}"
    alias = properties.get("AutoPublishAlias")
    qualifier = {"qualifier": f"${{aws_lambda_alias.{name}.name}}"} if alias else {}
    # Lambda refuses a function in a VPC whose role may not attach it yet
    function["depends_on"] = [f"aws_iam_role_policy.{name}_role"]
    for key, value in properties.items():
        if key in _CHALICES:
            continue
        if key in _SIMPLE:
            function[_SIMPLE[key]] = expressions.value(value)
        elif key == "Environment":
            function["environment"] = {"variables": expressions.value(value["Variables"])}
        elif key == "VpcConfig":
            function["vpc_config"] = {snake(k): expressions.value(v) for k, v in value.items()}
        elif key == "EphemeralStorage":
            function["ephemeral_storage"] = {"size": expressions.value(value["Size"])}
        elif key == "LoggingConfig":
            function["logging_config"] = {snake(k): expressions.value(v) for k, v in value.items()}
        elif key == "AutoPublishAlias":
            function["publish"] = True
            made.setdefault("aws_lambda_alias", {})[name] = {
                "name": expressions.value(value),
                "function_name": address,
                "function_version": f"${{aws_lambda_function.{name}.version}}",
            }
        elif key == "ProvisionedConcurrencyConfig":
            _provision(made, name, value, expressions)
        elif key == "EventInvokeConfig":
            made.setdefault("aws_lambda_function_event_invoke_config", {})[name] = {
                "function_name": address,
                **qualifier,
                **{snake(k): expressions.value(v) for k, v in value.items()},
            }
        elif key == "RecursiveLoop":
            made.setdefault("aws_lambda_function_recursion_config", {})[name] = {
                "function_name": address,
                "recursive_loop": value,
            }
        elif key == "FunctionUrlConfig":
            made.setdefault("aws_lambda_function_url", {})[name] = {
                "function_name": address,
                **qualifier,
                "authorization_type": value["AuthType"],
                "invoke_mode": value.get("InvokeMode", "BUFFERED"),
            }
            _permit_url(made, name, address, qualifier)
        elif key not in ("AutoPublishAliasAllProperties", "AutoPublishCodeSha256"):
            raise PackagingError(f"Terraform has nothing for {key} of {name}")


def _permit_url(made: dict[str, Any], name: str, address: str, qualifier: dict[str, str]) -> None:
    """The two permissions that a public URL needs, which SAM adds by itself."""
    public = {"function_name": address, **qualifier, "principal": "*"}
    made["aws_lambda_permission"] |= {
        f"{name}_url": {
            **public,
            "action": "lambda:InvokeFunctionUrl",
            "function_url_auth_type": "NONE",
        },
        f"{name}_url_invoke": {
            **public,
            "action": "lambda:InvokeFunction",
            "invoked_via_function_url": True,
        },
    }


def _provision(made: dict[str, Any], name: str, value: Any, expressions: Expressions) -> None:
    condition = value.get("Fn::If") if isinstance(value, dict) else None
    count = {}
    if condition is not None:
        count = {"count": f"${{{expressions.condition(condition[0])} ? 1 : 0}}"}
        value = condition[1]
    made.setdefault("aws_lambda_provisioned_concurrency_config", {})[name] = {
        **count,
        "function_name": f"${{aws_lambda_alias.{name}.function_name}}",
        "qualifier": f"${{aws_lambda_alias.{name}.name}}",
        "provisioned_concurrent_executions": expressions.value(
            value["ProvisionedConcurrentExecutions"]
        ),
    }


def _event(
    made: dict[str, Any],
    name: str,
    event: Mapping[str, Any],
    expressions: Expressions,
    *,
    alias: str | None,
) -> None:
    properties = event["Properties"]
    if event["Type"] == "SQS":
        source = made["aws_lambda_event_source_mapping"][f"{name}-sqs-event-source"]
        source["event_source_arn"] = expressions.value(properties["Queue"])
        if alias is not None:
            source["function_name"] = f"${{aws_lambda_alias.{name}.arn}}"
    elif event["Type"] == "Schedule":
        rule = made["aws_cloudwatch_event_rule"][f"{name}-event"]
        # Chalice's own is the same in every stage
        rule["name"] = f"${{aws_lambda_function.{name}.function_name}}"
        if "State" in properties or "Enabled" in properties:
            raise PackagingError(f"Terraform has nothing for the state of {name}'s schedule")
    else:
        raise PackagingError(f"Terraform has nothing for the event {event['Type']} of {name}")
