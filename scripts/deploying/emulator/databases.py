"""Makers of RDS's types; the emulators keep what they are told and run no Postgres."""

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from .place import Place, call
from .values import Made


def cluster(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The cluster; one that is there stays as it is."""
    own = {"DBClusterIdentifier": f"{place.stack}-{name}".lower(), **properties}
    aws, key = place.client("rds"), own["DBClusterIdentifier"]
    found = _found(
        lambda: aws.describe_db_clusters(DBClusterIdentifier=key)["DBClusters"][0],
        lambda: call(aws, "create_db_cluster", own)["DBCluster"],
    )
    # not every emulator keeps the secret that RDS would make
    secret = (found.get("MasterUserSecret") or {}).get("SecretArn") or (
        f"arn:{place.account.partition}:secretsmanager:{place.account.region}:{place.account.id}"
        f":secret:rds!{key}"
    )
    return Made(
        ref=key,
        attributes={
            "DBClusterArn": found["DBClusterArn"],
            "DBClusterResourceId": found["DbClusterResourceId"],
            "Endpoint.Address": found["Endpoint"],
            "Endpoint.Port": str(found.get("Port", 5432)),
            "ReadEndpoint.Address": found.get("ReaderEndpoint", found["Endpoint"]),
            "MasterUserSecret.SecretArn": secret,
        },
    )


def instance(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The instance; one that is there stays as it is."""
    own = {"DBInstanceIdentifier": f"{place.stack}-{name}".lower(), **properties}
    aws, key = place.client("rds"), own["DBInstanceIdentifier"]
    found = _found(
        lambda: aws.describe_db_instances(DBInstanceIdentifier=key)["DBInstances"][0],
        lambda: call(aws, "create_db_instance", own)["DBInstance"],
    )
    address = (found.get("Endpoint") or {}).get("Address", "")
    arn = found.get("DBInstanceArn", "")
    return Made(ref=key, attributes={"Endpoint.Address": address, "DBInstanceArn": arn})


def subnets(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The subnets that a database may be in; a group that is there stays as it is."""
    own = {"DBSubnetGroupName": f"{place.stack}-{name}".lower(), **properties}
    aws, key = place.client("rds"), own["DBSubnetGroupName"]
    _found(
        lambda: aws.describe_db_subnet_groups(DBSubnetGroupName=key),
        lambda: call(aws, "create_db_subnet_group", own),
    )
    return Made(ref=key)


def cluster_parameters(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The cluster's parameter group; a parameter's new value is put into it."""
    own = {"DBClusterParameterGroupName": f"{place.stack}-{name}".lower(), **properties}
    # the template's words for it differ from the API's
    own["DBParameterGroupFamily"] = own.pop("Family")
    aws, key = place.client("rds"), own["DBClusterParameterGroupName"]
    _found(
        lambda: aws.describe_db_cluster_parameter_groups(DBClusterParameterGroupName=key),
        lambda: call(aws, "create_db_cluster_parameter_group", own),
    )
    return Made(ref=key)


def proxy(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """The proxy; one that is there stays as it is."""
    aws, key = place.client("rds"), properties["DBProxyName"]
    found = _found(
        lambda: aws.describe_db_proxies(DBProxyName=key)["DBProxies"][0],
        # IAM needs no secrets, but moto cannot be without the list of them
        lambda: call(aws, "create_db_proxy", {"Auth": [], **properties})["DBProxy"],
    )
    return Made(
        ref=key,
        attributes={
            "DBProxyArn": found["DBProxyArn"],
            "Endpoint": found["Endpoint"],
            "VpcId": found.get("VpcId", ""),
        },
    )


def proxy_targets(place: Place, name: str, properties: dict[str, Any]) -> Made:
    """What the proxy is in front of."""
    aws = place.client("rds")
    own = {"DBProxyName": properties["DBProxyName"], "TargetGroupName": "default"}
    there = {
        one.get("RdsResourceId") for one in aws.describe_db_proxy_targets(**own).get("Targets", [])
    }
    if not there & set(properties.get("DBClusterIdentifiers", [])):
        call(aws, "register_db_proxy_targets", properties)
    return Made(ref=own["DBProxyName"], attributes={"TargetGroupArn": own["DBProxyName"]})


def _found(
    look: Callable[[], dict[str, Any]], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return look()
    except ClientError as exc:
        if "NotFound" not in exc.response["Error"]["Code"]:
            raise
    except IndexError:
        pass
    return make()
