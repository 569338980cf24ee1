"""Packed weights from a model's file, and into it what it lacks."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from pamx.models.packed import Place, WeightFile
from pamx.models.packed_file import Table
from pamx.native.matrices import MatrixFormat, Memory
from pamx.substitute.weights import PackedWeights, SourceWeights, pack_source

_DTYPES = (mx.float32, mx.float16, mx.bfloat16)  # by pamx_dtype


class FileStore:
    """A `WeightStore` over a weight file. Whoever opened the file saves and closes it."""

    def __init__(self, file: WeightFile[Memory]) -> None:
        self._file = file

    def matrix(
        self, key: str, wanted: MatrixFormat, make: Callable[[], SourceWeights]
    ) -> PackedWeights:
        source = _numbers(wanted)
        if place := self._file.find(key, source):
            kept = _format(place.format)
            if kept.nbytes == place.size:
                return PackedWeights(kept, place.memory, place.offset)
        made = pack_source(wanted, make())
        kept = made.format
        self._file.keep(key, source, Place(_numbers(kept), made.memory, made.offset, kept.nbytes))
        return made

    def known_size(self, key: str, wanted: MatrixFormat) -> int | None:
        return self._file.size(key, _numbers(wanted))


def known_sizes(table: Table) -> Callable[[str, MatrixFormat], int | None]:
    """Sizes of a weight file's matrices, by name and by what they would be packed from."""

    def size(key: str, wanted: MatrixFormat) -> int | None:
        entry = table.entries.get(key)
        return entry.size if entry and entry.source == _numbers(wanted) else None

    return size


def _numbers(matrix_format: MatrixFormat) -> tuple[int, ...]:
    native = matrix_format.native()
    shape = (native.outputs, native.inputs)
    return (*shape, native.bits, native.group_size, native.scale_type)


def _format(numbers: tuple[int, ...]) -> MatrixFormat:
    outputs, inputs, bits, group_size, scale_type = numbers
    return MatrixFormat(outputs, inputs, bits, group_size, _DTYPES[scale_type])
