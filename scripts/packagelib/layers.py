"""The two layers: pinned wheels for Lambda's platform, kept in .cache by what they are made of.

Chalice picks the wheels, by the age of the C library in the runtime. Its own layer is made here
too, and handed to it finished: it says with exit code 0 that it left a package out.
"""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chalice.deploy import packager
from chalice.utils import UI, OSUtils

from .archives import zip_folder
from .bytecode import compile_modules
from .errors import WheelsUnavailable

RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_ABI = f"cp{sys.version_info.major}{sys.version_info.minor}"
_SITE = f"python/lib/{RUNTIME}/site-packages"
# part of a layer's name in the cache: a change of how it is made makes it anew
_MAKERS = ("layers.py", "bytecode.py", "archives.py")

# botocore describes 400 services in 18 MB; these are those that functions call
_MODELS = "botocore/data/"
SERVICES = ("bedrock-runtime", "kms", "lambda", "lambda-microvms", "secretsmanager", "sqs")

# what chalicelib/embeddings/wheel.py reads of the package of weights, which is never imported
_WEIGHTS = ("wordllama/weights/l2_supercat_256.safetensors", "wordllama/tokenizers/")
_NUMPY_TOOLS = ("numpy/f2py/", "numpy/distutils/", "numpy/_pyinstaller/", "numpy/doc/")
_FOR_COMPILERS = (".pyi", ".pxd", ".pyx", ".h", ".c", ".cpp", ".a")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Distributions that functions find beside their code."""

    name: str
    pins: tuple[str, ...]
    keep: Callable[[str], bool]


def base(source: Path) -> Layer:
    """What every function imports: requirements.txt."""
    lines = (source / "requirements.txt").read_text().splitlines()
    pins = tuple(line for line in map(_pin, lines) if line)
    return Layer(name="base", pins=pins, keep=_is_called)


def embeddings(source: Path) -> Layer:
    """What makes vectors: the dependency group `embeddings`, less what only its authors need."""
    groups = tomllib.loads((source / "pyproject.toml").read_text())["dependency-groups"]
    return Layer(name="embeddings", pins=tuple(groups["embeddings"]), keep=_embeds)


def make_layer(layer: Layer, cache: Path, *, architecture: str) -> Path:
    """The layer's zip file in the cache, made if it is not there."""
    how = [(Path(__file__).parent / name).read_text() for name in _MAKERS]
    parts = (layer.name, *layer.pins, platform.python_version(), architecture, *how)
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    made = cache / f"{layer.name}-{architecture}-{key}.zip"
    if not made.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            build_layer(layer, Path(folder) / made.name, architecture=architecture)
            (Path(folder) / made.name).replace(made)
    return made


def build_layer(layer: Layer, target: Path, *, architecture: str) -> None:
    """Download the wheels, which pip caches, and zip them as a layer."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(layer.pins) + "\n")
        site = Path(folder) / "site"
        builder = packager.DependencyBuilder(_NoDependencies(), architecture=architecture)
        try:
            builder.build_site_packages(_ABI, str(wanted), str(site))
        except packager.MissingDependencyError as exc:
            names = ", ".join(sorted(one.identifier for one in exc.missing))
            raise WheelsUnavailable(
                f"No wheel runs on Lambda's {RUNTIME} on {architecture}: {names}"
            ) from exc
        except (packager.NoSuchPackageError, packager.PackageDownloadError) as exc:
            raise WheelsUnavailable(f"The package index does not give the pins: {exc}") from exc
        for path in list(site.rglob("*")):
            if path.is_file() and not layer.keep(path.relative_to(site).as_posix()):
                path.unlink()
        compile_modules(site, at=f"/opt/{_SITE}")
        zip_folder(site, target, prefix=_SITE)


class _NoDependencies(OSUtils):
    """pip takes what is pinned and not what that asks for: mcp alone would bring 18 MB unused."""

    def environ(self) -> MutableMapping[str, Any]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return {**own, "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def hand_to_chalice(layer: Path, project: Path, *, architecture: str) -> None:
    """Put the base layer where Chalice looks for one it made earlier of the same requirements."""
    namer = packager.LayerDeploymentPackager(
        OSUtils(), packager.DependencyBuilder(OSUtils()), UI(), architecture=architecture
    )
    place = Path(namer.deployment_package_filename(str(project), RUNTIME))
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(layer, place)


def _pin(line: str) -> str:
    return line.partition("#")[0].strip()


def _compiled(name: str) -> bool:
    return "__pycache__/" in name or name.endswith(".pyc")


def _is_called(name: str) -> bool:
    if _compiled(name):
        return False
    if name.startswith(_MODELS):
        # beside the services' folders lie files that all of them need
        service, _, rest = name.removeprefix(_MODELS).partition("/")
        return not rest or service in SERVICES
    return True


def _embeds(name: str) -> bool:
    if _compiled(name):
        return False
    if name.startswith("wordllama/"):
        return name.startswith(_WEIGHTS)
    return not (
        name.startswith(_NUMPY_TOOLS)
        or name.endswith(_FOR_COMPILERS)
        or "/tests/" in name
        or ".dist-info/sboms/" in name
    )
