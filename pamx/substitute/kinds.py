"""What a module computes, found out by calling it and watching what it asks of MLX.

mlx-lm has a dozen classes each for norms and for rotary positions. They differ in how they prepare
their constants and agree in the call that they end in, `mx.fast.rms_norm`, `layer_norm` or `rope`.
So a module is called once over globals where `mx` notes that call; what went into it is the
constant that matters. Nothing is evaluated but these constants, and no class is known by name.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu, gelu_approx, relu, silu
from mlx.nn.layers.base import Module

from pamx.native.small import GateKind
from pamx.substitute.classes import mentions, over_globals

_WIDEST = 512  # elements of a head, at most


@dataclass(frozen=True, eq=False)
class Norm:
    """weight * normalised(x) + bias over the last axis.

    Attributes:
        kind: "rms" or "layer".
        eps: Is added to the mean square or the variance.
        weight: [size], or None for ones.
        bias: [size], or None for zeros.
    """

    kind: Literal["rms", "layer"]
    eps: float
    weight: mx.array | None
    bias: mx.array | None


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary positions, in the terms of mx.fast.rope.

    Attributes:
        dims: Elements of a head that are rotated.
        base: Of the frequencies; None: `freqs` gives them.
        freqs: [dims / 2] wavelengths, or None.
        scale: Multiplies positions.
        multiplier: Multiplies the rotated elements first.
        traditional: Whether a pair is two neighbours, and not two halves.
    """

    dims: int
    base: float | None
    freqs: mx.array | None
    scale: float
    multiplier: float
    traditional: bool

    def same_as(self, other: Rope) -> bool:
        """Whether both rotate alike."""
        if self.freqs is None or other.freqs is None:
            if self.freqs is not other.freqs:
                return False
        elif not mx.array_equal(self.freqs, other.freqs):
            return False
        mine, theirs = (
            (r.dims, r.base, r.scale, r.multiplier, r.traditional) for r in (self, other)
        )
        return mine == theirs


def norm_of(module: Module) -> Norm | None:
    """The norm over the last axis that this module is, or None."""
    known = vars(module).get("_pamx_norm")
    if isinstance(known, Norm):
        return known
    if not _may_call(type(module), "rms_norm") and not _may_call(type(module), "layer_norm"):
        return None
    shapes = [a.shape for a in dict.values(module) if isinstance(a, mx.array)]
    size = shapes[0][-1] if shapes and shapes[0] else 64
    x = mx.zeros((1, 1, size))
    call = _watch(module, ("rms_norm", "layer_norm"), x)
    if call is None or call.x is not x:
        return None
    if call.name == "rms_norm":
        weight, eps = _bind(call, ("weight", "eps"))
        bias = None
    else:
        weight, bias, eps = _bind(call, ("weight", "bias", "eps"))
    for constant in (weight, bias):
        if constant is not None and constant.shape != (size,):
            return None
    return Norm("rms" if call.name == "rms_norm" else "layer", float(eps), weight, bias)


def rope_of(module: Module) -> Rope | None:
    """The rotary positions that this module applies, or None.

    Those whose frequencies depend on the position are None.
    """
    known = vars(module).get("_pamx_rope")
    if isinstance(known, Rope):
        return known
    if not _may_call(type(module), "rope"):
        return None
    found = None
    for length, offset in ((1, 0), (3, 1_000_000)):
        x = mx.ones((1, 1, length, _WIDEST))
        call = _watch(module, ("rope",), x, offset=offset)
        rope = None if call is None else _rope(call, x, offset)
        if rope is None or (found is not None and not rope.same_as(found)):
            return None
        found = rope
    return found


def _rope(call: _Call, x: mx.array, offset: int) -> Rope | None:
    dims, traditional, base, scale, given, freqs = _bind(
        call, ("dims", "traditional", "base", "scale", "offset", "freqs")
    )
    if given is not offset or dims % 2 or not 2 <= dims <= x.shape[-1]:
        return None
    multiplier = 1.0
    if call.x is not x:
        # Some scale the elements to be rotated; the rest must be as it was.
        moved = np.array(call.x)
        if moved.shape != x.shape or call.x.dtype != x.dtype:
            return None
        multiplier = float(moved[0, 0, 0, 0])
        expected = np.ones(x.shape, np.float32)
        expected[..., :dims] *= multiplier
        if not np.array_equal(moved, expected):
            return None
    if freqs is not None and freqs.shape != (dims // 2,):
        return None
    return Rope(dims, base, freqs, float(scale), multiplier, bool(traditional))


GATES: dict[GateKind, Callable[[mx.array], mx.array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_approx,
    "relu": relu,
}


def gate_of(function: Any) -> GateKind | None:
    """The gate that a function of (gate, up) computes, or None."""
    if not callable(function) or isinstance(function, type):
        return None
    gate, up = mx.linspace(-9, 9, 64), mx.linspace(2, -1, 64)
    try:
        found = function(gate, up)
        for kind, act in GATES.items():
            if found.shape == up.shape and mx.allclose(found, act(gate) * up, 1e-6, 1e-6):
                return kind
    except Exception:  # it wants something else than two arrays
        return None
    return None


@dataclass(frozen=True, eq=False)
class _Call:
    name: str
    x: mx.array
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _bind(call: _Call, names: tuple[str, ...]) -> list[Any]:
    """The call's arguments after x, by name; None if absent."""
    values = dict(zip(names, call.args, strict=False)) | call.kwargs
    defaults = {"scale": 1.0, "traditional": False}
    return [values.get(name, defaults.get(name)) for name in names]


@cache
def _may_call(cls: type, name: str) -> bool:
    call = getattr(cls, "__call__", None)  # noqa: B004  # what it is, not whether
    return isinstance(call, types.FunctionType) and mentions(call.__code__, name)


def _watch(module: Module, names: tuple[str, ...], x: mx.array, **more: Any) -> _Call | None:
    """The one call to `mx.fast` that makes up the module, or None if it is something else."""
    call = type(module).__call__
    if not isinstance(call, types.FunctionType) or call.__globals__.get("mx") is not mx:
        return None
    calls: list[_Call] = []
    result = mx.zeros(x.shape, x.dtype)

    def noting(name: str) -> Callable[..., mx.array]:
        def note(x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            calls.append(_Call(name, x, args, kwargs))
            return result

        return note

    fast = types.SimpleNamespace(**{**vars(mx.fast), **{name: noting(name) for name in names}})
    watched = over_globals(call, {"mx": types.SimpleNamespace(**{**vars(mx), "fast": fast})})
    try:
        out = watched(module, x, **more)
    except Exception:  # whatever it wants, it is not one of ours
        return None
    return calls[0] if len(calls) == 1 and out is result else None
