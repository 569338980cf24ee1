"""Replacing a model's linear layers and embeddings by our products over packed weights.

The module keeps its class's name and bias; its weight, scales and biases are packed and the
arrays released, one module after another, so that memory does not double. Whoever reads one of
them (an adapter, a fuse, a save) gets it unpacked, the same bits; whoever assigns one gets the
original module back first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

from pamx.native.matrices import Compute, Matrix, MatrixFormat, embedding, linear
from pamx.substitute.classes import Called, Swaps, on_change
from pamx.substitute.output import output_projections
from pamx.substitute.weights import SourceWeights, WeightStore

_FLOATS = (mx.float32, mx.float16, mx.bfloat16)
_BITS, _GROUPS = (2, 3, 4, 6, 8), (32, 64, 128)
_QUANTIZED = ("weight", "scales", "biases")


class Packed(Called):
    """A linear layer or embedding whose weights are packed."""

    _pamx_matrix: Matrix
    _pamx_as_linear: Callable[[mx.array], mx.array]
    _pamx_unpack: Callable[[], dict[str, mx.array]]
    _pamx_names: tuple[str, ...]  # of the arrays that are packed; () once they are back

    def as_linear(self, x: mx.array) -> mx.array:
        return self._pamx_as_linear(x)

    # The arrays, for whoever reads them as parameters.

    def __missing__(self, key: str) -> mx.array:
        if key not in self._pamx_names:
            raise KeyError(key)
        return self._pamx_unpack()[key]

    def __getattr__(self, key: str) -> Any:
        if key in vars(self).get("_pamx_names", ()):
            return self._pamx_unpack()[key]
        return super().__getattr__(key)

    def __contains__(self, key: object) -> bool:
        return key in self._pamx_names or super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # dict's own skips __missing__

    def _whole(self) -> dict[str, Any]:
        return {**self._pamx_unpack(), **dict(dict.items(self))} if self._pamx_names else self

    def items(self) -> Any:
        return dict.items(self._whole())

    def keys(self) -> Any:
        return dict.keys(self._whole())

    def values(self) -> Any:
        return dict.values(self._whole())

    def children(self) -> dict[str, Any]:
        return {}  # without unpacking anything to find out


@dataclass(frozen=True)
class PackedFormat:
    """What a matrix is packed as.

    Attributes:
        format: With the scales' or elements' dtype of the checkpoint, or as it is packed.
        original: Bytes of the arrays that it is made from.
        names: Their names in the module.
    """

    format: MatrixFormat
    original: int
    names: tuple[str, ...]


def packed_formats(model: Module, kept: Iterable[str] = ()) -> dict[str, PackedFormat]:
    """Which matrices `LinearLayers` packs, or has packed, by name; nothing is read or changed."""
    heads, method = output_projections(model)
    head_ids = {id(m) for m in heads}
    found = {}
    for name, module in model.named_modules():  # type: ignore[no-untyped-call]
        if not isinstance(module, _KINDS) or name in kept:
            continue
        if isinstance(module, Packed):
            if module._pamx_names:
                packed, dtype = module._pamx_matrix.format, vars(module)["_pamx_dtype"]
                size = _array_bytes(replace(packed, scale_type=dtype))
                found[name] = PackedFormat(packed, size, module._pamx_names)
        elif _reason_to_keep(module, id(module) in head_ids and method == "as_linear") is None:
            names = _QUANTIZED if "scales" in module else ("weight",)
            size = sum(dict.__getitem__(module, n).nbytes for n in names)
            found[name] = PackedFormat(_format(module), size, names)
    return found


def _array_bytes(f: MatrixFormat) -> int:
    """Bytes of MLX's arrays of a format."""
    if f.bits == 0:
        return f.outputs * f.inputs * f.scale_type.size
    scales = 2 * f.outputs * (f.inputs // f.group_size) * f.scale_type.size
    return f.outputs * f.inputs * f.bits // 8 + scales


class LinearLayers:
    """The replaced linear layers and embeddings of a model.

    Attributes:
        reasons: Why those that stay as they are do, by name.
        bits: Bits of each replaced matrix, by name; 0: dense.
        head: Names of the output projections among them.

    Args:
        model: An mlx-lm model.
        store: Gives the packed weights.
        compute: How to multiply.
        kept: Names of those to leave alone.
    """

    def __init__(
        self, model: Module, store: WeightStore, compute: Compute, kept: Iterable[str] = ()
    ) -> None:
        self._swaps = Swaps()
        self._modules: dict[str, Packed] = {}
        self.reasons: dict[str, str] = {}
        self.bits: dict[str, int] = {}
        heads, method = output_projections(model)
        head_ids = {id(m) for m in heads}
        self.head = []
        for name, module in model.named_modules():  # type: ignore[no-untyped-call]
            if isinstance(module, Packed) or not isinstance(module, _KINDS):
                continue
            is_head = id(module) in head_ids
            reason = _reason_to_keep(module, is_head and method == "as_linear")
            if name in kept:
                reason = _READ
            if reason is not None:
                self.reasons[name] = reason
                continue
            try:
                self._replace(name, module, store, is_head)
            except BaseException:
                self.undo()
                raise
            if is_head:
                self.head.append(name)
        self.set_compute(compute)

    def set_compute(self, compute: Compute) -> None:
        """Changes how the replaced modules multiply."""
        for module in self._modules.values():
            if not module._pamx_names:
                continue
            matrix, dtype = module._pamx_matrix, vars(module)["_pamx_dtype"]
            product = _product(matrix, compute, dtype)
            lookup = isinstance(module, (Embedding, QuantizedEmbedding))
            vars(module).update(
                _pamx_run=_lookup(matrix, dtype) if lookup else product, _pamx_as_linear=product
            )

    def keep_those_read(self) -> tuple[str, ...]:
        """Gives those back whose weights were read since they were packed; returns their names.

        A model that multiplies with a weight itself would unpack it at every step.
        """
        names = tuple(n for n, m in self._modules.items() if vars(m)["_pamx_read"])
        for name in names:
            _restore(self._modules[name])
            del self.bits[name]
            self.reasons[name] = _READ
        self.head = [name for name in self.head if name not in names]
        return names

    def undo(self) -> None:
        """Gives every module its class and its arrays back, bit for bit."""
        for module in self._modules.values():
            _restore(module)
        self._modules.clear()
        self._swaps.undo()

    def _replace(self, name: str, module: Module, store: WeightStore, wide: bool) -> None:
        names = _QUANTIZED if "scales" in module else ("weight",)
        order = list(dict.keys(module))
        wanted = _format(module)
        dtype = wanted.scale_type

        def source() -> SourceWeights:
            return SourceWeights(*(dict.__getitem__(module, n) for n in names))

        weights = store.matrix(name, wanted, source)
        bias = module.get("bias")
        matrix = Matrix(weights.format, weights.memory, weights.offset, bias=bias, wide=wide)
        for n in names:
            dict.__delitem__(module, n)
        # What was just released is not to be kept for reuse: the packed form took its place.
        mx.clear_cache()

        def unpack() -> dict[str, Any]:
            vars(module)["_pamx_read"] = True
            return dict(zip(names, matrix.unpack(dtype), strict=False))

        self._swaps.mix_in(
            module,
            Packed,
            matrix=matrix,
            unpack=unpack,
            read=False,
            names=names,
            order=order,
            dtype=dtype,
        )
        on_change(module, lambda: _restore(cast(Packed, module)))
        self._modules[name] = cast(Packed, module)
        self.bits[name] = wanted.bits

    def matrix_of(self, name: str, *, wide: bool = False) -> Matrix | None:
        """The packed matrix of a replaced module, or None.

        Args:
            name: The module.
            wide: Over the same panels, with activations in 15 bits in "fast".
        """
        module = self._modules.get(name)
        if module is None or not module._pamx_names:
            return None
        matrix = module._pamx_matrix
        if not wide or matrix.wide:
            return matrix
        bias = dict.get(module, "bias")
        return Matrix(matrix.format, matrix.memory, matrix.offset, bias=bias, wide=True)


_READ = "The model reads its weights itself."
_KINDS = (Linear, QuantizedLinear, Embedding, QuantizedEmbedding)
_CALLS = {kind.__call__ for kind in _KINDS}


def _reason_to_keep(module: Module, tied: bool) -> str | None:
    if type(module).__call__ not in _CALLS:
        return f"{type(module).__name__} computes in its own way."
    if isinstance(module, Embedding) and not tied:
        return "A lookup in dense rows costs nothing."
    extra = set(dict.keys(module)) - {"weight", "scales", "biases", "bias"}
    weight = dict.get(module, "weight")
    if extra or weight is None or weight.ndim != 2:
        return "It has other parameters than a matrix and a bias."
    if not isinstance(module, (QuantizedLinear, QuantizedEmbedding)):
        return None if weight.dtype in _FLOATS else f"Its weights are {weight.dtype}."
    if module.mode != "affine":
        return f"Its weights are quantised as {module.mode}."
    if module.bits not in _BITS or module.group_size not in _GROUPS:
        return f"Its weights have {module.bits} bits in groups of {module.group_size}."
    scales, biases = dict.get(module, "scales"), dict.get(module, "biases")
    if scales is None or biases is None or scales.dtype != biases.dtype:
        return "It lacks scales or biases of one dtype."
    return None if scales.dtype in _FLOATS else f"Its scales are {scales.dtype}."


def _format(module: Module) -> MatrixFormat:
    weight = dict.__getitem__(module, "weight")
    if "scales" not in module:
        return MatrixFormat.of(weight, None)
    scales = dict.__getitem__(module, "scales")
    return MatrixFormat.of(weight, scales, bits=module.bits, group_size=module.group_size)


def _restore(module: Packed) -> None:
    """Puts the arrays back, and the original computation."""
    own = vars(module)
    if not own.get("_pamx_names"):
        return
    arrays, order = module._pamx_unpack(), own["_pamx_order"]
    own["_pamx_names"] = ()
    present = {**arrays, **dict(dict.items(module))}
    dict.clear(module)
    dict.update(module, {key: present[key] for key in [*order, *present] if key in present})
    kind: Any = next(k for k in _KINDS if isinstance(module, k))
    own["_pamx_run"] = lambda x: kind.__call__(module, x)
    own["_pamx_as_linear"] = lambda x: kind.as_linear(module, x)
    del own["_pamx_matrix"]


def _product(matrix: Matrix, compute: Compute, dtype: mx.Dtype) -> Callable[[mx.array], mx.array]:
    def multiply(x: mx.array) -> mx.array:
        # Like MLX: activations of another 16-bit dtype than the weights' meet them in float32.
        if x.dtype != dtype and x.dtype != mx.float32:
            x = x.astype(mx.float32)
        return linear(matrix, x, compute)

    return multiply


def _lookup(matrix: Matrix, dtype: mx.Dtype) -> Callable[[mx.array], mx.array]:
    return lambda ids: embedding(matrix, ids, dtype)
