"""Where the pages of preempted sequences wait: memory up to a limit, then a file up to a limit.

A saved sequence is one contiguous run of bytes with a checksum; a file that was cut short or
changed is reported as lost, and its sequence computes its pages again.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from pamx.kv.pool import BlockPool

Bytes = npt.NDArray[np.uint8]

_PREFIX, _LOCK = "pamx-swap-", "lock"


@dataclass
class _Saved:
    size: int
    checksum: int
    data: Bytes | None  # None: in the file, or lost
    path: Path | None
    on_disk: bool  # whose room it takes


class SwapSpace:
    """Saves and restores blocks of a pool.

    Args:
        pool: The pages.
        ram_bytes: Most bytes kept in memory.
        disk_bytes: Most bytes kept in files, with `free_floor` bytes of the disk left free.
        folder: Where a private folder for the files is made; None: the system's place for
            temporary files.
    """

    free_floor = 1 << 30

    def __init__(
        self,
        pool: BlockPool,
        ram_bytes: int = 0,
        disk_bytes: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._pool = pool
        self._ram_left = ram_bytes
        self._disk_left = disk_bytes
        self._parent = folder
        self._folder: Path | None = None
        self._lock: FileLock | None = None
        self._saved: dict[int, _Saved] = {}
        self._reserved: dict[int, tuple[int, bool]] = {}  # id -> bytes, whether on disk
        self.block_bytes = pool.nbytes // pool.num_blocks

    def reserve(self, key: int, blocks: int) -> bool:
        """Keeps room for `blocks` blocks under `key`; False if neither tier has it."""
        size = blocks * self.block_bytes
        if size <= self._ram_left:
            self._ram_left -= size
            self._reserved[key] = size, False
            return True
        if size <= self._disk_left and self._disk_has(size):
            self._disk_left -= size
            self._reserved[key] = size, True
            return True
        return False

    def save(self, key: int, blocks: list[int]) -> None:
        """Copies blocks out of the pool into the room that was reserved for `key`.

        A disk that refuses the bytes loses them: `restore` will say so.
        """
        ids = mx.array(blocks)
        parts = [pages[ids] for layer in self._pool.layers for pages in (layer.keys, layer.values)]
        mx.eval(parts)
        data = np.concatenate([_as_bytes(part) for part in parts])
        _, on_disk = self._reserved.pop(key)
        saved = _Saved(data.size, _checksum(data), None if on_disk else data, None, on_disk)
        self._saved[key] = saved
        if on_disk:
            try:
                saved.path = self._file(key)
                data.tofile(saved.path)
            except OSError:
                _remove(saved.path)

    def restore(self, key: int, blocks: list[int]) -> bool:
        """Copies what was saved under `key` into these blocks and forgets it.

        Returns:
            False if it was lost or damaged; the blocks are then untouched.
        """
        saved = self._saved[key]
        data = saved.data if saved.path is None else _read(saved.path, saved.size)
        intact = data is not None and _checksum(data) == saved.checksum
        self.drop(key)
        if data is None or not intact:
            return False
        ids = mx.array(blocks)
        # Settled first: writing into a pool that is still to be computed would copy it.
        mx.eval([(layer.keys, layer.values) for layer in self._pool.layers])
        start = 0
        try:
            for layer in self._pool.layers:
                for name in ("keys", "values"):
                    pages: mx.array = getattr(layer, name)
                    shape = (len(blocks), *pages.shape[1:])
                    size = int(np.prod(shape)) * pages.dtype.size
                    part = mx.array(data[start : start + size]).view(pages.dtype).reshape(shape)
                    pages[ids] = part
                    start += size
        finally:
            # Also when Ctrl-C falls in between: no step takes a pool that waits for such a write.
            mx.eval([(layer.keys, layer.values) for layer in self._pool.layers])
        return True

    def drop(self, key: int) -> None:
        """Forgets what was saved or reserved under `key`, if anything."""
        saved = self._saved.pop(key, None)
        if saved is not None:
            self._give_back(saved.size, saved.on_disk)
            _remove(saved.path)
        elif key in self._reserved:
            self._give_back(*self._reserved.pop(key))

    def _give_back(self, size: int, on_disk: bool) -> None:
        if on_disk:
            self._disk_left += size
        else:
            self._ram_left += size

    def close(self) -> None:
        """Forgets everything and removes the files."""
        for key in [*self._saved, *self._reserved]:
            self.drop(key)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _file(self, key: int) -> Path:
        if self._folder is None:
            parent = self._parent or Path(tempfile.gettempdir())
            _remove_abandoned(parent)
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = FileLock(self._folder / _LOCK)
            self._lock.acquire()
        return self._folder / f"{key}.kv"

    def _disk_has(self, size: int) -> bool:
        try:
            place = self._parent or Path(tempfile.gettempdir())
            return shutil.disk_usage(place).free - size >= self.free_floor
        except OSError:
            return False


def _remove(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):
            path.unlink()


def _remove_abandoned(parent: Path) -> None:
    """Removes swap folders whose process was killed: nobody holds their lock any more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if (folder / _LOCK).exists():
            with suppress(Timeout, OSError), FileLock(folder / _LOCK, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)


def _as_bytes(array: mx.array) -> Bytes:
    flat = array.flatten()
    return np.array(flat.view(mx.uint8))


def _read(path: Path, size: int) -> Bytes | None:
    try:
        data = np.fromfile(path, np.uint8)
    except OSError:
        return None
    return data if data.size == size else None


def _checksum(data: Bytes) -> int:
    return zlib.crc32(data.data)
