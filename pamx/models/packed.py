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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pamx
from pamx.errors import ModelError, NativeError
from pamx.models.cache_dir import cache_root, locks_dir
from pamx.models.file_facts import file_facts
from pamx.models.notice import say
from pamx.models.packed_file import DamagedFileError, Part, Table, checksum, read_table, write

if TYPE_CHECKING:
    from pamx.native.matrices import Memory as NativeMemory

__all__ = [
    "Memory",
    "Place",
    "WeightFile",
    "fingerprint",
    "forget",
    "kept_bytes",
    "kept_table",
    "limit_from_environment",
    "open_weights",
]

_SUFFIX = ".weights"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Memory(Protocol):
    """Memory that holds packed matrices: that of the process, or a mapped file's."""

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes, without a copy; the memory must outlive what is returned."""
        ...


M = TypeVar("M", bound=Memory)


@dataclass(frozen=True)
class Place(Generic[M]):
    """A packed matrix.

    Attributes:
        format: What its bytes mean, in numbers.
        memory, offset, size: Where they lie, in bytes.
    """

    format: tuple[int, ...]
    memory: M
    offset: int
    size: int


class WeightFile(Generic[M]):
    """The packed matrices of one model, from one start to the next.

    Opening starts to check the bytes against their checksums on a thread of its own, which also
    brings them into memory; a matrix is handed out only once it has passed.

    Args:
        folder: The model's folder.
        made_from: See `fingerprint`.
        map_file: Maps a file of exactly so many bytes, read-only; raises NativeError if it cannot.
        progress: Whether notes may go to a terminal.

    Raises:
        ModelError: PAMX_WEIGHT_CACHE is neither a size nor 0.
    """

    def __init__(
        self,
        folder: Path,
        made_from: str,
        map_file: Callable[[Path, int], M],
        *,
        progress: bool = True,
    ) -> None:
        self._limit = limit_from_environment()
        self._model = str(folder.resolve())
        self._made_from = made_from
        self._progress = progress
        self._file = _file_of(self._model, made_from)
        self._used: dict[str, tuple[tuple[int, ...], Place[M]]] = {}
        self._changed = False
        self._writer: threading.Thread | None = None
        self._failure = ""
        self._table: Table | None = None
        self._memory: M | None = None
        self._sound: dict[str, Future[bool]] = {}
        if self._limit != 0:
            self._open(map_file)

    def find(self, key: str, source: tuple[int, ...]) -> Place[M] | None:
        """A matrix of the file, or None if that does not have it whole.

        Args:
            key: Its name in the model.
            source: What it must have been packed from, in numbers.
        """
        entry = self._table.entries.get(key) if self._table else None
        if entry is None or entry.source != source or not self._sound[key].result():
            return None
        assert self._memory is not None
        place = Place(entry.format, self._memory, entry.offset, entry.size)
        self._used[key] = source, place
        return place

    def size(self, key: str, source: tuple[int, ...]) -> int | None:
        """Bytes of a matrix of the file, which may yet prove damaged; None if it lacks it."""
        entry = self._table.entries.get(key) if self._table else None
        return entry.size if entry is not None and entry.source == source else None

    def keep(self, key: str, source: tuple[int, ...], place: Place[M]) -> None:
        """Has `save` write a matrix that `find` did not have."""
        if self._limit != 0:
            self._used[key] = source, place
            self._changed = True

    def save(self) -> None:
        """Starts to write the file anew, on a thread, if there is something to keep."""
        used, self._used = self._used, {}
        if not self._changed:
            return
        self._changed = False
        self._writer = threading.Thread(
            target=self._write, args=(used,), name="pamx-keep", daemon=True
        )
        self._writer.start()

    def close(self) -> None:
        """Waits until what `save` began is written; not to have written it is no error.

        A process that ends without this leaves a part under another name, which is never read.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure:
            say(f"The packed weights were not kept: {self._failure}.", self._progress)
            self._failure = ""

    def _open(self, map_file: Callable[[Path, int], M]) -> None:
        try:
            table = read_table(self._file)
            if (table.model, table.fingerprint) != (self._model, self._made_from):
                return
            memory = map_file(self._file, table.size)
        except (OSError, DamagedFileError, NativeError):
            return
        with suppress(OSError):
            os.utime(self._file)  # the limit takes the one that was used longest ago
        self._table, self._memory = table, memory
        self._sound = {key: Future() for key in table.entries}
        work = (table, memory, self._sound)
        threading.Thread(target=_verify, args=work, name="pamx-verify", daemon=True).start()

    def _write(self, used: dict[str, tuple[tuple[int, ...], Place[M]]]) -> None:
        parts = [
            Part(key, source, place.format, place.memory.view(place.offset, place.size))
            for key, (source, place) in used.items()
        ]
        try:
            self._failure = self._replace(parts)
        except OSError as error:
            self._failure = error.strerror or str(error)

    def _replace(self, parts: list[Part]) -> str:
        """Writes the file; returns why not, or ""."""
        from filelock import FileLock, Timeout

        size = sum(part.data.nbytes for part in parts)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        locks_dir().mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(locks_dir() / "packed.lock", timeout=0):
                _tidy(self._model, self._file)
                limit = _half_of_free() if self._limit is None else self._limit
                if size > limit:
                    return f"they take {size:,} bytes and {limit:,} may be used"
                _make_room(limit - size, self._file)
                write(self._file, self._model, self._made_from, parts)
        except Timeout:  # another process is writing, most likely the same
            pass
        return ""


def open_weights(
    folder: Path, config: dict[str, Any], progress: bool
) -> WeightFile[NativeMemory] | None:
    """The weight file of a model, or None where weights are not packed or may change unseen.

    Raises:
        ModelError: PAMX_WEIGHT_CACHE is neither a size nor 0.
    """
    import mlx.core as mx

    from pamx.native.loader import library

    if config.get("model_file"):  # code of its own, which may make other weights at any time
        return None
    if mx.default_device().type != mx.DeviceType.cpu:
        return None
    try:
        native = library()
        made_from = fingerprint(folder, native.build_hash, native.mlx_loaded)
    except (NativeError, OSError):
        return None
    from pamx.native.matrices import Memory

    return WeightFile(folder, made_from, Memory.map, progress=progress)


def kept_table(folder: Path, config: dict[str, Any]) -> Table | None:
    """What is packed already of a model that would be opened here; no weight is read."""
    import mlx.core as mx

    from pamx.native.loader import library

    if config.get("model_file") or mx.default_device().type != mx.DeviceType.cpu:
        return None
    try:
        native = library()
        made_from = fingerprint(folder, native.build_hash, native.mlx_loaded)
        model = str(folder.resolve())
        table = read_table(_file_of(model, made_from))
    except (NativeError, OSError, DamagedFileError, ModelError):
        return None
    return table if (table.model, table.fingerprint) == (model, made_from) else None


def _file_of(model: str, made_from: str) -> Path:
    return _folder() / f"{_stem(model)}-{made_from[:16]}{_SUFFIX}"


def fingerprint(folder: Path, build: str, mlx: str) -> str:
    """Stands for all that packed weights are made from.

    The files count by what the system notes of them: reading tens of gigabytes would take longer
    than what it saves.

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
        "files": [file_facts(name, e.stat()) for name, e in files],
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


def _verify(table: Table, memory: Memory, sound: dict[str, Future[bool]]) -> None:
    for key, entry in sorted(table.entries.items(), key=lambda item: item[1].offset):
        try:
            found = checksum(memory.view(entry.offset, entry.size))
            sound[key].set_result(found == entry.checksum)
        except Exception:  # whoever waits for it must not wait for ever
            sound[key].set_result(False)


def limit_from_environment() -> int | None:
    """Bytes that all files may take, as PAMX_WEIGHT_CACHE says; None: what suits the disk.

    Raises:
        ModelError: it is neither a size nor 0.
    """
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
    used = sum(file.lstat().st_size for file in _files())
    return (shutil.disk_usage(_folder()).free + used) // 2


def _make_room(most: int, replaced: Path) -> None:
    """Deletes files, the one used longest ago first, until the others take at most this."""
    kept = [(f.lstat(), f) for f in _files() if f != replaced]
    kept.sort(key=lambda item: item[0].st_mtime_ns)
    total = sum(facts.st_size for facts, _ in kept)
    for facts, file in kept:
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= facts.st_size
