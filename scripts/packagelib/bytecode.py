"""Compiled modules beside their sources: Lambda's folders are read-only, so it keeps none itself.

Without them every cold start compiles all that it imports, which is more than half of it. They are
never compared with their sources, whose times a zip file does not keep, and name the place they
will lie at, so that the same sources make the same bytes.
"""

import os
import subprocess
import sys
from pathlib import Path

from .errors import PackagingError


def compile_modules(folder: Path, *, at: str) -> None:
    """Compile every module of a folder, which on Lambda lies at `at`."""
    # without `site`: what else is imported shows in which names are written once
    command = [sys.executable, "-S", "-m", "compileall", "-q", "--invalidation-mode"]
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [*command, "unchecked-hash", "-s", str(folder), "-p", at, str(folder)],
        # the order in which sets of words are written depends on it
        env={**own, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackagingError(f"A module does not compile: {done.stdout.strip()}")
