"""Packed weights without the native library: matrices of plain bytes, mapped by Python.

As a script it packs matrices into the cache of PAMX_HOME: `python packed_shelf.py MODEL SIZE`.
"""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pamx.models.packed import PackedWeights

KEYS = ("a", "b", "c")


@dataclass(frozen=True)
class Format:
    kind: int


@dataclass(frozen=True)
class Mapping:
    file: mmap.mmap

    def view(self) -> memoryview:
        return memoryview(self.file)


@dataclass(frozen=True)
class Bytes:
    data: Any
    mapped: bool

    def view(self) -> memoryview:
        return memoryview(self.data)


@dataclass(frozen=True)
class ByteShelf:
    size: int

    def map(self, file: Path, size: int) -> Mapping:
        with file.open("rb") as stream:
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        assert len(mapping) == size
        return Mapping(mapping)

    def matrix(self, format: Format, memory: Mapping, offset: int) -> Bytes:  # noqa: A002, ARG002
        return Bytes(memory.view()[offset : offset + self.size], True)

    def numbers(self, format: Format) -> tuple[int, ...]:  # noqa: A002
        return (format.kind,)


def true_bytes(key: str, size: int, kind: int = 1) -> bytes:
    return np.random.default_rng([KEYS.index(key), kind]).bytes(size)


def load(
    model: Path, size: int, made_from: str = "f" * 64, kind: int = 1, keys: tuple[str, ...] = KEYS
) -> set[str]:
    """Loads all matrices and saves; returns the keys that came from the file.

    Raises:
        AssertionError: a matrix has wrong bytes.
    """
    weights = PackedWeights(model, made_from, ByteShelf(size))
    mapped = set()
    for key in keys:
        right = true_bytes(key, size, kind)
        matrix = weights.matrix(key, Format(kind), lambda right=right: Bytes(right, False))
        assert bytes(matrix.view()) == right
        if matrix.mapped:
            mapped.add(key)
    weights.save()
    return mapped


if __name__ == "__main__":
    print(*load(Path(sys.argv[1]), int(sys.argv[2])), sep="")
