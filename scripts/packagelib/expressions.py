"""CloudFormation's values as Terraform's: intrinsics become expressions, text keeps its meaning."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import PackagingError

_REFERENCE = re.compile(r"\$\{(!?)([^}]*)\}")
# what a module's block says itself
_RESERVED = {
    *("source", "version", "providers", "count", "for_each", "lifecycle", "depends_on", "locals")
}
_PSEUDO = {
    "AWS::Partition": "data.aws_partition.chalice.partition",
    "AWS::Region": "data.aws_region.chalice.region",
    "AWS::AccountId": "data.aws_caller_identity.chalice.account_id",
    "AWS::URLSuffix": "data.aws_partition.chalice.dns_suffix",
    "AWS::NoValue": "null",
}


class Expressions:
    """Translates the values of one template.

    `names` has an expression for what `Ref` ("Queue") and `Fn::GetAtt` ("Queue.Arn") may name;
    `conditions` for those of the template's that are not to be translated.
    """

    def __init__(
        self, names: Mapping[str, str], template: Mapping[str, Any], conditions: Mapping[str, str]
    ) -> None:
        self._names = names
        self._parameters: Mapping[str, Any] = template.get("Parameters", {})
        self._conditions: Mapping[str, Any] = template.get("Conditions", {})
        self._told = conditions
        self.variables: dict[str, dict[str, Any]] = {}
        """What of the template's parameters has been named, as Terraform's variables."""

    def value(self, value: Any) -> Any:
        """A value of Terraform's JSON syntax, in which every text is a template."""
        if isinstance(value, dict):
            name = _intrinsic(value)
            if name == "Fn::Sub":
                return self._template(value[name])
            if name is not None:
                return f"${{{self.expression(value)}}}"
            if any(map(_may_be_nothing, value.values())):
                return f"${{{self.expression(value)}}}"
            return {_escaped(key): self.value(one) for key, one in value.items()}
        if isinstance(value, list):
            if any(map(_may_be_nothing, value)):
                return f"${{{self.expression(value)}}}"
            return [self.value(one) for one in value]
        return _escaped(value) if isinstance(value, str) else value

    def expression(self, value: Any) -> str:
        """An expression of Terraform's language."""
        if isinstance(value, dict):
            name = _intrinsic(value)
            if name is not None:
                return self._FUNCTIONS[name](self, value[name])
            pairs = (f"{_quoted(key)} = {self.expression(one)}" for key, one in value.items())
            made = f"{{{', '.join(pairs)}}}"
            if any(map(_may_be_nothing, value.values())):
                return f"{{for k, v in {made} : k => v if v != null}}"
            return made
        if isinstance(value, list):
            made = f"[{', '.join(map(self.expression, value))}]"
            if any(map(_may_be_nothing, value)):
                return f"[for v in {made} : v if v != null]"
            return made
        return _quoted(value) if isinstance(value, str) else json.dumps(value)

    def condition(self, name: str) -> str:
        """One of the template's conditions, written out."""
        return self._told.get(name) or self.expression(self._conditions[name])

    def _named(self, name: str) -> str:
        known = self._names.get(name) or _PSEUDO.get(name)
        if known is not None:
            return known
        if name in self._parameters:
            variable = snake(name)
            if variable in _RESERVED:
                variable = f"pal_{variable}"
            self.variables[variable] = _variable(variable, self._parameters[name])
            return f"var.{variable}"
        raise PackagingError(f"Terraform has nothing for {name}")

    def _attribute(self, value: str | list[str]) -> str:
        return self._named(value if isinstance(value, str) else ".".join(value))

    def _substituted(self, value: str | list[Any]) -> str:
        parts = self._parts(value)
        if [kind for kind, _ in parts] == ["expression"]:
            return parts[0][1]
        put = {"text": lambda text: _quoted(text)[1:-1], "expression": "${{{}}}".format}
        return f'"{"".join(put[kind](part) for kind, part in parts)}"'

    def _template(self, value: str | list[Any]) -> str:
        put = {"text": _escaped, "expression": "${{{}}}".format}
        return "".join(put[kind](part) for kind, part in self._parts(value))

    def _parts(self, value: str | list[Any]) -> list[tuple[str, str]]:
        """A substitution's texts and expressions, in order."""
        text, own = (value, {}) if isinstance(value, str) else value
        parts, end = [], 0
        for found in _REFERENCE.finditer(text):
            literal, name = found.groups()
            parts.append(("text", text[end : found.start()]))
            if literal:
                parts.append(("text", f"${{{name}}}"))
            elif name in own:
                parts.append(("expression", self.expression(own[name])))
            else:
                parts.append(("expression", self._named(name)))
            end = found.end()
        parts.append(("text", text[end:]))
        return [(kind, part) for kind, part in parts if part]

    def _call(self, function: str, *arguments: Any) -> str:
        return f"{function}({', '.join(map(self.expression, arguments))})"

    def _joined(self, operator: str, values: list[Any]) -> str:
        return f"({operator.join(map(self.expression, values))})"

    def _chosen(self, value: list[Any]) -> str:
        condition, yes, no = value
        return f"({self.condition(condition)} ? {self.expression(yes)} : {self.expression(no)})"

    _FUNCTIONS: Mapping[str, Callable[["Expressions", Any], str]] = {
        "Ref": _named,
        "Condition": condition,
        "Fn::GetAtt": _attribute,
        "Fn::Sub": _substituted,
        "Fn::Join": lambda self, value: self._call("join", *value),
        "Fn::Split": lambda self, value: self._call("split", *value),
        "Fn::Select": lambda self, value: self._call("element", value[1], int(value[0])),
        "Fn::If": _chosen,
        "Fn::Equals": lambda self, value: self._joined(" == ", value),
        "Fn::And": lambda self, value: self._joined(" && ", value),
        "Fn::Or": lambda self, value: self._joined(" || ", value),
        "Fn::Not": lambda self, value: f"!{self.expression(value[0])}",
        "Fn::ToJsonString": lambda self, value: self._call("jsonencode", value),
    }


def snake(name: str) -> str:
    """`PrivateSubnetA` as `private_subnet_a`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _intrinsic(value: dict[str, Any]) -> str | None:
    if len(value) != 1:
        return None
    (name,) = value
    if name in Expressions._FUNCTIONS:
        # a policy's Condition is a map, and CloudFormation's the name of one
        return name if name != "Condition" or isinstance(value[name], str) else None
    if name.startswith("Fn::"):
        raise PackagingError(f"no translation of {name} for Terraform")
    return None


def _may_be_nothing(value: Any) -> bool:
    """Whether CloudFormation may leave a key or a member out for this value."""
    nothing = {"Ref": "AWS::NoValue"}
    if isinstance(value, dict) and set(value) == {"Fn::If"}:
        return any(one == nothing or _may_be_nothing(one) for one in value["Fn::If"][1:])
    return bool(value == nothing)


def _escaped(text: str) -> str:
    return text.replace("${", "$${").replace("%{", "%%{")


def _quoted(text: str) -> str:
    return json.dumps(_escaped(text), ensure_ascii=False)


def _variable(name: str, parameter: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"Number": "number", "CommaDelimitedList": "list(string)"}
    kind = kinds.get(parameter["Type"], "string")
    made: dict[str, Any] = {"type": kind, "nullable": False}
    if "Description" in parameter:
        made["description"] = " ".join(parameter["Description"].split())
    if "Default" in parameter:
        default = parameter["Default"]
        if kind == "list(string)":
            made["default"] = [one for one in str(default).split(",") if one]
        else:
            made["default"] = default if kind == "number" else str(default)
    if parameter.get("NoEcho"):
        made["sensitive"] = True
    made["validation"] = [
        {"condition": f"${{{condition}}}", "error_message": message}
        for condition, message in _rules(f"var.{name}", parameter)
    ]
    return made


def _rules(name: str, parameter: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "AllowedValues" in parameter:
        allowed = [str(one) for one in parameter["AllowedValues"]]
        yield f"contains({json.dumps(allowed)}, tostring({name}))", f"One of {', '.join(allowed)}."
    if "AllowedPattern" in parameter:
        pattern = parameter["AllowedPattern"]
        yield (
            f"can(regex({_quoted(f'^({pattern})$')}, {name}))",
            f"It must match {_escaped(pattern)}.",
        )
    if "MinValue" in parameter:
        yield f"{name} >= {parameter['MinValue']}", f"At least {parameter['MinValue']}."
    if "MaxValue" in parameter:
        yield f"{name} <= {parameter['MaxValue']}", f"At most {parameter['MaxValue']}."
