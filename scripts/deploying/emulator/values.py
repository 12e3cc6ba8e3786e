"""A template's values: intrinsic functions worked out, as far as what they refer to is made."""

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DeployError

_NOTHING = object()
_NAME = re.compile(r"\$\{(?!!)([^}]+)\}")


@dataclass(frozen=True, kw_only=True)
class Made:
    """A resource that exists: what Ref gives, what Fn::GetAtt gives, and its name in parts.

    The parts are for those that no single name identifies.
    """

    ref: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Values:
    """What names stand for; `made` grows as resources are made."""

    parameters: Mapping[str, Any]
    conditions: Mapping[str, Any]
    mappings: Mapping[str, Any]
    made: dict[str, Made] = field(default_factory=dict)

    def holds(self, condition: str) -> bool:
        """Whether a condition of the template is true."""
        if condition not in self.conditions:
            raise DeployError(f"The template has no condition {condition}.")
        return bool(self.resolve(self.conditions[condition]))

    def resolve(self, value: Any, keep: frozenset[str] = frozenset()) -> Any:
        """The value; what refers to one of `keep` stays as it stands in the template."""
        found = self._resolve(value, keep)
        return None if found is _NOTHING else found

    def _resolve(self, value: Any, keep: frozenset[str]) -> Any:
        if isinstance(value, list):
            items = [self._resolve(one, keep) for one in value]
            return [one for one in items if one is not _NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name in _FUNCTIONS or (name in ("Ref", "Condition") and isinstance(inner, str)):
                return self._call(name, inner, keep)
        items_of = {key: self._resolve(one, keep) for key, one in value.items()}
        return {key: one for key, one in items_of.items() if one is not _NOTHING}

    def _call(self, name: str, inner: Any, keep: frozenset[str]) -> Any:
        if name == "Ref":
            return {"Ref": inner} if inner in keep else self._ref(inner)
        if name == "Condition":
            return self.holds(inner)
        if name == "Fn::GetAtt":
            thing, attribute = inner.split(".", 1) if isinstance(inner, str) else inner
            return (
                {name: [thing, attribute]} if thing in keep else self._attribute(thing, attribute)
            )
        if name == "Fn::If":
            chosen = inner[1] if self.holds(inner[0]) else inner[2]
            return self._resolve(chosen, keep)
        if name == "Fn::Sub":
            return self._sub(inner, keep)
        arguments = self._resolve(inner, keep)
        if any(True for _ in _names(arguments)):
            return {name: arguments}
        if name == "Fn::FindInMap":
            return self.mappings[arguments[0]][str(arguments[1])][arguments[2]]
        if name == "Fn::GetAZs":
            region = arguments or self.parameters["AWS::Region"]
            return [f"{region}{zone}" for zone in "abc"]
        return _FUNCTIONS[name](arguments)

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return _NOTHING
        if name in self.parameters:
            return self.parameters[name]
        if name in self.made:
            return self.made[name].ref
        raise DeployError(f"The template refers to {name}, which is not there.")

    def _attribute(self, thing: str, attribute: str) -> Any:
        if thing not in self.made:
            raise DeployError(f"The template refers to {thing}, which is not there.")
        try:
            return self.made[thing].attributes[attribute]
        except KeyError:
            raise DeployError(f"{thing} was made without its attribute {attribute}.") from None

    def _sub(self, inner: Any, keep: frozenset[str]) -> Any:
        text, own = inner if isinstance(inner, list) else (inner, {})
        own = {name: self._resolve(value, keep) for name, value in own.items()}
        left: dict[str, Any] = {}

        def put(match: re.Match[str]) -> str:
            name = match[1].strip()
            if name in own:
                if any(True for _ in _names(own[name])):
                    left[name] = own[name]
                    return match[0]
                return str(own[name])
            if name.split(".")[0] in keep:
                return match[0]
            thing, dot, attribute = name.partition(".")
            return str(self._attribute(thing, attribute) if dot else self._ref(name))

        made = _NAME.sub(put, text)
        if left:
            return {"Fn::Sub": [made, left]}
        return {"Fn::Sub": made} if _NAME.search(made) else made.replace("${!", "${")


def references(value: Any) -> set[tuple[str, str | None]]:
    """All that a value refers to: (name, attribute or None)."""
    return set(_names(value))


def _names(value: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(value, list):
        for one in value:
            yield from _names(one)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if len(value) == 1 and key == "Ref" and isinstance(inner, str):
                yield inner, None
            elif len(value) == 1 and key == "Fn::GetAtt":
                thing, attribute = inner.split(".", 1) if isinstance(inner, str) else inner
                yield thing, attribute
            elif len(value) == 1 and key == "Fn::Sub":
                text, own = inner if isinstance(inner, list) else (inner, {})
                yield from _names(own)
                for name in _NAME.findall(text):
                    thing, dot, attribute = name.strip().partition(".")
                    if name not in own:
                        yield thing, attribute if dot else None
            else:
                yield from _names(inner)


def _cidr(arguments: list[Any]) -> list[str]:
    block, count, *bits = arguments
    network = ipaddress.ip_network(block)
    prefix = network.max_prefixlen - int(bits[0] if bits else 8)
    found = network.subnets(new_prefix=prefix)
    return [str(next(found)) for _ in range(int(count))]


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("Fn::GetAtt", "Fn::If", "Fn::Sub", "Fn::FindInMap", "Fn::GetAZs"), lambda _: 0
    ),
    "Fn::Join": lambda of: of[0].join(str(one) for one in of[1]),
    "Fn::Select": lambda of: of[1][int(of[0])],
    "Fn::Split": lambda of: of[1].split(of[0]),
    "Fn::Base64": lambda of: base64.b64encode(of.encode()).decode(),
    "Fn::Cidr": _cidr,
    "Fn::ToJsonString": lambda of: json.dumps(of),
    "Fn::Equals": lambda of: str(of[0]) == str(of[1]),
    "Fn::Not": lambda of: not of[0],
    "Fn::And": all,
    "Fn::Or": any,
}
