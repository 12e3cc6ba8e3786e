"""A stage's CloudFormation stack: what state it is in, change sets, and waiting for them."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from .account import Account
from .console import Console
from .errors import DeployError, explain

_CAPABILITIES: Final = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
_POLL_SECONDS: Final = 3.0
# looks in a row that find no network, each of which has tried for a minute
_BLIND_LOOKS: Final = 20
_GONE: Final = (None, "DELETE_COMPLETE")
_NEW: Final = (*_GONE, "REVIEW_IN_PROGRESS")
_DONE: Final = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_NO_CHANGES: Final = ("didn't contain changes", "No updates are to be performed")


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """What would be changed."""

    name: str
    changes: tuple[Mapping[str, Any], ...]


class StackFailed(DeployError):
    """The stack did not reach what it was to become; CloudFormation has rolled it back."""


class Stack:
    """The stack of a stage; `sleep` waits between two looks."""

    def __init__(
        self, account: Account, name: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.name = name
        self._aws = account.client("cloudformation")
        self._sleep = sleep

    def describe(self) -> dict[str, Any] | None:
        """The stack as it is; None if there is none."""
        try:
            found: dict[str, Any] = self._aws.describe_stacks(StackName=self.name)["Stacks"][0]
        except ClientError as exc:
            if "does not exist" not in str(exc):
                raise
            return None
        return found

    def is_new(self) -> bool:
        """Whether it is still to be made; DeployError if it cannot be deployed to as it is."""
        found = self.describe()
        status = found["StackStatus"] if found else None
        if status in _NEW:
            return True
        if status in _DONE:
            return False
        if status == "UPDATE_ROLLBACK_FAILED":
            raise DeployError(
                f"The last deployment of {self.name} could not be rolled back. See its events for "
                f"the reason, mend it, then run `aws cloudformation continue-update-rollback "
                f"--stack-name {self.name}` and deploy again."
            )
        if status and status.endswith("_IN_PROGRESS"):
            raise DeployError(f"{self.name} is {status}: something else changes it; wait for that.")
        raise DeployError(
            f"{self.name} is {status}: it was never whole and cannot be updated. {self._anew()}"
        )

    def _anew(self) -> str:
        stage = self.name.removeprefix("palimpsest-")
        return f"Remove it with `./scripts/deploy --destroy {stage}` and deploy again."

    def template(self, *, change_set: str | None = None, processed: bool = False) -> str:
        """The template's text; `processed` is after SAM's transform."""
        more = {"ChangeSetName": change_set} if change_set else {}
        body = self._aws.get_template(
            StackName=self.name, TemplateStage="Processed" if processed else "Original", **more
        )["TemplateBody"]
        return body if isinstance(body, str) else json.dumps(body)

    def physical_id(self, logical_id: str) -> str | None:
        """The name that a resource has at AWS; None if the stack has no such one."""
        try:
            found = self._aws.describe_stack_resource(
                StackName=self.name, LogicalResourceId=logical_id
            )["StackResourceDetail"]
        except ClientError as exc:
            if "does not exist" not in str(exc):
                raise
            return None
        return str(found["PhysicalResourceId"]) if found.get("PhysicalResourceId") else None

    def outputs(self) -> dict[str, str]:
        """The outputs by name."""
        found = self.describe() or {}
        return {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", [])}

    def parameters(self) -> dict[str, str]:
        """The parameters' values; those that are not to be shown are asterisks."""
        found = self.describe() or {}
        return {one["ParameterKey"]: one["ParameterValue"] for one in found.get("Parameters", [])}

    def propose(
        self, url: str, parameters: list[dict[str, Any]], *, new: bool, why: str
    ) -> ChangeSet | None:
        """A change set of this template; None if nothing would change."""
        name = f"deploy-{time.time_ns()}"
        self._aws.create_change_set(
            StackName=self.name,
            ChangeSetName=name,
            ChangeSetType="CREATE" if new else "UPDATE",
            TemplateURL=url,
            Parameters=parameters,
            Capabilities=_CAPABILITIES,
            Description=why,
            Tags=[{"Key": "application", "Value": "palimpsest"}],
        )
        while True:
            found = self._aws.describe_change_set(StackName=self.name, ChangeSetName=name)
            if found["Status"] not in ("CREATE_PENDING", "CREATE_IN_PROGRESS"):
                break
            self._sleep(_POLL_SECONDS)
        if found["Status"] == "FAILED":
            reason = found.get("StatusReason", "no reason given")
            self._aws.delete_change_set(StackName=self.name, ChangeSetName=name)
            if any(sign in reason for sign in _NO_CHANGES):
                return None
            raise DeployError(f"CloudFormation refuses the change: {reason}")
        changes = list(found.get("Changes", []))
        while token := found.get("NextToken"):
            found = self._aws.describe_change_set(
                StackName=self.name, ChangeSetName=name, NextToken=token
            )
            changes.extend(found.get("Changes", []))
        return ChangeSet(name=name, changes=tuple(changes))

    def discard(self, change_set: ChangeSet, *, new: bool) -> None:
        """Forget the change set, and the stack that was only made for it."""
        self._aws.delete_change_set(StackName=self.name, ChangeSetName=change_set.name)
        if new:
            self._aws.delete_stack(StackName=self.name)

    def execute(self, change_set: ChangeSet, console: Console) -> None:
        """Make the change and wait for its end; StackFailed if CloudFormation rolled it back."""
        seen = self._events_so_far()
        try:
            self._aws.execute_change_set(StackName=self.name, ChangeSetName=change_set.name)
        except ClientError as exc:
            # as where another deployment was quicker
            raise StackFailed(f"{self.name} was not changed. {explain(exc)}") from exc
        status = self._follow(seen, console)
        if status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            # what is new and failed stays, and keeps a database that is protected
            what_now = "" if status.startswith("UPDATE") else f" Mend that. {self._anew()}"
            raise StackFailed(
                f"{self.name} is {status}; the lines above say which resource failed.{what_now}"
            )

    def delete(self, console: Console) -> None:
        """Delete the stack and wait for it; StackFailed names what would not go."""
        found = self.describe()
        if found is None:
            return
        seen = self._events_so_far()
        stack_id = found["StackId"]
        self._aws.delete_stack(StackName=self.name)
        # a stack that is gone answers to its id only
        status = self._follow(seen, console, stack_id)
        if status != "DELETE_COMPLETE":
            raise StackFailed(
                f"{self.name} is {status}; the lines above say what would not go. Mend that and "
                "run this again."
            )

    def resources(self, stack_id: str | None = None) -> list[dict[str, Any]]:
        """All resources of the stack, or of the one with this id, which may be deleted."""
        pages = self._aws.get_paginator("list_stack_resources").paginate(
            StackName=stack_id or self.name
        )
        return [one for page in pages for one in page["StackResourceSummaries"]]

    def last_deleted(self) -> str | None:
        """The id of the last stack of this name that is gone; AWS knows it for 90 days."""
        pages = self._aws.get_paginator("list_stacks").paginate(
            StackStatusFilter=["DELETE_COMPLETE"]
        )
        found = (one for page in pages for one in page["StackSummaries"])
        return next((one["StackId"] for one in found if one["StackName"] == self.name), None)

    def _follow(self, seen: set[str], console: Console, stack_id: str | None = None) -> str:
        """What state the change ends in; it lasts for longer than networks and logins do."""
        stack, blind = stack_id or self.name, 0
        while True:
            try:
                found = self._aws.describe_stacks(StackName=stack)["Stacks"][0]
                self._tell_events(stack, seen, console)
            except (BotoCoreError, ClientError) as exc:
                blind += 1
                unseen = isinstance(exc, ConnectionError | HTTPClientError)
                if not unseen or blind >= _BLIND_LOOKS:
                    raise DeployError(
                        f"{explain(exc)} What was begun goes on at AWS: wait for its end there."
                    ) from exc
                console.say("  no network; what was begun goes on at AWS")
            else:
                blind, status = 0, str(found["StackStatus"])
                if not status.endswith("_IN_PROGRESS"):
                    return status
            self._sleep(_POLL_SECONDS)

    def _events_so_far(self) -> set[str]:
        page = self._aws.describe_stack_events(StackName=self.name)
        return {one["EventId"] for one in page["StackEvents"]}

    def _tell_events(self, stack: str, seen: set[str], console: Console) -> None:
        fresh: list[dict[str, Any]] = []
        # newest first; what was seen before is not read again
        for page in self._aws.get_paginator("describe_stack_events").paginate(StackName=stack):
            found = [one for one in page["StackEvents"] if one["EventId"] not in seen]
            fresh.extend(found)
            if len(found) < len(page["StackEvents"]):
                break
        for one in reversed(fresh):
            seen.add(one["EventId"])
            reason = one.get("ResourceStatusReason", "")
            told = f": {reason}" if reason and "FAILED" in one["ResourceStatus"] else ""
            console.say(f"  {one['ResourceStatus']:<28} {one['LogicalResourceId']}{told}")


def parameter_list(
    template: Mapping[str, Any], given: Mapping[str, str], before: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Parameters as given, else as they were; what is new takes its default."""
    declared = template.get("Parameters", {})
    if unknown := sorted(set(given) - set(declared)):
        raise DeployError(f"The template has no parameter {', '.join(unknown)}.")
    found: list[dict[str, Any]] = []
    for name, spec in declared.items():
        if name in given:
            found.append({"ParameterKey": name, "ParameterValue": given[name]})
        elif name in before:
            found.append({"ParameterKey": name, "UsePreviousValue": True})
        elif "Default" not in spec:
            raise DeployError(f"Pass --param {name}=...; it has no default.")
    return found


def show(change_set: ChangeSet, console: Console) -> None:
    """The changes as a table; what loses or replaces something first."""
    rows = [_row(one["ResourceChange"]) for one in change_set.changes if "ResourceChange" in one]
    order = {"delete": 0, "replace": 1, "may replace": 2, "change": 3, "make": 4}
    rows.sort(key=lambda row: (order.get(row[0], 9), row[1]))
    console.table(("what", "resource", "type", "for"), rows)


def _row(change: Mapping[str, Any]) -> tuple[str, str, str, str]:
    action = {"Add": "make", "Remove": "delete", "Modify": "change"}.get(
        change["Action"], change["Action"].lower()
    )
    if change["Action"] == "Modify":
        action = {"True": "replace", "Conditional": "may replace"}.get(
            change.get("Replacement", "False"), action
        )
    named = {
        one.get("Target", {}).get("Name") or one.get("Target", {}).get("Attribute", "")
        for one in change.get("Details", [])
    }
    why = ", ".join(sorted(filter(None, named)))
    return action, change["LogicalResourceId"], change["ResourceType"], why
