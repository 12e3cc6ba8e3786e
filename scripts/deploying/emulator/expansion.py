"""The template with SAM's types written out, as CloudFormation itself would."""

import copy
import logging
import os
from typing import Any

import boto3

from ..account import Account
from ..errors import DeployError
from .values import Values


def expand(
    template: dict[str, Any], parameters: dict[str, Any], account: Account
) -> dict[str, Any]:
    """Plain CloudFormation; raises DeployError where SAM would refuse the template."""
    # heavy, and only wanted here
    from samtranslator.model.exceptions import InvalidDocumentException
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    # it complains at its end of metrics of its own that no one has asked for
    logging.getLogger("samtranslator").setLevel(logging.ERROR)
    # SAM takes the region from a session of the default kind
    os.environ.setdefault("AWS_DEFAULT_REGION", account.region)
    translator = Translator(
        {}, Parser(), boto_session=boto3.session.Session(region_name=account.region)
    )
    try:
        made: dict[str, Any] = translator.translate(
            copy.deepcopy(template), parameter_values=dict(parameters), feature_toggle=None
        )
    except InvalidDocumentException as exc:
        causes = "; ".join(str(one.message) for one in exc.causes)
        raise DeployError(f"SAM refuses the template: {causes}") from exc
    return made


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
