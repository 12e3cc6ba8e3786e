"""A Terraform module: what `chalice package --pkg-format terraform` writes, made whole.

Chalice's module knows the functions, their roles, schedules, queues' events and the API. What it
says of them, and all that infra/ adds, comes from the stack's own template, translated; so infra/
is the one source. The network, the database and microVMs are given to it: infra/terraform/.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import functions, resources, templates
from .errors import PackagingError
from .expressions import Expressions, snake

# what the module is given in place of what these files make
_GIVEN_FILES = ("network.yaml", "database.yaml", "microvm.yaml")
_GIVEN = {
    "PrivateSubnetA": "var.subnet_ids[0]",
    "PrivateSubnetB": "var.subnet_ids[1]",
    "FunctionSecurityGroup": "var.function_security_group_id",
    "FunctionSecurityGroup.GroupId": "var.function_security_group_id",
    "MigrateSecurityGroup": "var.migrate_security_group_id",
    "MigrateSecurityGroup.GroupId": "var.migrate_security_group_id",
    "DatabaseProxy": "var.database_proxy_name",
    "DatabaseProxy.Endpoint": "var.database_proxy_host",
    "DatabaseProxy.DBProxyArn": "var.database_proxy_arn",
    "Database": "var.database_identifier",
    "Database.Endpoint.Address": "var.database_host",
    "Database.DBClusterResourceId": "var.database_resource_id",
    "Database.MasterUserSecret.SecretArn": "var.database_master_secret_arn",
    "DatabaseKey.Arn": "var.database_key_arn",
    "MicrovmImage.ImageArn": "var.microvm_image_arn",
    "MicrovmEgress": "var.microvm_egress",
    "MicrovmConnector.Arn": "var.microvm_egress",
}
_GIVEN_CONDITIONS = {"HasMicrovms": 'var.microvm_image_arn != ""', "HasClosedMicrovms": "false"}
# a permission names a function and an alias of it apart
_ALIAS = re.compile(r"\$\{(aws_lambda_alias\.\w+)\.arn\}")
_VERSIONS = {
    "required_version": ">= 1.5",
    "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 6.29, < 7"}},
}


def make_module(chalice: dict[str, Any], template: dict[str, Any], infra: Path) -> dict[str, Any]:
    """Chalice's module, with the stack's template laid over it."""
    module = _renamed(chalice)
    made = module["resource"]
    given = {
        name
        for file in _GIVEN_FILES
        for name, one in (templates.load(infra / file).get("Resources") or {}).items()
        if "Type" in one
    }
    ids = functions.ids(template, made["aws_lambda_function"])
    names = {**_GIVEN, **functions.names(template, ids), **_names(template, given)}
    expressions = Expressions(names, template, _GIVEN_CONDITIONS)

    functions.lay_over(module, template, ids, expressions)
    _lay_over_api(module, template, expressions)
    for name, resource in template["Resources"].items():
        if name in given or resource["Type"] in functions.TYPES or _chalices(name, ids):
            continue
        if resource["Type"] not in resources.KINDS:
            raise PackagingError(f"Terraform has nothing for {resource['Type']}, which {name} is")
        kind = resources.KINDS[resource["Type"]]
        arguments = resources.arguments(name, resource, expressions) | _waits(resource, template)
        if alias := _ALIAS.fullmatch(str(arguments.get("function_name"))):
            arguments |= {
                "function_name": f"${{{alias[1]}.function_name}}",
                "qualifier": f"${{{alias[1]}.name}}",
            }
        made.setdefault(kind.type, {})[snake(name)] = arguments
        for policy in resource.get("Properties", {}).get("Policies", ()):
            _add_policy(made, snake(name), policy, expressions)
    module["variable"] = expressions.variables
    return module


def _renamed(chalice: dict[str, Any]) -> dict[str, Any]:
    """Chalice's module for the provider's version 6: its regions are called otherwise there."""
    text = json.dumps(chalice).replace(
        "data.aws_region.chalice.name", "data.aws_region.chalice.region"
    )
    module: dict[str, Any] = json.loads(text)
    module["terraform"] = _VERSIONS
    del module["data"]["null_data_source"]
    return module


def _names(template: Mapping[str, Any], given: set[str]) -> dict[str, str]:
    """Expressions for what may be taken of the resources that infra/ makes by itself."""
    found = {
        "RestAPI": "aws_api_gateway_rest_api.rest_api.id",
        "RestAPI.RootResourceId": "aws_api_gateway_rest_api.rest_api.root_resource_id",
    }
    for name, resource in template["Resources"].items():
        kind = resources.KINDS.get(resource["Type"])
        if kind is None or name in given:
            continue
        address = f"{kind.type}.{snake(name)}"
        for attribute, argument in {"": kind.ref, **kind.attributes}.items():
            if "Condition" in resource:
                found[f"{name}.{attribute}".rstrip(".")] = f"one({address}[*].{argument})"
            else:
                found[f"{name}.{attribute}".rstrip(".")] = f"{address}.{argument}"
    return found


def _chalices(name: str, ids: Mapping[str, str]) -> bool:
    """Whether Chalice's module has this already: functions' roles, and the API's permission."""
    return name == "APIHandlerInvokePermission" or functions.role_of(name, ids) is not None


def _waits(resource: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Terraform's `depends_on`, where the template says that one is needed."""
    wanted = resource.get("DependsOn", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    kinds = {name: template["Resources"][name]["Type"] for name in names}
    addresses = [f"{resources.KINDS[kind].type}.{snake(name)}" for name, kind in kinds.items()]
    return {"depends_on": addresses} if addresses else {}


def _add_policy(
    made: dict[str, Any], role: str, policy: Mapping[str, Any], expressions: Expressions
) -> None:
    document = expressions.expression(policy["PolicyDocument"])
    made.setdefault("aws_iam_role_policy", {})[f"{role}_{snake(policy['PolicyName'])}"] = {
        "name": expressions.value(policy["PolicyName"]),
        "role": f"${{aws_iam_role.{role}.id}}",
        "policy": f"${{jsonencode({document})}}",
    }


def _lay_over_api(
    module: dict[str, Any], template: Mapping[str, Any], expressions: Expressions
) -> None:
    made = module["resource"]
    properties = template["Resources"]["RestAPI"]["Properties"]
    (api,) = made["aws_api_gateway_rest_api"]
    body = {**properties["DefinitionBody"]}
    answers = properties.get("GatewayResponses")
    if answers:
        body["x-amazon-apigateway-gateway-responses"] = {
            kind: _gateway_response(one) for kind, one in answers.items()
        }
    module["locals"] = {"api": expressions.value(body)}
    made["aws_api_gateway_rest_api"][api]["body"] = "${jsonencode(local.api)}"
    if "Name" in properties:
        made["aws_api_gateway_rest_api"][api]["name"] = expressions.value(properties["Name"])
    made["aws_api_gateway_deployment"] = {
        api: {
            "rest_api_id": f"${{aws_api_gateway_rest_api.{api}.id}}",
            "triggers": {"body": "${sha1(jsonencode(local.api))}"},
            "lifecycle": {"create_before_destroy": True},
        }
    }
    stage: dict[str, Any] = {
        "rest_api_id": f"${{aws_api_gateway_rest_api.{api}.id}}",
        "deployment_id": f"${{aws_api_gateway_deployment.{api}.id}}",
        "stage_name": properties["StageName"],
        "xray_tracing_enabled": expressions.value(properties.get("TracingEnabled", False)),
        **_waits(template["Resources"]["RestAPI"], template),
    }
    if "AccessLogSetting" in properties:
        log = properties["AccessLogSetting"]
        stage["access_log_settings"] = {
            "destination_arn": expressions.value(log["DestinationArn"]),
            "format": expressions.value(log["Format"]),
        }
    made["aws_api_gateway_stage"] = {api: stage}
    for number, one in enumerate(properties.get("MethodSettings", ())):
        settings = {snake(k): expressions.value(v) for k, v in one.items()}
        path = settings.pop("resource_path", "/*"), settings.pop("http_method", "*")
        made.setdefault("aws_api_gateway_method_settings", {})[f"{api}_{number}"] = {
            "rest_api_id": f"${{aws_api_gateway_rest_api.{api}.id}}",
            "stage_name": f"${{aws_api_gateway_stage.{api}.stage_name}}",
            "method_path": "/".join(path).replace("//", "/").lstrip("/"),
            "settings": settings,
        }
    module["output"] = {
        "ApiUrl": {"value": f"${{aws_api_gateway_stage.{api}.invoke_url}}"},
        "RestAPIId": {"value": f"${{aws_api_gateway_rest_api.{api}.id}}"},
    }
    if "aws_lambda_function_url" in made:
        (url,) = made["aws_lambda_function_url"]
        module["output"]["StreamUrl"] = {
            "value": f"${{aws_lambda_function_url.{url}.function_url}}"
        }


def _gateway_response(one: Mapping[str, Any]) -> dict[str, Any]:
    places = {"Headers": "header", "Paths": "path", "QueryStrings": "querystring"}
    parameters = {
        f"gatewayresponse.{places[place]}.{name}": value
        for place, values in one.get("ResponseParameters", {}).items()
        for name, value in values.items()
    }
    made: dict[str, Any] = {}
    if "StatusCode" in one:
        made["statusCode"] = str(one["StatusCode"])
    if parameters:
        made["responseParameters"] = parameters
    if "ResponseTemplates" in one:
        made["responseTemplates"] = one["ResponseTemplates"]
    return made
