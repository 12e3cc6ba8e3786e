"""Makers of the types of IAM, logs, events, alarms, queues' policies and the like."""

import json
from contextlib import suppress
from typing import Any

from .place import Place, call
from .values import Made


def role(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The role with its own policies, and no others that it had."""
    aws = place.client("iam")
    own = properties.get("RoleName") or f"{place.stack}-{name}"
    trust = json.dumps(properties["AssumeRolePolicyDocument"])
    try:
        found = aws.get_role(RoleName=own)["Role"]
        aws.update_assume_role_policy(RoleName=own, PolicyDocument=trust)
    except aws.exceptions.NoSuchEntityException:
        found = aws.create_role(RoleName=own, AssumeRolePolicyDocument=trust)["Role"]
    policies = {one["PolicyName"]: one["PolicyDocument"] for one in properties.get("Policies", [])}
    for old in aws.list_role_policies(RoleName=own)["PolicyNames"]:
        if old not in policies:
            aws.delete_role_policy(RoleName=own, PolicyName=old)
    for policy, document in policies.items():
        aws.put_role_policy(RoleName=own, PolicyName=policy, PolicyDocument=json.dumps(document))
    for arn in properties.get("ManagedPolicyArns", []):
        aws.attach_role_policy(RoleName=own, PolicyArn=arn)
    return Made(ref=own, attributes={"Arn": found["Arn"], "RoleId": found["RoleId"]})


def log_group(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The log group and how long it keeps what it has."""
    aws = place.client("logs")
    own = properties.get("LogGroupName") or f"{place.stack}-{name}"
    with suppress(aws.exceptions.ResourceAlreadyExistsException):
        aws.create_log_group(logGroupName=own)
    if days := properties.get("RetentionInDays"):
        aws.put_retention_policy(logGroupName=own, retentionInDays=int(days))
    where = f"{place.account.region}:{place.account.id}"
    arn = f"arn:{place.account.partition}:logs:{where}:log-group:{own}:*"
    return Made(ref=own, attributes={"Arn": arn})


def metric_filter(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """What is counted in a log group."""
    own = {
        "filterName": properties.get("FilterName") or name,
        "logGroupName": properties["LogGroupName"],
        "filterPattern": properties["FilterPattern"],
        "metricTransformations": [
            {key[0].lower() + key[1:]: value for key, value in one.items()}
            for one in properties["MetricTransformations"]
        ],
    }
    call(place.client("logs"), "put_metric_filter", own)
    return Made(ref=own["filterName"], parts=(own["logGroupName"], own["filterName"]))


def rule(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The rule and what it wakes."""
    aws = place.client("events")
    own = {"Name": f"{place.stack}-{name}", **properties}
    if "EventPattern" in own:
        own["EventPattern"] = json.dumps(own["EventPattern"])
    arn = call(aws, "put_rule", own)["RuleArn"]
    call(aws, "put_targets", {"Targets": properties.get("Targets", [])}, Rule=own["Name"])
    return Made(ref=own["Name"], attributes={"Arn": arn})


def alarm(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """An alarm on a metric, or on several."""
    own = {"AlarmName": f"{place.stack}-{name}", **properties}
    aws = place.client("cloudwatch")
    call(aws, "put_metric_alarm", own)
    arn = aws.describe_alarms(AlarmNames=[own["AlarmName"]])["MetricAlarms"][0]["AlarmArn"]
    return Made(ref=own["AlarmName"], attributes={"Arn": arn})


def dashboard(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The dashboard, whose body must be JSON."""
    own = {"DashboardName": f"{place.stack}-{name}", **properties}
    json.loads(own["DashboardBody"])
    call(place.client("cloudwatch"), "put_dashboard", own)
    return Made(ref=own["DashboardName"])


def key(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """A key, found again by its tag, since a key has no name."""
    aws = place.client("kms")
    tag = {"TagKey": "palimpsest:resource", "TagValue": f"{place.stack}/{name}"}
    ids = [one["KeyId"] for one in aws.list_keys(Limit=1000)["Keys"]]
    same = [one for one in ids if tag in aws.list_resource_tags(KeyId=one).get("Tags", [])]
    policy = json.dumps(properties["KeyPolicy"])
    if same:
        aws.put_key_policy(KeyId=same[0], PolicyName="default", Policy=policy)
    else:
        made = aws.create_key(
            Policy=policy, Description=properties.get("Description", ""), Tags=[tag]
        )
        same = [made["KeyMetadata"]["KeyId"]]
    if properties.get("EnableKeyRotation"):
        aws.enable_key_rotation(KeyId=same[0])
    found = aws.describe_key(KeyId=same[0])["KeyMetadata"]
    return Made(ref=same[0], attributes={"Arn": found["Arn"], "KeyId": same[0]})


def subnet_routes(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """Which routes a subnet has."""
    aws = place.client("ec2")
    of = [{"Name": "association.subnet-id", "Values": [properties["SubnetId"]]}]
    for table in aws.describe_route_tables(Filters=of)["RouteTables"]:
        for one in table["Associations"]:
            if one.get("SubnetId") == properties["SubnetId"]:
                return Made(ref=one["RouteTableAssociationId"])
    return Made(ref=call(aws, "associate_route_table", properties)["AssociationId"])


def subscription(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """Who is told what a topic is told."""
    found = call(place.client("sns"), "subscribe", properties, ReturnSubscriptionArn=True)
    return Made(ref=found["SubscriptionArn"])


def topic_policy(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """Who may tell these topics something."""
    policy = json.dumps(properties["PolicyDocument"])
    for topic in properties["Topics"]:
        place.client("sns").set_topic_attributes(
            TopicArn=topic, AttributeName="Policy", AttributeValue=policy
        )
    return Made(ref=properties["Topics"][0])


def queue_policy(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """Who may do what with these queues."""
    policy = json.dumps(properties["PolicyDocument"])
    for queue in properties["Queues"]:
        place.client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
    return Made(ref=properties["Queues"][0])


def egress(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """A rule of what a security group lets out."""
    aws, group = place.client("ec2"), properties["GroupId"]
    port = {
        key: int(properties[key])
        for key in ("FromPort", "ToPort")
        if properties.get(key) is not None
    }
    permission: dict[str, Any] = {"IpProtocol": str(properties["IpProtocol"]), **port}
    if other := properties.get("DestinationSecurityGroupId"):
        permission["UserIdGroupPairs"] = [{"GroupId": other}]
    if lists := properties.get("DestinationPrefixListId"):
        permission["PrefixListIds"] = [{"PrefixListId": lists}]
    if block := properties.get("CidrIp"):
        permission["IpRanges"] = [{"CidrIp": block}]
    try:
        aws.authorize_security_group_egress(GroupId=group, IpPermissions=[permission])
    except aws.exceptions.ClientError as exc:
        if exc.response["Error"]["Code"] != "InvalidPermission.Duplicate":
            raise
    return Made(ref=group)
