"""`scripts/deploy --destroy`: removes a stage; snapshots stay, and what is needed to read them."""

from typing import Any

from botocore.exceptions import ClientError

from .account import Account
from .artifacts import Bucket
from .console import Console
from .rollout import stack_name
from .stacks import Stack


def destroy(account: Account, stage: str, console: Console, *, stack: Stack | None = None) -> None:
    """Ask for the stage's name, then delete all but snapshots; says what is left, and why."""
    stack = stack or Stack(account, stack_name(stage))
    there = stack.describe() is not None
    where = f"{stack.name} in account {account.id}, {account.region}"
    if there:
        console.say(
            f"This deletes {where}: every session, all memory, every key. The database leaves a "
            "snapshot, for which AWS charges."
        )
    else:
        console.say(f"There is no stack {where}. This deletes the code that was uploaded for it.")
    if not console.typed(f"Type the stage's name ({stage}) to go on: ", stage):
        console.say("Nothing was deleted.")
        return
    kept: list[str] = []
    if there:
        resources = _to_look_after(stack.resources())
        _unprotect(account, resources, console)
        console.step(
            f"Deleting {stack.name}; network interfaces of functions take up to 40 minutes"
        )
        stack.delete(console)
        kept = _leftovers(account, resources, console)
    elif gone := stack.last_deleted():
        # whoever deleted it may not have seen its end
        kept = _leftovers(account, _to_look_after(stack.resources(gone)), console)
    console.step("Emptying the artifact bucket")
    bucket = Bucket(account, stage)
    if not bucket.empty():
        kept.append(f"the bucket {bucket.name}, which holds other stages")
    console.step(f"{stack.name} is deleted")
    for one in kept:
        console.say(f"  left: {one}")


def _to_look_after(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is or was there and is not gone without a trace: a database leaves a snapshot."""
    return [
        one
        for one in resources
        if one.get("PhysicalResourceId")
        and (
            one.get("ResourceStatus") != "DELETE_COMPLETE"
            or one["ResourceType"] == "AWS::RDS::DBCluster"
        )
    ]


def _unprotect(account: Account, resources: list[dict[str, Any]], console: Console) -> None:
    rds = account.client("rds")
    for one in resources:
        if one["ResourceType"] != "AWS::RDS::DBCluster":
            continue
        try:
            rds.modify_db_cluster(
                DBClusterIdentifier=one["PhysicalResourceId"],
                DeletionProtection=False,
                ApplyImmediately=True,
            )
            console.say(f"  {one['PhysicalResourceId']} may be deleted now")
        except ClientError as exc:
            if "NotFound" not in exc.response["Error"]["Code"]:
                raise


def _leftovers(account: Account, resources: list[dict[str, Any]], console: Console) -> list[str]:
    """Delete what the stack retains and no snapshot needs; the rest, in words."""
    kept = []
    for one in resources:
        name, kind = one["PhysicalResourceId"], one["ResourceType"]
        if kind == "AWS::RDS::DBCluster":
            kept.append(f"the snapshots of {name} (RDS console, Snapshots, Manual)")
        elif kind == "AWS::KMS::Key":
            kept += _key(account, one["LogicalResourceId"], name)
        elif kind == "AWS::Lambda::LayerVersion" and name.startswith("arn:"):
            _delete_layer(account, name)
    return kept


def _key(account: Account, logical_id: str, name: str) -> list[str]:
    """A key that the stack has deleted itself waits for its end; one that it kept is in use."""
    try:
        state = account.client("kms").describe_key(KeyId=name)["KeyMetadata"]["KeyState"]
    except ClientError as exc:
        if exc.response["Error"]["Code"] != "NotFoundException":
            raise
        return []
    if state == "PendingDeletion":
        return []
    return [
        f"the KMS key {name} ({logical_id}): without it a snapshot, or what tenants sealed in it, "
        "never opens again. When no snapshot is wanted any more: "
        f"aws kms schedule-key-deletion --key-id {name}"
    ]


def _delete_layer(account: Account, arn: str) -> None:
    """All versions, those of former deployments too: the stack retains each one."""
    layer, aws = arn.rpartition(":")[0], account.client("lambda")
    for page in aws.get_paginator("list_layer_versions").paginate(LayerName=layer):
        for one in page["LayerVersions"]:
            aws.delete_layer_version(LayerName=layer, VersionNumber=one["Version"])
