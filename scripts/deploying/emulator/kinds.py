"""What is made by whom, and how it is looked for: `kinds.yaml`, and the makers by type."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from botocore.exceptions import BotoCoreError, ClientError

from . import databases, functions, gateways, others
from .place import Place, call
from .values import Made

KINDS: Final[dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8")
)

Maker = Callable[[Place, str, dict[str, Any]], Made]

MAKERS: Final[Mapping[str, Maker]] = {
    "AWS::ApiGateway::Account": gateways.account,
    "AWS::ApiGateway::Deployment": gateways.deployment,
    "AWS::ApiGateway::GatewayResponse": gateways.gateway_response,
    "AWS::ApiGateway::RestApi": gateways.rest_api,
    "AWS::ApiGateway::Stage": gateways.stage,
    "AWS::CloudWatch::Alarm": others.alarm,
    "AWS::CloudWatch::Dashboard": others.dashboard,
    "AWS::EC2::SecurityGroupEgress": others.egress,
    "AWS::EC2::SubnetRouteTableAssociation": others.subnet_routes,
    "AWS::Events::Rule": others.rule,
    "AWS::IAM::Role": others.role,
    "AWS::KMS::Key": others.key,
    "AWS::Lambda::Alias": functions.alias,
    "AWS::Lambda::EventInvokeConfig": functions.event_invoke,
    "AWS::Lambda::EventSourceMapping": functions.event_source,
    "AWS::Lambda::Function": functions.function,
    "AWS::Lambda::LayerVersion": functions.layer,
    "AWS::Lambda::Permission": functions.permission,
    "AWS::Lambda::Url": functions.url,
    "AWS::Lambda::Version": functions.version,
    "AWS::Logs::LogGroup": others.log_group,
    "AWS::Logs::MetricFilter": others.metric_filter,
    "AWS::RDS::DBCluster": databases.cluster,
    "AWS::RDS::DBClusterParameterGroup": databases.cluster_parameters,
    "AWS::RDS::DBInstance": databases.instance,
    "AWS::RDS::DBProxy": databases.proxy,
    "AWS::RDS::DBProxyTargetGroup": databases.proxy_targets,
    "AWS::RDS::DBSubnetGroup": databases.subnets,
    "AWS::SNS::Subscription": others.subscription,
    "AWS::SNS::TopicPolicy": others.topic_policy,
    "AWS::SQS::QueuePolicy": others.queue_policy,
}


def is_there(place: Place, kind: str, made: Made, properties: Mapping[str, Any]) -> bool:
    """Whether the service itself knows the thing; what CloudFormation said is not asked."""
    service, operation, given, *found = KINDS[kind]["seen"]
    try:
        answer = call(place.client(service), operation, _put(given, made, properties))
    except (ClientError, BotoCoreError):
        return False
    if found and not answer.get(found[0]):
        return False
    if kind == "AWS::Lambda::Permission":
        return _has_statement(answer, made)
    if kind == "AWS::Logs::LogGroup":
        return any(one["logGroupName"] == made.ref for one in answer["logGroups"])
    return True


def _put(given: Any, made: Made, properties: Mapping[str, Any]) -> Any:
    if isinstance(given, dict):
        filled = {key: _put(one, made, properties) for key, one in given.items()}
        return {key: one for key, one in filled.items() if one != ""}
    if isinstance(given, list):
        return [_put(one, made, properties) for one in given]
    if not isinstance(given, str) or not given.startswith("@"):
        return given
    if given == "@":
        return made.ref
    if given == "@GroupId or @":
        return made.attributes.get("GroupId", made.ref)
    name = given[1:]
    return made.parts[int(name)] if name.isdigit() else properties[name]


def _has_statement(answer: Mapping[str, Any], made: Made) -> bool:
    statements = json.loads(answer["Policy"])["Statement"]
    return any(one["Sid"] == made.ref for one in statements)
