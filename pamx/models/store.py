"""Converted models in the pamx cache: each is a folder that is complete and current, or absent.

A conversion is written to a temporary folder beside its place, ends with a marker file, and is
then renamed. A lock per model keeps two processes from doing the same work; it is the operating
system's, so a killed process leaves none behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pamx.models.cache_dir import disk_errors, locks_dir, models_dir
from pamx.models.notice import say

__all__ = ["Marker", "current", "delete", "entries", "lock", "publish", "read_marker"]

_MARKER = "pamx.json"
_SCRATCH, _REPLACED = ".new", ".old"


@dataclass(frozen=True)
class Marker:
    """What a converted folder is.

    Attributes:
        name: What the user calls the model.
        source: "built-in" or "gguf".
        key: Identifies the bytes it was converted from and how: source hash, converter, dtype.
        files: File name to size in bytes.
    """

    name: str
    source: str
    key: str
    files: dict[str, int]


def read_marker(folder: Path) -> Marker | None:
    """The marker of a folder whose files are all there and as long as they were; else None."""
    try:
        marker = Marker(**json.loads((folder / _MARKER).read_text("utf-8")))
        whole = all((folder / f).stat().st_size == size for f, size in marker.files.items())
        texts = all(isinstance(t, str) for t in (marker.name, marker.source, marker.key))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return marker if whole and texts else None


def current(slug: str, key: str) -> Path | None:
    """The folder of the converted model ``slug``, if it is complete and has this key."""
    folder = models_dir() / slug
    marker = read_marker(folder)
    return folder if marker and marker.key == key else None


@contextmanager
def lock(slug: str, progress: bool = True) -> Iterator[None]:
    """Hold the lock of one model, waiting for another process if it has it."""
    from filelock import FileLock, Timeout  # which imports asyncio

    with disk_errors(locks_dir()):
        locks_dir().mkdir(parents=True, exist_ok=True)
        held = FileLock(locks_dir() / f"{slug}.lock")
        try:
            held.acquire(timeout=0.5)
        except Timeout:
            say(f"Another pamx is preparing {slug}; waiting for it.", progress)
            held.acquire()
    try:
        yield
    finally:
        held.release()


def publish(slug: str, name: str, source: str, key: str, write: Callable[[Path], None]) -> Path:
    """Run ``write`` on a temporary folder and put the result in place; call under the lock.

    Returns:
        The folder, complete.
    """
    final = models_dir() / slug
    scratch, replaced = models_dir() / _SCRATCH / slug, models_dir() / _REPLACED / slug
    with disk_errors(models_dir()):
        for folder in (scratch, replaced):
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
        scratch.mkdir()
        try:
            write(scratch)
            files = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
            marker = Marker(name, source, key, files)
            (scratch / _MARKER).write_text(json.dumps(asdict(marker), indent=1), "utf-8")
            for path in scratch.iterdir():
                _flush(path)
            if final.exists():
                final.rename(replaced)
            scratch.rename(final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
    return final


def entries() -> list[tuple[Path, Marker]]:
    """Every complete converted model, by folder name."""
    if not models_dir().is_dir():
        return []
    found = [(folder, read_marker(folder)) for folder in sorted(models_dir().iterdir())]
    return [(folder, marker) for folder, marker in found if marker]


def delete(folder: Path) -> None:
    """Delete one converted model; its marker goes first, so that half of it is never used."""
    with disk_errors(models_dir()):
        (folder / _MARKER).unlink()
        shutil.rmtree(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
