"""Replacing norms, rotary positions and gates by single operations of ours.

MLX's CPU backend computes each of these as a dozen operations. Norm and rope modules are known by
what they compute (`pamx.substitute.kinds`); gates are functions of two arrays in a model file's
globals, known by their values.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from pamx.native import small
from pamx.native.small import GateKind
from pamx.substitute.classes import Called, Swaps, clone_methods, mentions, on_change
from pamx.substitute.kinds import Norm, gate_of, norm_of, rope_of

_FLOATS = (mx.float32, mx.float16, mx.bfloat16)


class SmallOperations:
    """The replaced norms, ropes and gates of a model.

    Attributes:
        ropes: The native rope of each replaced module, by id of the module.
    """

    def __init__(self, model: Module) -> None:
        self._swaps = Swaps()
        self.ropes: dict[int, small.Rope] = {}
        for _, module in model.named_modules():  # type: ignore[no-untyped-call]
            if isinstance(module, Called):
                continue
            if (norm := norm_of(module)) is not None:
                self._replace(module, _norm_call(norm), norm=norm)
            elif (rope := rope_of(module)) is not None:
                native = small.Rope(
                    rope.dims,
                    base=rope.base,
                    freqs=rope.freqs,
                    scale=rope.scale,
                    multiplier=rope.multiplier,
                    traditional=rope.traditional,
                )
                self.ropes[id(module)] = native
                self._replace(module, native, rope=rope)
        gates: dict[type, type] = {}
        for _, module in model.named_modules():  # type: ignore[no-untyped-call]
            cls = type(module)
            if cls not in gates:
                gates[cls] = _with_gates(cls)
            if gates[cls] is not cls:
                self._swaps.swap(module, gates[cls])

    def undo(self) -> None:
        self._swaps.undo()

    def _replace(self, module: Module, run: Callable[..., mx.array], **kind: Any) -> None:
        original = type(module)
        self._swaps.mix_in(module, Called, run=run, **kind)

        def revert() -> None:
            own = vars(module)
            own["_pamx_run"] = types.MethodType(original.__call__, module)
            own["_pamx_norm"] = own["_pamx_rope"] = None

        on_change(module, revert)


def _norm_call(norm: Norm) -> Callable[[mx.array], mx.array]:
    eps, weight, bias = norm.eps, norm.weight, norm.bias
    for constant in (weight, bias):
        if constant is not None:
            mx.eval(constant)
    if norm.kind == "rms":
        rms_norm = small.rms_norm
        return lambda x: rms_norm(x, weight, eps)
    layer_norm = small.layer_norm
    return lambda x: layer_norm(x, weight, bias, eps)


def _with_gates(cls: type) -> type:
    """A subclass of `cls` whose methods call our gates, or `cls` if none of them would."""

    def replaced(method: types.FunctionType) -> dict[str, Any]:
        found = {}
        for name, value in method.__globals__.items():
            if "glu" in name and mentions(method.__code__, name):
                kind = gate_of(value)
                if kind is not None:
                    found[name] = _gate_call(kind, value)
        return found

    methods = clone_methods(cls, replaced)
    if not methods:
        return cls
    return type(cls.__name__, (cls,), {**methods, "__module__": cls.__module__})


def _gate_call(
    kind: GateKind, original: Callable[[mx.array, mx.array], mx.array]
) -> Callable[[mx.array, mx.array], mx.array]:
    gated = small.gated

    def gate(gate: mx.array, x: mx.array) -> mx.array:
        if gate.shape != x.shape or gate.dtype not in _FLOATS:
            return original(gate, x)
        return gated(kind, gate, x)

    return gate
