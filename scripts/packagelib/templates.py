"""infra/*.yaml as one CloudFormation template, and checks of what Chalice makes with it."""

import json
from pathlib import Path
from typing import Any

import yaml

from .errors import PackagingError

# each file is a template of its own: it may repeat these, and says what it is itself
_SAME_IN_ALL = frozenset({"AWSTemplateFormatVersion", "Transform"})
_DESCRIPTION = "Palimpsest: sessions that stream and memory that lasts."


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms; dates stay text and no key is taken twice."""


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = _mapping(loader, node)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    own = [key for key, _ in node.value]
    for number, key in enumerate(own):
        if key.value in {one.value for one in own[:number]}:
            raise PackagingError(f"{key.value} is there twice{key.start_mark}")
    loader.flatten_mapping(node)
    # keys as they are written: YAML takes `On` for a truth
    return {key.value: loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_multi_constructor("!", _short_form)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(path: Path) -> dict[str, Any]:
    """One template, its short forms and aliases written out."""
    with path.open() as file:
        loader = _Loader(file)
        try:
            loaded = loader.get_single_data()
        except yaml.YAMLError as exc:
            raise PackagingError(f"{path.name} is no YAML: {exc}") from exc
        finally:
            loader.dispose()
    if not isinstance(loaded, dict):
        raise PackagingError(f"{path.name} is no template")
    # aliases are one object in several places, and what is merged into one would be in all
    template: dict[str, Any] = json.loads(json.dumps(loaded))
    return template


def join(folder: Path) -> dict[str, Any]:
    """All templates of a folder as one; two may add to one map, but not say the same thing."""
    joined: dict[str, Any] = {}
    said_by: dict[tuple[str, ...], str] = {}
    for path in sorted(folder.glob("*.yaml")):
        _add(joined, {**load(path), "Description": _DESCRIPTION}, (), path.name, said_by)
    return joined


def _add(
    joined: dict[str, Any],
    more: dict[str, Any],
    at: tuple[str, ...],
    file: str,
    said_by: dict[tuple[str, ...], str],
) -> None:
    for key, value in more.items():
        where = (*at, key)
        if key not in joined:
            joined[key] = value
            said_by[where] = file
        elif _is_map(value) and _is_map(joined[key]):
            _add(joined[key], value, where, file, said_by)
        elif joined[key] != value or where[0] not in {*_SAME_IN_ALL, "Description"}:
            first = next(
                (
                    said_by[where[:end]]
                    for end in range(len(where), 0, -1)
                    if where[:end] in said_by
                ),
                "another file",
            )
            raise PackagingError(f"{'.'.join(where)} is said by {first} and by {file}")


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and not _intrinsics(value)


def _intrinsics(value: dict[str, Any]) -> list[str]:
    # `Condition` is a plain key of resources, and stands alone where it is an intrinsic
    return [
        key
        for key in value
        if key == "Ref" or key.startswith("Fn::") or (key == "Condition" and len(value) == 1)
    ]


def settle(template: dict[str, Any], *, stage: str, runtime: str, architecture: str) -> None:
    """Tie the template to its stage and platform; PackagingError if a part of it means nothing."""
    untyped = [name for name, one in template["Resources"].items() if "Type" not in one]
    if untyped:
        raise PackagingError(f"neither Chalice nor infra makes these: {', '.join(sorted(untyped))}")
    for where, value in _maps(template, ()):
        if _intrinsics(value) and len(value) > 1:
            raise PackagingError(
                f"{'.'.join(where)} has {' and '.join(value)}, one of them too much"
            )
    # the code is of one stage: another's name would give it that one's queues
    declared = template.get("Parameters", {}).get("Stage")
    if declared is not None:
        declared.update(Default=stage, AllowedValues=[stage])
    for one in template["Resources"].values():
        if one["Type"] == "AWS::Serverless::LayerVersion":
            one["Properties"].update(
                CompatibleRuntimes=[runtime], CompatibleArchitectures=[architecture]
            )


def _maps(value: Any, at: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        yield at, value
        for key, one in value.items():
            yield from _maps(one, (*at, str(key)))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _maps(one, (*at, str(number)))


def write(template: dict[str, Any], path: Path) -> None:
    """JSON, which has no aliases, in one order."""
    path.write_text(json.dumps(template, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
