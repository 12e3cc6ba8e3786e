"""Makes an expanded template on an emulator: what its CloudFormation makes, then what we make."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from ..account import Account
from ..errors import DeployError
from .kinds import KINDS, MAKERS
from .place import Place
from .values import Made, Values, references

_WAIT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Built:
    """What stands on the emulator."""

    stack: str
    account: Account
    resources: Mapping[str, dict[str, Any]]
    """The expanded template's resources whose condition holds, as written."""
    properties: Mapping[str, dict[str, Any]]
    """The same, with every value worked out."""
    made: Mapping[str, Made]
    absent: Mapping[str, str]
    """Resources that are listed as not emulated, with the reason."""
    outputs: Mapping[str, Any]


def build(
    expanded: dict[str, Any], values: Values, place: Place, say: Callable[[str], None]
) -> Built:
    """Make or update every resource; a type that `kinds.yaml` does not name is refused."""
    resources = {
        name: one
        for name, one in expanded["Resources"].items()
        if "Condition" not in one or values.holds(one["Condition"])
    }
    unknown = sorted({one["Type"] for one in resources.values()} - set(KINDS))
    if unknown:
        raise DeployError(
            f"kinds.yaml does not say how {', '.join(unknown)} is made on an emulator, or why not."
        )
    wanted = {name: _needs(one) & set(resources) for name, one in resources.items()}
    every = references([one.get("Properties", {}) for one in resources.values()])
    every |= references(expanded.get("Outputs", {}))
    absent: dict[str, str] = {}
    properties: dict[str, dict[str, Any]] = {}
    left, round_ = dict(resources), 0
    while left:
        batch = _stack_batch(left, wanted, set(values.made))
        if batch:
            round_ += 1
            _make_stack(f"{place.stack}-{round_}", batch, every, values, place)
        ready = [
            name
            for name, one in left.items()
            if name not in batch
            and KINDS[one["Type"]]["by"] != "stack"
            and wanted[name] <= set(values.made)
        ]
        if not batch and not ready:
            raise DeployError(f"These resources wait for each other: {', '.join(sorted(left))}.")
        for name in ready:
            kind = KINDS[left[name]["Type"]]
            given = values.resolve(left[name].get("Properties", {}))
            if kind["by"] == "absent":
                absent[name] = kind["reason"]
                values.made[name] = _stand_in(name, left[name]["Type"], every, place)
            else:
                values.made[name] = _make(name, left[name]["Type"], given, place)
        for name in (*batch, *ready):
            properties[name] = values.resolve(left.pop(name).get("Properties", {}))
    say(f"{len(resources) - len(absent)} resources stand, {len(absent)} are not emulated.")
    return Built(
        stack=place.stack,
        account=place.account,
        resources=resources,
        properties=properties,
        made=dict(values.made),
        absent=absent,
        outputs={
            name: values.resolve(one["Value"])
            for name, one in expanded.get("Outputs", {}).items()
            if "Condition" not in one or values.holds(one["Condition"])
        },
    )


def _needs(resource: dict[str, Any]) -> set[str]:
    after = resource.get("DependsOn", [])
    named = {after} if isinstance(after, str) else set(after)
    return named | {name for name, _ in references(resource.get("Properties", {}))}


def _stack_batch(
    left: Mapping[str, Any], wanted: Mapping[str, set[str]], made: set[str]
) -> dict[str, dict[str, Any]]:
    """What the emulator's CloudFormation can make by now, all in one stack."""
    batch: dict[str, dict[str, Any]] = {}
    grown = True
    while grown:
        more = {
            name: one
            for name, one in left.items()
            if name not in batch
            and KINDS[one["Type"]]["by"] == "stack"
            and wanted[name] <= made | set(batch)
        }
        batch.update(more)
        grown = bool(more)
    return batch


def _make_stack(
    stack: str,
    batch: Mapping[str, dict[str, Any]],
    every: set[tuple[str, str | None]],
    values: Values,
    place: Place,
) -> None:
    keep = frozenset(batch)
    asked = sorted(
        {(name, None) for name in batch} | {one for one in every if one[0] in batch}, key=str
    )
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Resources": {
            name: {
                "Type": one["Type"],
                "Properties": values.resolve(one.get("Properties", {}), keep),
            }
            for name, one in batch.items()
        },
        "Outputs": {
            f"Value{number}": {
                "Value": {"Ref": name} if attribute is None else {"Fn::GetAtt": [name, attribute]}
            }
            for number, (name, attribute) in enumerate(asked)
        },
    }
    cloudformation = place.account.client("cloudformation")
    found = _put_stack(cloudformation, stack, json.dumps(template))
    outputs = {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", [])}
    for name in batch:
        mine = {
            attribute: outputs[f"Value{number}"]
            for number, (of, attribute) in enumerate(asked)
            if of == name and f"Value{number}" in outputs
        }
        if None not in mine:
            raise DeployError(f"The emulator's CloudFormation made no {name}.")
        ref = mine.pop(None)
        values.made[name] = Made(ref=ref, attributes={str(k): v for k, v in mine.items()})


def _put_stack(cloudformation: Any, stack: str, body: str) -> dict[str, Any]:
    try:
        cloudformation.describe_stacks(StackName=stack)
        put, done = cloudformation.update_stack, "UPDATE_COMPLETE"
    except ClientError:
        put, done = cloudformation.create_stack, "CREATE_COMPLETE"
    try:
        put(StackName=stack, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
    except ClientError as exc:
        if "No updates" not in str(exc):
            raise
    ends = time.monotonic() + _WAIT_SECONDS
    while True:
        found: dict[str, Any] = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]
        if not found["StackStatus"].endswith("_IN_PROGRESS"):
            break
        if time.monotonic() > ends:
            raise DeployError(f"The emulator's stack {stack} is still {found['StackStatus']}.")
        time.sleep(0.5)
    if found["StackStatus"] not in (done, "CREATE_COMPLETE"):
        why = found.get("StackStatusReason", "no reason given")
        raise DeployError(f"The emulator's stack {stack} is {found['StackStatus']}: {why}")
    return found


def _make(name: str, kind: str, properties: dict[str, Any], place: Place) -> Made:
    try:
        return MAKERS[kind](place, name, properties)
    except ClientError as exc:
        raise DeployError(f"The emulator refuses {name} ({kind}): {exc}") from exc


def _stand_in(name: str, kind: str, every: set[tuple[str, str | None]], place: Place) -> Made:
    """Values in place of those of a resource that is not there; each says so."""
    where = f"{place.account.region}:{place.account.id}"
    arn = f"arn:{place.account.partition}:not-emulated:{where}:{kind.split('::')[-1]}:{name}"
    return Made(
        ref=f"not-emulated-{name}",
        attributes={
            attribute: arn if attribute.endswith("Arn") else f"not-emulated-{name}-{attribute}"
            for of, attribute in every
            if of == name and attribute is not None
        },
    )
