"""The values of an expanded template, of which nothing is made yet."""

from typing import Any

from ..account import Account
from ..errors import DeployError
from .values import Values


def parameter_values(
    template: dict[str, Any], given: dict[str, str], account: Account, stack: str
) -> dict[str, Any]:
    """Parameters as given, else by default, and the pseudo parameters."""
    declared = template.get("Parameters", {})
    if unknown := sorted(set(given) - set(declared)):
        raise DeployError(f"The template has no parameter {', '.join(unknown)}.")
    values = {name: given.get(name, spec.get("Default")) for name, spec in declared.items()}
    if lacking := sorted(name for name, value in values.items() if value is None):
        raise DeployError(f"Pass --param {lacking[0]}=...; it has no default.")
    for name, spec in declared.items():
        if spec["Type"].startswith("List<") or spec["Type"] == "CommaDelimitedList":
            values[name] = [one.strip() for one in str(values[name]).split(",")]
    return {
        **values,
        "AWS::AccountId": account.id,
        "AWS::Partition": account.partition,
        "AWS::Region": account.region,
        "AWS::StackName": stack,
        "AWS::StackId": f"arn:{account.partition}:cloudformation:{account.region}:{account.id}:"
        f"stack/{stack}/local",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::NotificationARNs": [],
    }


def values_of(expanded: dict[str, Any], parameters: dict[str, Any]) -> Values:
    """The expanded template's values, of which nothing is made yet."""
    return Values(
        parameters=parameters,
        conditions=expanded.get("Conditions", {}),
        mappings=expanded.get("Mappings", {}),
    )
