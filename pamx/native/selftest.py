"""Quick checks that each family of CPU kernels computes right, against float64 NumPy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pamx.native.blocks import AttentionBlock, MlpBlock, Norm
from pamx.native.matrices import Compute, Matrix, MatrixFormat, Memory, linear, pack
from pamx.native.ops import NativeBatch
from pamx.native.small import Rope, gated, layer_norm, rms_norm

_Array = npt.NDArray[np.float64]
_ROWS, _WIDTH, _HIDDEN, _GROUP = 5, 128, 192, 32
_HEADS, _KV_HEADS, _DIM = 4, 2, 32
_EPS = 1e-5
# Of the result's size. Activations in int8 differ by a hundredth of their largest in a group.
_EXACT, _FAST = 1e-5, 2e-2


@dataclass(frozen=True)
class KernelTest:
    """How far a kernel's output is from float64, in sizes of it, what is allowed, and the time."""

    error: float
    tolerance: float
    milliseconds: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def run_linear(compute: Compute, bits: int = 4) -> KernelTest:
    """Rows times a quantised matrix; `bits` 0: a dense one."""
    rng = np.random.default_rng(1)
    x, (matrix, weight) = _normal(rng, _ROWS, _WIDTH), _matrix(rng, _HIDDEN, _WIDTH, bits)
    tolerance = _FAST if compute == "fast" and bits else _EXACT
    return _compare(lambda: linear(matrix, mx.array(x), compute), x @ weight.T, tolerance)


def run_small() -> KernelTest:
    """Norms, rope and gate; the worst of them."""
    rng = np.random.default_rng(2)
    x, y = (_normal(rng, _ROWS, _WIDTH) for _ in range(2))
    weight, bias = (_normal(rng, _WIDTH) for _ in range(2))
    a, b, w, c = (mx.array(v) for v in (x, y, weight, bias))
    heads = _normal(rng, 1, _HEADS, _ROWS, _DIM)
    rope = Rope(_DIM, base=10000.0)
    pairs: list[tuple[Callable[[], mx.array], _Array]] = [
        (lambda: rms_norm(a, w, _EPS), _rms(x) * weight),
        (lambda: layer_norm(a, w, c, _EPS), _rms(x - x.mean(-1, keepdims=True)) * weight + bias),
        (lambda: gated("silu", a, b), _silu(x) * y),
        (lambda: rope(mx.array(heads), 3), _rotated(heads, 3)),
    ]
    found = [_compare(run, expected, _EXACT) for run, expected in pairs]
    return KernelTest(max(f.error for f in found), _EXACT, sum(f.milliseconds for f in found))


def run_blocks(compute: Compute) -> KernelTest:
    """A fused MLP and a fused attention block over pages; the worse of them."""
    mlp, attention = _mlp(compute), _attention(compute)
    return KernelTest(
        max(mlp.error, attention.error), mlp.tolerance, mlp.milliseconds + attention.milliseconds
    )


def _mlp(compute: Compute) -> KernelTest:
    rng = np.random.default_rng(3)
    x, norm = _normal(rng, _ROWS, _WIDTH), _normal(rng, _WIDTH)
    (gate, g), (up, u) = (_matrix(rng, _HIDDEN, _WIDTH, 4) for _ in range(2))
    down, d = _matrix(rng, _WIDTH, _HIDDEN, 4)
    block = MlpBlock(
        compute=compute,
        kind="silu",
        projections=[gate, up],
        down=down,
        input_norm=Norm("rms", _WIDTH, _EPS, mx.array(norm)),
    )
    n = _rms(x) * norm
    expected = x + (_silu(n @ g.T) * (n @ u.T)) @ d.T
    return _compare(lambda: block(mx.array(x)), expected, _EXACT if compute == "exact" else _FAST)


def _attention(compute: Compute) -> KernelTest:
    rng = np.random.default_rng(4)
    x, norm = _normal(rng, _ROWS, _WIDTH), _normal(rng, _WIDTH)
    sizes = (_HEADS * _DIM, _KV_HEADS * _DIM, _KV_HEADS * _DIM)
    matrices, weights = zip(*(_matrix(rng, size, _WIDTH, 4) for size in sizes), strict=True)
    output, o = _matrix(rng, _WIDTH, _HEADS * _DIM, 4)
    block = AttentionBlock(
        compute=compute,
        heads=_HEADS,
        kv_heads=_KV_HEADS,
        head_dim=_DIM,
        v_dim=_DIM,
        projections=matrices,
        output=output,
        scale=_DIM**-0.5,
        input_norm=Norm("rms", _WIDTH, _EPS, mx.array(norm)),
        rope=Rope(_DIM, base=10000.0),
    )
    size = 8
    starts, lengths, tables = (np.array(a, np.int32) for a in ([0, _ROWS], [_ROWS], [[1]]))
    batch = NativeBatch(starts, lengths, tables, 2, size)
    keys, values = (mx.zeros((2, size, _KV_HEADS, _DIM)) for _ in range(2))
    mx.eval(keys, values)

    n = _rms(x) * norm
    q, k, v = ((n @ w.T).reshape(_ROWS, -1, _DIM).swapaxes(0, 1) for w in weights)
    q, k = _rotated(q, 0), _rotated(k, 0)
    k, v = (np.repeat(each, _HEADS // _KV_HEADS, axis=0) for each in (k, v))
    scores = q @ k.swapaxes(-1, -2) * _DIM**-0.5
    scores[:, ~np.tri(_ROWS, dtype=bool)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    expected = x + (shares @ v).swapaxes(0, 1).reshape(_ROWS, -1) @ o.T
    return _compare(
        lambda: block(mx.array(x)[None], batch, keys, values)[0],
        expected,
        _EXACT if compute == "exact" else _FAST,
    )


def _compare(run: Callable[[], mx.array], expected: _Array, tolerance: float) -> KernelTest:
    start = time.perf_counter()
    out = run()
    mx.eval(out)
    elapsed = time.perf_counter() - start
    found = np.array(out).astype(np.float64).reshape(expected.shape)
    error = math.sqrt(float(np.mean((found - expected) ** 2) / np.mean(expected**2)))
    return KernelTest(error if math.isfinite(error) else math.inf, tolerance, elapsed * 1e3)


def _normal(rng: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)


def _matrix(
    rng: np.random.Generator, outputs: int, inputs: int, bits: int
) -> tuple[Matrix, _Array]:
    """A packed random matrix, and what it holds."""
    dense = mx.array(_normal(rng, outputs, inputs) * np.float32(inputs**-0.5))
    if not bits:
        return _packed(MatrixFormat.of(dense, None), dense, None, None), _double(dense)
    weight, scales, biases = mx.quantize(dense, group_size=_GROUP, bits=bits)
    held = mx.dequantize(weight, scales, biases, group_size=_GROUP, bits=bits)
    form = MatrixFormat.of(weight, scales, bits=bits, group_size=_GROUP)
    return _packed(form, weight, scales, biases), _double(held)


def _packed(
    form: MatrixFormat, weight: mx.array, scales: mx.array | None, biases: mx.array | None
) -> Matrix:
    memory = Memory.allocate(form.nbytes)
    pack(form, weight, scales, biases, memory)
    return Matrix(form, memory)


def _double(array: mx.array) -> _Array:
    return np.array(array).astype(np.float64)


def _rms(x: npt.NDArray[np.floating]) -> _Array:
    wide = x.astype(np.float64)
    out: _Array = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + _EPS)
    return out


def _silu(x: npt.NDArray[np.floating]) -> _Array:
    wide = x.astype(np.float64)
    out: _Array = wide / (1 + np.exp(-wide))
    return out


def _rotated(x: npt.NDArray[np.floating], offset: int) -> _Array:
    """Rope of [..., rows, dim], halves apart."""
    half = x.shape[-1] // 2
    angles = np.outer(offset + np.arange(x.shape[-2]), 10000.0 ** (-np.arange(half) / half))
    a, b = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
