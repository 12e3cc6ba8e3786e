"""The app as `scripts/package` makes it, and as Lambda lays it out."""

import importlib.util
import json
import os
import platform
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.packagelib import WheelsUnavailable, make
from tests.support.skipping import skip_except_in_ci

ROOT = Path(__file__).parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"python/lib/{PYTHON}/site-packages"
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv", ".pal", ".cache", ".*_cache", ".hypothesis", "__pycache__", "*.pyc"),
    *(".venv-llm", "node_modules", "build", "dist", "deployments", "deployed"),
)


@dataclass(frozen=True, kw_only=True)
class Package:
    """One stage's package."""

    stage: str
    folder: Path
    template: dict[str, Any]

    @property
    def code(self) -> Path:
        return self.folder / "deployment.zip"

    @property
    def layer(self) -> Path:
        """The layer of every function."""
        return self.folder / "layer-deployment.zip"

    def properties(self, resource: str) -> dict[str, Any]:
        properties: dict[str, Any] = self.template["Resources"][resource]["Properties"]
        return properties

    def functions(self) -> dict[str, dict[str, Any]]:
        """The properties of every function, by id."""
        return {
            name: resource["Properties"]
            for name, resource in self.template["Resources"].items()
            if resource.get("Type") == "AWS::Serverless::Function"
        }

    def variables(self, function: str) -> dict[str, Any]:
        """The environment of a function, what all of them have included."""
        shared = self.template["Globals"]["Function"]["Environment"]["Variables"]
        own = self.properties(function).get("Environment", {}).get("Variables", {})
        return {**shared, **own}

    def statements(self, function: str) -> dict[str, dict[str, Any]]:
        """What the role of a function says, by Sid."""
        role, _ = self.properties(function)["Role"]["Fn::GetAtt"]
        (policy,) = self.properties(role)["Policies"]
        return {one["Sid"]: one for one in policy["PolicyDocument"]["Statement"]}

    def may(self, function: str) -> set[tuple[str, str]]:
        """Every action that the role of a function allows, with what on."""
        return {
            (action, self.text(resource))
            for one in self.statements(function).values()
            if one["Effect"] == "Allow"
            for action in one["Action"]
            for resource in (
                one["Resource"] if isinstance(one["Resource"], list) else [one["Resource"]]
            )
        }

    def text(self, value: Any) -> str:
        """A string, with the stage put in for the parameter and all else left as it is named."""
        text = value if isinstance(value, str) else value["Fn::Sub"]
        return str(text if isinstance(text, str) else text[0]).replace("${Stage}", self.stage)


def copy_checkout(place: Path) -> Path:
    """What a fresh clone would hold; nothing is run in it."""
    return shutil.copytree(ROOT, place, ignore=NOT_COPIED, symlinks=True)


def make_package(stage: str, source: Path, folder: Path) -> Package:
    """What `scripts/package` makes of `source`; the layers come from its cache if they can."""
    if importlib.util.find_spec("chalice") is None:
        skip_except_in_ci("chalice is not installed")
    try:
        made = make(stage, folder / "out", source=source)
    except WheelsUnavailable as exc:
        skip_except_in_ci(f"the package index does not give what is pinned: {exc}")
    return Package(stage=stage, folder=made.folder, template=json.loads(made.template.read_text()))


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """The package as Lambda lays it out, and a Python that sees nothing else."""

    task: Path
    layer: Path
    python: Path

    @property
    def packages(self) -> Path:
        return self.layer / SITE

    def environment(self, **more: str) -> dict[str, str]:
        paths = os.pathsep.join([str(self.task), str(self.packages)])
        return {"PATH": os.defpath, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **more}


def unpack(package: Package, folder: Path) -> Unpacked:
    """Lay the code and the layer of every function out in this folder."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        skip_except_in_ci("the layer is built for Linux on x86-64, which this machine is not")
    made = Unpacked(task=folder / "task", layer=folder / "opt", python=folder / "bin" / PYTHON)
    for archive, place in ((package.code, made.task), (package.layer, made.layer)):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(place)
            for item in zipped.infolist():
                (place / item.filename).chmod(item.external_attr >> 16)
    made.python.parent.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)
    # without `site`: neither the virtual environment nor the system's packages
    made.python.write_text(f'#!/bin/sh\nexec "{base}" -S "$@"\n')
    made.python.chmod(0o755)
    return made
