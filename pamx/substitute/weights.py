"""Where packed weights come from.

Replacing a model's matrices asks a `WeightStore` for the packed form of each, by the matrix's name
in the model. This one packs anew and keeps the result in memory; another may know it from a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from pamx.native.matrices import MatrixFormat, Memory, narrowest_scale_type, pack


@dataclass(frozen=True)
class SourceWeights:
    """A matrix as a checkpoint has it.

    Attributes:
        weight: uint32 [outputs, inputs * bits / 32], or dense [outputs, inputs].
        scales, biases: [outputs, inputs / group_size], or None if dense.
    """

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None


@dataclass(frozen=True)
class PackedWeights:
    """A matrix in panels: its format, and where in which memory they lie."""

    format: MatrixFormat
    memory: Memory
    offset: int = 0


class WeightStore(Protocol):
    """Gives packed matrices."""

    def matrix(
        self, key: str, wanted: MatrixFormat, make: Callable[[], SourceWeights]
    ) -> PackedWeights:
        """The packed form of a matrix.

        Args:
            key: Names the matrix within the model.
            wanted: What it is, with the scales' or elements' dtype of the checkpoint; the result
                may keep the same values in a smaller one.
            make: Gives the arrays, if they are needed: whoever has the packed form does not call
                it, and the checkpoint's arrays are never read.
        """

    def known_size(self, key: str, wanted: MatrixFormat) -> int | None:
        """Bytes of a matrix's packed form if that is there already; else None."""


class MemoryStore:
    """Packs each matrix into memory of its own."""

    def matrix(
        self,
        key: str,  # noqa: ARG002  # nothing here outlives the process
        wanted: MatrixFormat,
        make: Callable[[], SourceWeights],
    ) -> PackedWeights:
        return pack_source(wanted, make())

    def known_size(self, key: str, wanted: MatrixFormat) -> int | None:  # noqa: ARG002
        return None


def pack_source(wanted: MatrixFormat, source: SourceWeights) -> PackedWeights:
    """Packs a matrix; float32 scales that float16 holds exactly are kept in float16."""
    kept = wanted
    if source.scales is not None and source.biases is not None:
        scale_type = narrowest_scale_type(source.scales, source.biases)
        kept = replace(wanted, scale_type=scale_type)
    memory = Memory.allocate(kept.nbytes)
    pack(kept, source.weight, source.scales, source.biases, memory)
    return PackedWeights(kept, memory)
