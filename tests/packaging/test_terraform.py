"""`scripts/package --terraform`: a module for Terraform, as far as it shows without Terraform.

Neither Terraform nor its provider can be had from a package index. So what `terraform validate`
would look at is looked at here: that every reference has something declared, that every argument is
known and none is missing, by the provider's own list (version 6.66 of hashicorp/aws, the required
ones true), and that nothing waits for itself.
"""

import graphlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.packagelib import WheelsUnavailable, make_terraform
from scripts.packagelib.templates import join
from tests.support.skipping import skip_except_in_ci

# the first test that needs the layers may have to make them
pytestmark = pytest.mark.timeout(300)

PROVIDER = json.loads(Path(__file__).with_name("provider.json").read_text())
ANYWHERE = {"count", "depends_on", "lifecycle"}

_TEMPLATE = re.compile(r"(?<!\$)\$\{")
_ADDRESS = re.compile(r"(?<![\w./:-])(data\.\w+|aws_\w+|var|local|path)\.([\w-]+)(\[\*\])?")


@dataclass(frozen=True, kw_only=True)
class Module:
    """The generated file, and the folder with all of them."""

    told: dict[str, Any]
    folder: Path

    def resources(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for kind, named in self.told["resource"].items():
            for name, arguments in named.items():
                yield kind, name, arguments

    def variables(self) -> set[str]:
        written = (self.folder / "variables.tf").read_text()
        by_hand = re.findall(r'^variable "(\w+)"', written, re.MULTILINE)
        assert set(by_hand) & set(self.told["variable"]) == set()
        return {*by_hand, *self.told["variable"]}


@pytest.fixture(scope="module")
def module(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Module:
    try:
        made = make_terraform("dev", tmp_path_factory.mktemp("terraform"), source=checkout)
    except WheelsUnavailable as exc:
        skip_except_in_ci(str(exc))
    return Module(told=json.loads(made.template.read_text()), folder=made.folder)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def _addresses(value: Any) -> set[tuple[str, str, bool]]:
    """What a value refers to: kind, name, and whether as one of many."""
    return {
        (kind, name, bool(many))
        for text in _texts(value)
        if _TEMPLATE.search(text)
        for kind, name, many in _ADDRESS.findall(text)
    }


def test_every_reference_has_something_declared(module: Module) -> None:
    """`terraform plan` would stop at the first name that nothing has."""
    declared = {
        *(("var", name) for name in module.variables()),
        *(("local", name) for name in module.told["locals"]),
        *((kind, name) for kind, name, _ in module.resources()),
        *((f"data.{kind}", one) for kind, named in module.told["data"].items() for one in named),
        ("path", "module"),
    }
    asked = {(kind, name) for kind, name, _ in _addresses(module.told)}
    assert asked - declared == set()
    reserved = {"source", "version", "providers", "count", "for_each", "lifecycle", "depends_on"}
    assert module.variables() & {*reserved, "locals"} == set()
    # what is given or told is also used
    assert {("var", name) for name in module.variables()} - asked == set()


def test_what_may_be_missing_is_not_taken_for_there(module: Module) -> None:
    """A module without its optional parts would not be planned."""
    counted = {(kind, name) for kind, name, told in module.resources() if "count" in told}
    assert counted
    for kind, name, many in _addresses(module.told):
        assert many == ((kind, name) in counted), (kind, name)


def test_arguments_are_the_providers(module: Module) -> None:
    """The provider would refuse an argument that it does not know, or miss one."""
    wrong = [
        problem
        for kind, name, told in module.resources()
        for problem in _problems(told, PROVIDER[kind], f"{kind}.{name}")
    ]
    assert wrong == []


def _problems(told: dict[str, Any], known: dict[str, Any], where: str) -> Iterator[str]:
    for key, value in told.items():
        if key in ANYWHERE:
            continue
        if key not in known:
            yield f"{where} has {key}"
        elif isinstance(known[key], dict):
            for block in value if isinstance(value, list) else [value]:
                yield from _problems(block, known[key]["block"], f"{where}.{key}")
    for key, one in known.items():
        if (one["required"] if isinstance(one, dict) else one) and key not in told:
            yield f"{where} has no {key}"


def test_nothing_waits_for_itself(module: Module) -> None:
    """Terraform refuses a circle."""
    waits: dict[tuple[str, str], set[tuple[str, str]]] = {}
    locals_ = {("local", name): value for name, value in module.told["locals"].items()}
    for kind, name, told in module.resources():
        named = {tuple(one.split(".", 1)) for one in told.get("depends_on", ())}
        waits[kind, name] = {(k, n) for k, n, _ in _addresses(told)} | {(a, b) for a, b in named}
    waits |= {key: {(k, n) for k, n, _ in _addresses(value)} for key, value in locals_.items()}
    graphlib.TopologicalSorter(waits).prepare()
    # Lambda refuses a function in a VPC before its role may attach it
    for name in module.told["resource"]["aws_lambda_function"]:
        assert ("aws_iam_role_policy", f"{name}_role") in waits["aws_lambda_function", name]


def test_nothing_of_cloudformation_is_left(module: Module) -> None:
    """A role would allow `${AWS::Partition}`, or a setting would be {"Fn::Sub": …}."""
    left = [text for text in _texts(module.told) if "Fn::" in text or "AWS::" in text]
    assert left == []


def test_functions_are_those_of_the_stack(module: Module, checkout: Path) -> None:
    """Where Terraform is used, a setting, a layer or a whole function would be missing."""
    infra = join(checkout / "infra")
    config = json.loads((checkout / ".chalice/config.json").read_text())
    everywhere = {
        *config["stages"]["dev"]["environment_variables"],
        *infra["Globals"]["Function"]["Environment"]["Variables"],
    }
    told = [one["Properties"] for one in infra["Resources"].values() if "Properties" in one]
    stack = {
        one["FunctionName"]["Fn::Sub"].replace("${Stage}", "${var.stage}"): (
            everywhere | set(one["Environment"]["Variables"]),
            len(one.get("Layers", ["ManagedLayer"])),
        )
        for one in told
        if "Environment" in one
    }
    made = {
        one["function_name"]: (
            set(one["environment"]["variables"]),
            len(one["layers"]),
        )
        for one in module.told["resource"]["aws_lambda_function"].values()
    }
    assert made == stack


def test_streams_of_the_api_go_to_the_streaming_function(module: Module) -> None:
    """Answers would come whole, and be cut off after 29 seconds."""
    integration = module.told["locals"]["api"]["paths"]["/v1/sessions/{session_id}/events"]["get"][
        "x-amazon-apigateway-integration"
    ]
    assert integration["responseTransferMode"] == "STREAM"
    assert "${aws_lambda_alias.stream.arn}/response-streaming-invocations" in integration["uri"]


def test_archives_lie_beside_the_module(module: Module) -> None:
    """Terraform would find nothing to upload."""
    named = {
        name
        for text in _texts(module.told)
        for name in re.findall(r"\$\{path\.module\}/([\w.-]+)", text)
    }
    assert named == {"deployment.zip", "layer-deployment.zip", "embeddings-layer.zip"}
    assert {path.name for path in module.folder.iterdir()} == {
        *named,
        "palimpsest.tf.json",
        "variables.tf",
    }
