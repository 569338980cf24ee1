"""Typed wrappers of the native small operations: norms, rotary positions and gates.

They stand in for mx.fast.rms_norm, mx.fast.layer_norm, mx.fast.rope and mlx.nn's activations on
the CPU: arrays of any strides in float32, float16 or bfloat16, arithmetic in float32, one rounding
at the end. Every function raises NativeError when shapes or dtypes do not fit, or when MLX's
default device is not the CPU.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from pamx.native.loader import check, library

GateKind = Literal["silu", "gelu", "gelu_tanh", "relu"]
GATES: dict[GateKind, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}


def array_id(array: mx.array, name: str) -> int:
    """What the library knows an array by; the caller keeps the array in a local meanwhile."""
    if not isinstance(array, mx.array):
        raise TypeError(f"{name} must be an mlx.core.array, not {type(array).__name__}")
    return id(array)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Args:
        x: [..., size]
        weight: [size], or None for 1.

    Returns:
        [..., size] in the dtype that x and weight promote to.
    """
    native = library()
    out = native.blank()
    status = native.lib.pamx_rms_norm(
        array_id(x, "x"), 0 if weight is None else array_id(weight, "weight"), eps, id(out)
    )
    check(native, status)
    return out


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    Args:
        x: [..., size]
        weight, bias: [size], or None for 1 and 0.

    Returns:
        [..., size] in the dtype that the inputs promote to.
    """
    native = library()
    out = native.blank()
    status = native.lib.pamx_layer_norm(
        array_id(x, "x"),
        0 if weight is None else array_id(weight, "weight"),
        0 if bias is None else array_id(bias, "bias"),
        eps,
        id(out),
    )
    check(native, status)
    return out


def gated(kind: GateKind, gate: mx.array, up: mx.array | None = None) -> mx.array:
    """act(gate) * up, or act(gate) alone.

    Args:
        kind: "gelu_tanh" is mlx.nn's gelu_approx.
        gate, up: Arrays of one shape.

    Returns:
        The same shape, in the dtype that the inputs promote to.
    """
    native = library()
    out = native.blank()
    status = native.lib.pamx_gated(
        GATES[kind], array_id(gate, "gate"), 0 if up is None else array_id(up, "up"), id(out)
    )
    check(native, status)
    return out


class Rope:
    """Rotary position embedding, with mx.fast.rope's parameters.

    Sines and cosines of the last positions are kept and shared by every Rope of the same
    parameters: a step's layers compute them once.

    Args:
        dims: Elements of a head that are rotated; even. The rest pass through.
        base: Base of the frequencies, or None with `freqs`.
        freqs: [dims / 2] wavelengths as mx.fast.rope takes them: the angle is position / freqs.
        scale: Multiplies positions.
        multiplier: Multiplies rotated elements (the mscale of yarn and longrope).
        traditional: Rotate neighbours instead of elements dims / 2 apart.

    Raises:
        ValueError: dims is odd or does not fit freqs, or both or neither of base and freqs are
            given.
        NativeError: a frequency is not finite.
    """

    def __init__(
        self,
        dims: int,
        *,
        base: float | None = None,
        freqs: mx.array | None = None,
        scale: float = 1.0,
        multiplier: float = 1.0,
        traditional: bool = False,
    ) -> None:
        native = library()
        inverse = _inverse_frequencies(dims, base, freqs)
        handle = native.ffi.new("pamx_rope**")
        status = native.lib.pamx_rope_create(
            native.ffi.from_buffer("float[]", inverse),
            len(inverse),
            scale,
            multiplier,
            traditional,
            handle,
        )
        check(native, status)
        self.dims = dims
        self.handle: Any = native.ffi.gc(handle[0], native.lib.pamx_rope_free)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Rotates x.

        Args:
            x: [batch, ..., length, dim], dim at least `dims`.
            offset: Position of the first row, for all or as integers [batch].

        Returns:
            x's shape and dtype.
        """
        native = library()
        out = native.blank()
        number, offsets = 0, None
        if isinstance(offset, mx.array):
            offsets = offset if offset.dtype == mx.int32 else offset.astype(mx.int32)
        else:
            number = offset
        status = native.lib.pamx_rope_apply(
            self.handle, array_id(x, "x"), number, 0 if offsets is None else id(offsets), id(out)
        )
        check(native, status)
        return out


def _inverse_frequencies(
    dims: int, base: float | None, freqs: mx.array | None
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What MLX multiplies positions with, computed by MLX itself so that the bits agree."""
    if dims < 2 or dims % 2:
        raise ValueError(f"a rope rotates an even number of elements, not {dims}")
    if (base is None) == (freqs is None):
        raise ValueError("a rope needs either base or freqs")
    half = dims // 2
    if freqs is not None:
        if freqs.shape != (half,):
            raise ValueError(f"freqs has shape {freqs.shape} instead of ({half},)")
        inverse = mx.reciprocal(freqs.astype(mx.float32), stream=mx.cpu)
    else:
        assert base is not None
        step = np.float32(math.log(np.float32(base))) / np.float32(half)
        exponents = mx.arange(0, -half, -1, dtype=mx.float32, stream=mx.cpu)
        inverse = mx.exp(mx.multiply(exponents, float(step), stream=mx.cpu), stream=mx.cpu)
    return np.array(inverse, dtype=np.float32)
