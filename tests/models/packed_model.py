"""A model of three matrices of plain bytes, whose packed form is the same bytes.

As a script it loads and saves them in the cache of PAMX_HOME: `python packed_model.py MODEL SIZE`.
"""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pamx.models.packed import Place, WeightFile

KEYS = ("a", "b", "c")


@dataclass(frozen=True)
class Bytes:
    data: Any

    def view(self, offset: int, size: int) -> memoryview:
        return memoryview(self.data)[offset : offset + size]


def map_file(file: Path, size: int) -> Bytes:
    with file.open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    assert len(mapping) == size
    return Bytes(mapping)


def true_bytes(key: str, size: int, kind: int) -> bytes:
    return np.random.default_rng([KEYS.index(key), kind]).bytes(size)


def load(
    model: Path, size: int, made_from: str = "f" * 64, kind: int = 1, keys: tuple[str, ...] = KEYS
) -> set[str]:
    """Loads all matrices and saves; returns the keys that came from the file.

    Raises:
        AssertionError: a matrix has wrong bytes.
    """
    weights = WeightFile(model, made_from, map_file)
    mapped = set()
    for key in keys:
        right, source, form = true_bytes(key, size, kind), (kind,), (kind, size)
        if place := weights.find(key, source):
            mapped.add(key)
            assert place.format == form
            assert place.offset % 4096 == 0
            assert bytes(place.memory.view(place.offset, place.size)) == right
        else:
            weights.keep(key, source, Place(form, Bytes(right), 0, size))
    weights.save()
    weights.close()
    return mapped


if __name__ == "__main__":
    print(*load(Path(sys.argv[1]), int(sys.argv[2])), sep="")
