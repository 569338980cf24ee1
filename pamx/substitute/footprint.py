"""The bytes of a model's weights and the sizes of its rows, read off its modules before any weight.

A model that mlx-lm built lazily has the shapes and types of all its arrays and none of their
bytes. What is said of it here stays true once its matrices are packed: sizes come from the same
formats, and what is packed is decided by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding

from pamx.native.matrices import MatrixFormat
from pamx.substitute.levels import ComputeMode
from pamx.substitute.linear import Packed, packed_formats

# Bytes of a packed matrix, by its name and what it would be packed as; None: not known.
KnownSize = Callable[[str, MatrixFormat], int | None]


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights.

    Attributes:
        packed: Matrices in the kernels' layout.
        dense: What MLX's arrays go on holding.
        original: The checkpoint's arrays for all of it, as MLX reads them.
        largest: The largest of them.
    """

    packed: int
    dense: int
    original: int
    largest: int

    @property
    def resident(self) -> int:
        return self.packed + self.dense


def weights_of(model: Module, mode: ComputeMode, known: KnownSize | None = None) -> Weights:
    """The weights of a model in a mode, packed already or not.

    Args:
        model: An mlx-lm model.
        mode: With "mlx" nothing is packed.
        known: Sizes of matrices that are on disk in packed form. Without them, float32 scales
            count as such, although packing may find that float16 holds them exactly.

    Raises:
        NativeError: the native library cannot be used, and the mode is not "mlx".
    """
    formats = {} if mode == "mlx" else packed_formats(model)
    packed = dense = original = largest = 0
    seen: set[int] = set()
    for name, module in model.named_modules():  # type: ignore[no-untyped-call]
        matrix = formats.get(name)
        names: tuple[str, ...] = ()
        if matrix is not None and id(module) not in seen:
            seen.add(id(module))
            size = known(name, matrix.format) if known else None
            packed += matrix.format.nbytes if size is None else size
            original += matrix.original
            largest = max(largest, matrix.original)
            names = matrix.names
        for key, value in dict.items(module):
            if key in names or key.startswith("_"):
                continue
            for array in _arrays(value):
                if id(array) not in seen:
                    seen.add(id(array))
                    dense += array.nbytes
                    original += array.nbytes
                    largest = max(largest, array.nbytes)
    return Weights(packed, dense, original, largest)


def _arrays(value: Any) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict) and not isinstance(value, Module):
        for item in value.values():
            yield from _arrays(item)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide what a step takes.

    Attributes:
        hidden: Elements of a row between layers.
        widest: Outputs of the widest matrix within a layer.
        vocabulary: Logits of a row.
        item: Bytes of an element.
    """

    hidden: int
    widest: int
    vocabulary: int
    item: int


def shape_of(model: Module) -> Shape:
    """Reads the sizes off a model's matrices and its embedding; nothing is unpacked."""
    modules: list[tuple[str, Module]] = list(model.named_modules())  # type: ignore[no-untyped-call]
    tables = [
        (*_logical(m), _item(m))
        for _, m in modules
        if isinstance(m, Embedding | QuantizedEmbedding)
    ]
    vocabulary, hidden, item = max(tables, default=(0, 0, 4))
    inner = [_logical(m)[0] for name, m in modules if "layers" in name and _is_matrix(m)]
    return Shape(hidden, max(inner, default=hidden), vocabulary, item)


def _is_matrix(module: Module) -> bool:
    weight = dict.get(module, "weight")
    return isinstance(module, Packed) or (isinstance(weight, mx.array) and weight.ndim >= 2)


def _logical(module: Module) -> tuple[int, int]:
    """(outputs, inputs) of a matrix, quantised or not; of the last two axes."""
    weight = dict.get(module, "weight")
    if weight is None:
        packed = vars(module)["_pamx_matrix"].format
        return int(packed.outputs), int(packed.inputs)
    outputs, columns = weight.shape[-2:]
    bits = getattr(module, "bits", 32) if weight.dtype == mx.uint32 else 32
    return int(outputs), int(columns) * 32 // int(bits)


def _item(table: Module) -> int:
    """Bytes of an element of what a lookup gives."""
    if isinstance(table, Packed) and table._pamx_names:
        return int(vars(table)["_pamx_dtype"].size)
    scales = dict.get(table, "scales")
    kept = dict.get(table, "weight") if scales is None else scales
    return 4 if kept is None or kept.dtype == mx.uint8 else int(kept.dtype.size)
