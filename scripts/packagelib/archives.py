"""Zip files that say only what is in them: no times, no owners, not the order on the disk."""

import stat
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from .bytecode import compile_modules

# the first that a zip file knows
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_zip(target: Path, files: Iterable[tuple[str, bytes, bool]]) -> None:
    """Write (name, content, executable), by name; it appears whole or not at all."""
    unfinished = target.with_name(target.name + ".part")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name, content, executable in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, so that the modes count, wherever this runs
            info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(info, content)
    unfinished.replace(target)


def rewrite_zip(source: Path, target: Path, *, at: str) -> None:
    """Write what another zip file holds, compiled for the place that it will lie at."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(source) as zipped:
        zipped.extractall(folder)
        modes = {one.filename: one.external_attr >> 16 for one in zipped.infolist()}
        compile_modules(Path(folder), at=at)
        names = [
            path.relative_to(folder).as_posix()
            for path in Path(folder).rglob("*")
            if path.is_file()
        ]
        write_zip(
            target,
            [
                (name, (Path(folder) / name).read_bytes(), bool(modes.get(name, 0) & stat.S_IXUSR))
                for name in names
            ],
        )


def zip_folder(folder: Path, target: Path, *, prefix: str) -> None:
    """Write a folder's files under a prefix."""
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            found.append((f"{prefix}/{name}", path.read_bytes(), executable))
    write_zip(target, found)
