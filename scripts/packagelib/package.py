"""A stage's package: the CloudFormation template and the zip files that it names."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import layers, templates, terraform
from .archives import rewrite_zip
from .errors import PackagingError

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache/layers"
# what the template calls the files; Chalice names the first two
CODE, BASE, EMBEDDINGS = "deployment.zip", "layer-deployment.zip", "embeddings-layer.zip"

# Chalice zips whatever lies in chalicelib
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*~", "*.orig", "*.rej")
_CHALICE = "import sys; from chalice.cli import main; sys.exit(main())"


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A stage's package; all files lie in `folder`."""

    stage: str
    architecture: str
    folder: Path
    template: Path
    code: Path
    layers: dict[str, Path]
    """By id: ManagedLayer is every function's, EmbeddingsLayer is of those that embed."""


def make(
    stage: str,
    out: Path,
    *,
    architecture: str | None = None,
    rds_ca: Path | None = None,
    source: Path = ROOT,
    cache: Path = CACHE,
) -> Packaged:
    """Package a checkout for a stage; PackagingError if that cannot be done.

    `architecture` is `x86_64` or `arm64`; None takes .chalice/config.json's. `rds_ca` is the file
    of RDS's certificate authorities, which those functions need that reach the cluster itself.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _copied(source, stage, architecture, rds_ca) as copy:
        zips = _add_layers(copy, out, cache)
        templates.write(_template(copy), out / "sam.json")
        rewrite_zip(copy.made / CODE, out / CODE, at="/var/task")
    return Packaged(
        stage=stage,
        architecture=copy.architecture,
        folder=out,
        template=out / "sam.json",
        code=out / CODE,
        layers=zips,
    )


def make_terraform(
    stage: str,
    out: Path,
    *,
    architecture: str | None = None,
    rds_ca: Path | None = None,
    source: Path = ROOT,
    cache: Path = CACHE,
) -> Packaged:
    """As `make`, but a Terraform module; its template is the generated one of its files."""
    out.mkdir(parents=True, exist_ok=True)
    with _copied(source, stage, architecture, rds_ca) as copy:
        zips = _add_layers(copy, out, cache)
        template = _template(copy)
        # Chalice's module cannot say how long logs are kept, and fails on it
        settings = copy.folder / ".chalice/config.json"
        config = json.loads(settings.read_text())
        settings.write_text(json.dumps(config | {"log_retention_in_days": None}))
        run_chalice(copy.folder, stage, "--pkg-format", "terraform", copy.made.name)
        chalice = json.loads((copy.made / "chalice.tf.json").read_text())
        module = terraform.make_module(chalice, template, source / "infra")
        templates.write(module, out / "palimpsest.tf.json")
        for path in (source / "infra/terraform").glob("*.tf"):
            shutil.copyfile(path, out / path.name)
        rewrite_zip(copy.made / CODE, out / CODE, at="/var/task")
    return Packaged(
        stage=stage,
        architecture=copy.architecture,
        folder=out,
        template=out / "palimpsest.tf.json",
        code=out / CODE,
        layers=zips,
    )


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """What Chalice is run on."""

    source: Path
    folder: Path
    made: Path
    stage: str
    architecture: str


@contextmanager
def _copied(
    source: Path, stage: str, architecture: str | None, rds_ca: Path | None
) -> Iterator[_Copy]:
    """Copy what Chalice reads, and nothing else, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkout"
        shutil.copytree(source / "chalicelib", folder / "chalicelib", ignore=_NOT_COPIED)
        if rds_ca is not None:
            shutil.copyfile(rds_ca, folder / "chalicelib/db/rds-ca.pem")
        for name in ("app.py", "requirements.txt", "pyproject.toml"):
            shutil.copyfile(source / name, folder / name)
        (folder / ".chalice").mkdir()
        for path in (source / ".chalice").glob("*.json"):
            shutil.copyfile(path, folder / ".chalice" / path.name)
        settings = folder / ".chalice/config.json"
        config = json.loads(settings.read_text())
        if stage not in config["stages"]:
            raise PackagingError(f"{stage} is no stage of .chalice/config.json")
        config.setdefault("lambda_architecture", "x86_64")
        if architecture is not None:
            config["lambda_architecture"] = architecture
        settings.write_text(json.dumps(config))
        yield _Copy(
            source=source,
            folder=folder,
            made=folder / "made",
            stage=stage,
            architecture=config["lambda_architecture"],
        )


def _add_layers(copy: _Copy, out: Path, cache: Path) -> dict[str, Path]:
    """Both layers' zip files beside the template, the first of them also for Chalice to take."""
    base = layers.make_layer(layers.base(copy.folder), cache, architecture=copy.architecture)
    second = layers.make_layer(
        layers.embeddings(copy.folder), cache, architecture=copy.architecture
    )
    layers.hand_to_chalice(base, copy.folder, architecture=copy.architecture)
    shutil.copyfile(base, out / BASE)
    shutil.copyfile(second, out / EMBEDDINGS)
    return {"ManagedLayer": out / BASE, "EmbeddingsLayer": out / EMBEDDINGS}


def _template(copy: _Copy) -> dict[str, Any]:
    """Chalice's template for CloudFormation, merged with infra's."""
    merge = copy.folder / "merge.json"
    templates.write(templates.join(copy.source / "infra"), merge)
    run_chalice(copy.folder, copy.stage, "--merge-template", merge.name, copy.made.name)
    template: dict[str, Any] = json.loads((copy.made / "sam.json").read_text())
    templates.settle(
        template, stage=copy.stage, runtime=layers.RUNTIME, architecture=copy.architecture
    )
    return template


def run_chalice(project: Path, stage: str, *arguments: str) -> None:
    """Run `chalice package` on a copy, in an environment that says nothing of this one."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PAL_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", _CHALICE, "package", "--stage", stage, *arguments],
        cwd=project,
        # it writes no call to AWS, but cannot be without a region
        env={**own, "PYTHONDONTWRITEBYTECODE": "1", "AWS_DEFAULT_REGION": "us-east-1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise PackagingError(f"chalice package failed:\n{done.stdout}")
