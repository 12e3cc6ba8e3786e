"""Terraform's names for the resources that infra/ makes by itself, property by property.

What is not in the table is an error, so that nothing of the stack is left out unseen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import PackagingError
from .expressions import Expressions, snake

# `json`: the text of a document; `blocks`: nested ones, whose names are turned to snake case;
# `dimensions`: a list of names and values as a map; `only`: the one member of a list
Shape = Literal["value", "json", "blocks", "dimensions", "only"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One type of resource: `ref` and `attributes` are what others take of it."""

    type: str
    ref: str
    arguments: Mapping[str, tuple[str, Shape]]
    attributes: Mapping[str, str] = field(default_factory=dict)
    must_be_named: bool = False
    """CloudFormation makes a name up, and Terraform asks for one."""


def _same(*names: str) -> dict[str, tuple[str, Shape]]:
    return {name: (snake(name), "value") for name in names}


KINDS: Mapping[str, Kind] = {
    "AWS::SQS::Queue": Kind(
        type="aws_sqs_queue",
        ref="url",
        attributes={"Arn": "arn", "QueueName": "name", "QueueUrl": "url"},
        arguments={
            "QueueName": ("name", "value"),
            "VisibilityTimeout": ("visibility_timeout_seconds", "value"),
            "MessageRetentionPeriod": ("message_retention_seconds", "value"),
            "RedrivePolicy": ("redrive_policy", "json"),
            "RedriveAllowPolicy": ("redrive_allow_policy", "json"),
            **_same("SqsManagedSseEnabled", "KmsMasterKeyId"),
        },
    ),
    "AWS::KMS::Key": Kind(
        type="aws_kms_key",
        ref="key_id",
        attributes={"Arn": "arn", "KeyId": "key_id"},
        arguments={
            "KeyPolicy": ("policy", "json"),
            "PendingWindowInDays": ("deletion_window_in_days", "value"),
            **_same("Description", "EnableKeyRotation"),
        },
    ),
    "AWS::Logs::LogGroup": Kind(
        type="aws_cloudwatch_log_group",
        ref="name",
        attributes={"Arn": "arn"},
        arguments={"LogGroupName": ("name", "value"), **_same("RetentionInDays", "KmsKeyId")},
    ),
    "AWS::Logs::MetricFilter": Kind(
        type="aws_cloudwatch_log_metric_filter",
        ref="name",
        must_be_named=True,
        arguments={
            "FilterName": ("name", "value"),
            "FilterPattern": ("pattern", "value"),
            "MetricTransformations": ("metric_transformation", "blocks"),
            **_same("LogGroupName"),
        },
    ),
    "AWS::CloudWatch::Alarm": Kind(
        type="aws_cloudwatch_metric_alarm",
        ref="alarm_name",
        attributes={"Arn": "arn"},
        arguments={
            "OKActions": ("ok_actions", "value"),
            "Dimensions": ("dimensions", "dimensions"),
            "Metrics": ("metric_query", "blocks"),
            **_same(
                *("AlarmName", "AlarmDescription", "AlarmActions", "ActionsEnabled"),
                *("ComparisonOperator", "DatapointsToAlarm", "EvaluationPeriods"),
                *("InsufficientDataActions", "MetricName", "Namespace", "Period"),
                *("ExtendedStatistic", "Statistic", "Threshold", "TreatMissingData", "Unit"),
            ),
        },
    ),
    "AWS::CloudWatch::Dashboard": Kind(
        type="aws_cloudwatch_dashboard",
        ref="dashboard_name",
        arguments=_same("DashboardName", "DashboardBody"),
    ),
    "AWS::SNS::Topic": Kind(
        type="aws_sns_topic",
        ref="arn",
        attributes={"TopicArn": "arn", "TopicName": "name"},
        arguments={
            "TopicName": ("name", "value"),
            **_same("DisplayName", "KmsMasterKeyId"),
        },
    ),
    "AWS::SNS::TopicPolicy": Kind(
        type="aws_sns_topic_policy",
        ref="id",
        arguments={"Topics": ("arn", "only"), "PolicyDocument": ("policy", "json")},
    ),
    "AWS::SNS::Subscription": Kind(
        type="aws_sns_topic_subscription",
        ref="arn",
        arguments=_same("TopicArn", "Protocol", "Endpoint"),
    ),
    "AWS::Lambda::Permission": Kind(
        type="aws_lambda_permission",
        ref="id",
        arguments=_same(
            *("Action", "FunctionName", "FunctionUrlAuthType", "InvokedViaFunctionUrl"),
            *("Principal", "SourceArn", "SourceAccount"),
        ),
    ),
    "AWS::IAM::Role": Kind(
        type="aws_iam_role",
        ref="name",
        attributes={"Arn": "arn"},
        arguments={
            "RoleName": ("name", "value"),
            "AssumeRolePolicyDocument": ("assume_role_policy", "json"),
            **_same("Description", "MaxSessionDuration", "ManagedPolicyArns"),
        },
    ),
    "AWS::ApiGateway::Account": Kind(
        type="aws_api_gateway_account",
        ref="id",
        arguments={"CloudWatchRoleArn": ("cloudwatch_role_arn", "value")},
    ),
}

# said by Terraform's own means, or of no weight there
_ELSEWHERE = {"AWS::IAM::Role": {"Policies"}}


def arguments(name: str, resource: Mapping[str, Any], expressions: Expressions) -> dict[str, Any]:
    """What Terraform's resource says for CloudFormation's."""
    kind = KINDS[resource["Type"]]
    made: dict[str, Any] = {}
    for key, value in resource.get("Properties", {}).items():
        if key == "Tags":
            made["tags"] = expressions.value({one["Key"]: one["Value"] for one in value})
        elif key in kind.arguments:
            argument, shape = kind.arguments[key]
            made[argument] = _shaped(value, shape, expressions)
        elif key not in _ELSEWHERE.get(resource["Type"], ()):
            raise PackagingError(f"Terraform has nothing for {key} of {name}")
    if kind.must_be_named:
        made.setdefault("name", snake(name))
    if "Condition" in resource:
        made["count"] = f"${{{expressions.condition(resource['Condition'])} ? 1 : 0}}"
    if str(resource.get("DeletionPolicy")).startswith("Retain"):
        made["lifecycle"] = {"prevent_destroy": True}
    return made


def _shaped(value: Any, shape: Shape, expressions: Expressions) -> Any:
    if shape == "json":
        return f"${{jsonencode({expressions.expression(value)})}}"
    if shape == "dimensions":
        return expressions.value({one["Name"]: one["Value"] for one in value})
    if shape == "only":
        (value,) = value
    if shape == "blocks":
        return [_block(one, expressions) for one in value]
    return expressions.value(value)


def _block(value: Any, expressions: Expressions) -> Any:
    made: dict[str, Any] = {}
    for key, one in value.items():
        if key == "Dimensions":
            made["dimensions"] = _shaped(one, "dimensions", expressions)
        elif key == "MetricStat":
            metric = one["Metric"]
            rest = {k: v for k, v in one.items() if k != "Metric"}
            made["metric"] = _block({**metric, **rest}, expressions)
        else:
            # those of a metric filter's transformation have its name before them
            made[snake(key).removeprefix("metric_" if "MetricValue" in value else "")] = (
                expressions.value(one)
            )
    return made
