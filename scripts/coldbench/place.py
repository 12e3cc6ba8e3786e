"""What the functions run on: the package as Lambda lays it out, its Python, a database."""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from tests.fakes.openai_server import FakeOpenAI
from tests.support.package import Unpacked, copy_checkout, make_package, unpack
from tests.support.postgres import cluster, fast_folder
from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]

# Lambda's own loop for Python, of which the managed runtime has a copy, and what it imports
RUNTIME = (
    "awslambdaric==4.2.2",
    "simplejson==4.3.0",
    "snapshot-restore-py==1.0.0",
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The unpacked package with its functions' handlers by id, the runtime, and the system."""

    unpacked: Unpacked
    handlers: dict[str, str]
    runtime: Path
    stack: Stack
    provider: FakeOpenAI


@contextmanager
def place(*, bytecode: str) -> Iterator[Place]:
    """All of it, made anew and gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-package-") as package,
        tempfile.TemporaryDirectory(
            prefix="pal-pg-", dir=fast_folder(), ignore_cleanup_errors=True
        ) as data,
    ):
        unpacked, handlers = _unpack(Path(package), bytecode=bytecode)
        with cluster(Path(data), pooled=False) as server, FakeOpenAI() as provider:
            stack = Stack(server.create(), provider.base_url)
            try:
                yield Place(
                    unpacked=unpacked,
                    handlers=handlers,
                    runtime=_runtime(),
                    stack=stack,
                    provider=provider,
                )
            finally:
                stack.close()


def _unpack(folder: Path, *, bytecode: str) -> tuple[Unpacked, dict[str, str]]:
    package = make_package("dev", copy_checkout(folder / "source"), folder / "dev")
    handlers: dict[str, Any] = {name: one["Handler"] for name, one in package.functions().items()}
    unpacked = unpack(package, folder / "lambda")
    for place in (unpacked.task, unpacked.layer):
        if bytecode != "packaged":
            for cache in list(place.rglob("__pycache__")):
                shutil.rmtree(cache)
        if bytecode == "all":
            mode = PycInvalidationMode.UNCHECKED_HASH
            compileall.compile_dir(place, quiet=2, invalidation_mode=mode)
    return unpacked, handlers


def _runtime() -> Path:
    """A folder with the runtime's client, compiled, kept between runs."""
    folder = ROOT / ".cache" / f"runtime-client-{RUNTIME[0].partition('==')[2]}"
    if not folder.exists():
        made = folder.with_suffix(f".{os.getpid()}")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", made]
        subprocess.run([*install, "--only-binary", ":all:", *RUNTIME], check=True)
        made.rename(folder)
    return folder
