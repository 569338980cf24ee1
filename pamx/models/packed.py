"""Packed weights on disk: packed once, then mapped, so that a start reads no original weight.

One file a model under the cache folder, named after the model's folder and a fingerprint of all
that the bytes were made from: the model's files, this build of pamx, MLX and mlx-lm. It is only
ever a shortcut. A file that is damaged, cut short or out of date is packed again; one that cannot
be written costs a note. PAMX_WEIGHT_CACHE sets the most bytes that all of them may take, such as
8G, or 0 for no files at all; unset, they may take half of the disk space that is free otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pamx
from pamx.errors import ModelError, NativeError
from pamx.models.cache_dir import cache_root, locks_dir
from pamx.models.notice import say
from pamx.models.packed_file import DamagedFileError, Part, Table, checksum, read_table, write

__all__ = ["PackedWeights", "Shelf", "fingerprint", "forget", "kept_bytes"]

_SUFFIX = ".weights"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class MappedMemory(Protocol):
    """Bytes of a file that stay mapped as long as anything uses them."""

    def view(self) -> memoryview: ...


class PackedMatrix(Protocol):
    """A matrix that the kernels can read."""

    def view(self) -> memoryview:
        """Its packed bytes."""
        ...


M = TypeVar("M", bound=PackedMatrix)
F = TypeVar("F")
M_co = TypeVar("M_co", bound=PackedMatrix, covariant=True)
F_contra = TypeVar("F_contra", contravariant=True)


class Shelf(Protocol[F_contra, M_co]):
    """How packed matrices come from mapped files: what the native library offers."""

    def map(self, file: Path, size: int) -> MappedMemory:
        """Maps a file of exactly this size; raises NativeError or OSError."""
        ...

    def matrix(self, format: F_contra, memory: Any, offset: int) -> M_co:  # noqa: A002
        """The matrix at an offset of such a mapping."""
        ...

    def numbers(self, format: F_contra) -> tuple[int, ...]:  # noqa: A002
        """A format as numbers: equal if and only if the bytes mean the same."""
        ...


class PackedWeights(Generic[F, M]):
    """The packed matrices of one model: from its file where that has them, else made and kept.

    Opening starts to check the bytes against their checksums on a thread of its own, which also
    brings them into memory; a matrix is handed out only once it has passed.

    Args:
        folder: The model's folder.
        made_from: See `fingerprint`.
        shelf: Maps files.
        progress: Whether notes may go to a terminal.

    Raises:
        ModelError: PAMX_WEIGHT_CACHE is neither a size nor 0.
    """

    def __init__(
        self, folder: Path, made_from: str, shelf: Shelf[F, M], *, progress: bool = True
    ) -> None:
        self._limit = _limit()
        self._model = str(folder.resolve())
        self._made_from = made_from
        self._shelf = shelf
        self._progress = progress
        self._file = _folder() / f"{_stem(self._model)}-{made_from[:16]}{_SUFFIX}"
        self._parts: dict[str, tuple[tuple[int, ...], M]] = {}
        self._changed = False
        self._table: Table | None = None
        self._memory: MappedMemory | None = None
        self._sound: dict[str, Future[bool]] = {}
        if self._limit != 0:
            self._open()

    def matrix(self, key: str, format: F, make: Callable[[], M]) -> M:  # noqa: A002
        """The matrix of this name and format; made if the file does not have it, or not whole.

        Args:
            key: Its name in the model.
            format: What its bytes must mean.
            make: Packs it from the model's own weights.
        """
        numbers = self._shelf.numbers(format)
        found = self._mapped(key, format, numbers)
        if found is None:
            found = make()
            self._changed = True
        if self._limit != 0:
            self._parts[key] = numbers, found
        return found

    def save(self) -> None:
        """Writes the file anew if a matrix was made; no failure to write is an error."""
        parts, self._parts = self._parts, {}
        if self._limit == 0 or not self._changed:
            return
        self._changed = False
        try:
            self._write([Part(key, numbers, m.view()) for key, (numbers, m) in parts.items()])
        except OSError as error:
            reason = error.strerror or str(error)
            say(f"The packed weights were not kept for the next start: {reason}.", self._progress)

    def _open(self) -> None:
        try:
            table = read_table(self._file)
            if (table.model, table.fingerprint) != (self._model, self._made_from):
                return
            memory = self._shelf.map(self._file, table.size)
        except (OSError, DamagedFileError, NativeError):
            return
        with suppress(OSError):
            os.utime(self._file)  # the limit takes the one that was used longest ago
        self._table, self._memory = table, memory
        self._sound = {key: Future() for key in table.entries}
        work = (table, memory.view(), self._sound)
        threading.Thread(target=_verify, args=work, name="pamx-verify", daemon=True).start()

    def _mapped(self, key: str, format: F, numbers: tuple[int, ...]) -> M | None:  # noqa: A002
        entry = self._table.entries.get(key) if self._table else None
        if entry is None or entry.format != numbers or not self._sound[key].result():
            return None
        try:
            return self._shelf.matrix(format, self._memory, entry.offset)
        except NativeError:  # a table that is whole and yet wrong
            return None

    def _write(self, parts: list[Part]) -> None:
        from filelock import FileLock, Timeout

        size = sum(part.data.nbytes for part in parts)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        locks_dir().mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(locks_dir() / "packed.lock", timeout=0):
                _tidy(self._model, self._file)
                limit = _half_of_free() if self._limit is None else self._limit
                if size > limit:
                    what = f"they take {size:,} bytes and {limit:,} may be used"
                    say(f"The packed weights were not kept: {what}.", self._progress)
                    return
                _make_room(limit - size, self._file)
                write(self._file, self._model, self._made_from, parts)
        except Timeout:  # another process is writing, most likely the same
            return


def fingerprint(folder: Path, build: str, mlx: str) -> str:
    """Stands for all that packed weights are made from.

    The files count by name, size and modification time: reading tens of gigabytes would take
    longer than what it saves.

    Args:
        folder: The model's folder.
        build: Identifies the native library's sources, and so the layout of packed bytes.
        mlx: Version of MLX.

    Raises:
        OSError: the folder cannot be read.
    """
    from importlib.metadata import version

    files = sorted((entry.name, entry) for entry in os.scandir(folder) if entry.is_file())
    facts = {
        "files": [(name, e.stat().st_size, e.stat().st_mtime_ns) for name, e in files],
        "build": build,
        "pamx": pamx.__version__,
        "mlx": mlx,
        "mlx-lm": version("mlx-lm"),  # how it renames and reshapes a checkpoint's weights
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def kept_bytes() -> dict[Path, int]:
    """Bytes of packed weights by the folder of their model."""
    found: dict[Path, int] = {}
    for file in _files():
        with suppress(OSError, DamagedFileError):
            table = read_table(file)
            folder = Path(table.model)
            found[folder] = found.get(folder, 0) + table.size
    return found


def forget(folder: Path) -> int:
    """Deletes the packed weights of a model's folder; returns how many bytes that freed.

    Raises:
        OSError: they cannot be deleted.
    """
    freed = 0
    for file in _files(_stem(str(folder.resolve()))):
        freed += file.stat().st_size
        file.unlink(missing_ok=True)
    return freed


def _verify(table: Table, data: memoryview, sound: dict[str, Future[bool]]) -> None:
    for key, entry in sorted(table.entries.items(), key=lambda item: item[1].offset):
        whole = checksum(data[entry.offset : entry.offset + entry.size]) == entry.checksum
        sound[key].set_result(whole)


def _limit() -> int | None:
    """Bytes that all files may take; None: what suits the disk."""
    text = os.environ.get("PAMX_WEIGHT_CACHE", "").strip()
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)(?:i?B)?", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise ModelError(
            f"PAMX_WEIGHT_CACHE is {text!r}, not a size.",
            "Set it to the most that packed weights may take on disk, such as 8G, to 0 to keep "
            "none, or unset it.",
        )
    return int(match[1]) * _UNITS[match[2].upper()]


def _folder() -> Path:
    return cache_root() / "packed"


def _stem(model: str) -> str:
    return hashlib.sha256(os.fsencode(model)).hexdigest()[:16]


def _files(stem: str = "*") -> Iterable[Path]:
    return sorted(_folder().glob(f"{stem}-*{_SUFFIX}"))


def _tidy(model: str, keep: Path) -> None:
    """Deletes what no start will use again; the lock is held, so no file is being written."""
    for scratch in _folder().glob(f"*{_SUFFIX}.new"):
        scratch.unlink(missing_ok=True)
    for file in _files():
        if file == keep:
            continue
        try:
            owner = read_table(file).model
        except (OSError, DamagedFileError):
            owner = None
        if owner is None or owner == model or not Path(owner).is_dir():
            file.unlink(missing_ok=True)


def _half_of_free() -> int:
    used = sum(file.stat().st_size for file in _files())
    return (shutil.disk_usage(_folder()).free + used) // 2


def _make_room(most: int, replaced: Path) -> None:
    """Deletes files, the one used longest ago first, until the others take at most this."""
    kept = [(f.stat(), f) for f in _files() if f != replaced]
    kept.sort(key=lambda item: item[0].st_mtime_ns)
    total = sum(facts.st_size for facts, _ in kept)
    for facts, file in kept:
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= facts.st_size
