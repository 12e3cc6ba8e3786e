"""What the packaged template says of each function: its environment, and what its role allows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

PARTITION, REGION, ACCOUNT = "aws", "eu-west-1", "123456789012"
_KNOWN = {
    "AWS::Partition": PARTITION,
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::URLSuffix": "amazonaws.com",
}


def arn(service: str, rest: str) -> str:
    """An ARN of this stack's account and region."""
    return f"arn:{PARTITION}:{service}:{REGION}:{ACCOUNT}:{rest}"


@dataclass(frozen=True, kw_only=True)
class Grant:
    """One action on one pattern of resources, as a role has it."""

    sid: str
    action: str
    resource: str

    def covers(self, action: str, resource: str) -> bool:
        return self.action == action and fnmatchcase(resource, self.resource)


@dataclass(frozen=True, kw_only=True)
class Function:
    """One function. `takes` are the ARNs of queues whose messages Lambda gives it."""

    name: str
    variables: Mapping[str, str]
    takes: frozenset[str]
    allowed: tuple[Grant, ...]
    denied: tuple[Grant, ...]

    def may(self, action: str, resource: str) -> bool:
        if any(one.covers(action, resource) for one in self.denied):
            return False
        return any(one.covers(action, resource) for one in self.allowed)


class Stack:
    """A packaged template."""

    def __init__(self, template: Mapping[str, Any], stage: str) -> None:
        self._template, self.stage = template, stage
        self.functions = [
            self._function(name, one["Properties"])
            for name, one in template["Resources"].items()
            if one["Type"] == "AWS::Serverless::Function"
        ]

    def text(self, value: Any) -> str:
        """A string with what is known put in; what only a deployment knows stands as `<name>`."""
        match value:
            case str():
                return value
            case {"Fn::Sub": [str() as text, dict() as more]}:
                return self._sub(text, {name: f"<{name}>" for name in more})
            case {"Fn::Sub": str() as text}:
                return self._sub(text, {})
            case {"Fn::GetAtt": [str() as name, str() as attribute]}:
                return self._sub(f"${{{name}.{attribute}}}", {})
            case {"Ref": str() as name}:
                return self._sub(f"${{{name}}}", {})
        return f"<{value}>"

    def _sub(self, text: str, more: Mapping[str, str]) -> str:
        known = {**_KNOWN, "Stage": self.stage, **more}
        return re.sub(
            r"\$\{([^}]+)\}", lambda found: known.get(found[1], self._made(found[1])), text
        )

    def _made(self, name: str) -> str:
        """The ARN of a queue of the template, by the name it is given there."""
        resource, _, attribute = name.partition(".")
        one = self._template["Resources"].get(resource, {})
        if attribute == "Arn" and one.get("Type") == "AWS::SQS::Queue":
            return arn("sqs", self.text(one["Properties"]["QueueName"]))
        return f"<{name}>"

    def _function(self, name: str, properties: Mapping[str, Any]) -> Function:
        usual = self._template.get("Globals", {}).get("Function", {}).get("Environment", {})
        own = properties.get("Environment", {}).get("Variables", {})
        variables = {**usual.get("Variables", {}), **own}
        role = properties["Role"]["Fn::GetAtt"][0]
        policies = self._template["Resources"][role]["Properties"]["Policies"]
        statements = [s for one in policies for s in one["PolicyDocument"]["Statement"]]
        events = properties.get("Events", {}).values()
        queues = (one["Properties"]["Queue"] for one in events if one["Type"] == "SQS")
        return Function(
            name=name,
            variables={key: self.text(value) for key, value in variables.items()},
            takes=frozenset(map(self.text, queues)),
            allowed=tuple(self._grants(statements, "Allow")),
            denied=tuple(self._grants(statements, "Deny")),
        )

    def _grants(self, statements: list[Any], effect: str) -> Iterator[Grant]:
        for one in statements:
            if one["Effect"] != effect:
                continue
            actions, resources = one["Action"], one["Resource"]
            for action in [actions] if isinstance(actions, str) else actions:
                for resource in resources if isinstance(resources, list) else [resources]:
                    text = self.text(resource)
                    yield Grant(sid=one.get("Sid", ""), action=action, resource=text)
