"""The small operations equal MLX's, whatever the strides, and a row's bits are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamx.errors import NativeError
from pamx.native.loader import library
from pamx.native.small import GATES, GateKind, Rope, gated, layer_norm, rms_norm

FLOATS = [mx.float32, mx.float16, mx.bfloat16]
# One rounding of a value near 1 in each format, doubled; MLX rounds twice in the 16-bit ones.
TOLERANCE = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
ACTIVATIONS: dict[GateKind, Callable[[mx.array], mx.array]] = {
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_tanh": nn.gelu_approx,
    "relu": nn.relu,
}


def normal(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    rng = np.random.default_rng(seed)
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def same(found: mx.array, expected: mx.array, dtype: mx.Dtype, scale: float = 1.0) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    a, b = wide(found), wide(expected)
    bound = TOLERANCE[dtype] * scale * np.maximum(1.0, np.abs(b))
    assert np.all(np.abs(a - b) <= bound), np.abs(a - b).max()


# What MLX may hand over: as computed, heads and tokens swapped, every other row, every other
# element, backwards, one row for all.
VIEWS: list[Callable[[mx.array], mx.array]] = [
    lambda x: x,
    lambda x: x.swapaxes(1, 2),
    lambda x: x[:, ::2],
    lambda x: x[..., ::2],
    lambda x: x[..., ::-1],
    lambda x: x.swapaxes(1, 3),
    lambda x: mx.broadcast_to(x[:, :1], x.shape),
]


@st.composite
def tensors(draw: st.DrawFn) -> mx.array:
    shape = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 2, 7, 16, 24, 64, 100, 576, 1000])),
    )
    x = normal(shape, draw(st.sampled_from(FLOATS)), draw(st.integers(0, 2**32 - 1)))
    return draw(st.sampled_from(VIEWS))(x)


@settings(max_examples=120, deadline=None)
@given(x=tensors(), weight=st.sampled_from([None, *FLOATS]), bias=st.booleans())
def test_norms_equal_mlx(x: mx.array, weight: mx.Dtype | None, bias: bool) -> None:
    size = x.shape[-1]
    w = None if weight is None else normal((size,), weight, 1)
    same(rms_norm(x, w, 1e-5), mx.fast.rms_norm(x, w, 1e-5), x.dtype, 2)
    b = normal((size,), weight or x.dtype, 2) if bias else None
    # Rows of one or two elements can be all but equal: their variance is a difference of roundings.
    if size > 2:
        same(layer_norm(x, w, b, 1e-5), mx.fast.layer_norm(x, w, b, 1e-5), x.dtype, 8)


@settings(max_examples=120, deadline=None)
@given(x=tensors(), kind=st.sampled_from(list(GATES)), up=st.booleans(), scale=st.just(4.0))
def test_gates_equal_mlx(x: mx.array, kind: GateKind, up: bool, scale: float) -> None:
    x = x * scale
    other = x[::-1] if up else None
    expected = ACTIVATIONS[kind](x.astype(mx.float32))
    if other is not None:
        expected = expected * other.astype(mx.float32)
    same(gated(kind, x, other), expected.astype(x.dtype), x.dtype, 4)


@settings(max_examples=150, deadline=None)
@given(
    x=tensors(),
    data=st.data(),
    traditional=st.booleans(),
    scale=st.sampled_from([1.0, 0.25]),
    offset=st.integers(0, 3000),
    per_row=st.booleans(),
    own_freqs=st.booleans(),
)
def test_rope_equals_mlx(
    x: mx.array,
    data: st.DataObject,
    traditional: bool,
    scale: float,
    offset: int,
    per_row: bool,
    own_freqs: bool,
) -> None:
    half = x.shape[-1] // 2
    if half == 0:
        return
    dims = 2 * data.draw(st.integers(1, half))
    freqs = 1.5 ** mx.arange(dims // 2) if own_freqs else None
    base = None if own_freqs else 10000.0
    rope = Rope(dims, base=base, freqs=freqs, scale=scale, traditional=traditional)
    where: int | mx.array = offset
    if per_row:
        where = mx.array([offset + 17 * b for b in range(x.shape[0])])
    expected = mx.fast.rope(
        x, dims, traditional=traditional, base=base, scale=scale, offset=where, freqs=freqs
    )
    same(rope(x, where), expected, x.dtype, 2)


def test_angles_are_a_float32_product_and_their_sines_are_accurate() -> None:
    positions = [0, 1, 511, 8191, 131071]
    rope = Rope(128, base=500000.0)
    ones = mx.concatenate([mx.ones((1, 1, 1, 64)), mx.zeros((1, 1, 1, 64))], axis=-1)
    inverse = np.array(mx.exp(mx.arange(0, -64, -1, dtype=mx.float32) * (np.log(500000.0) / 64)))
    for position in positions:
        found = np.array(rope(ones, position))[0, 0, 0]
        angles = (np.float32(position) * inverse).astype(np.float64)
        expected = np.concatenate([np.cos(angles), np.sin(angles)])
        np.testing.assert_allclose(found, expected, rtol=0, atol=6e-8)


def test_rotated_elements_alone_are_multiplied() -> None:
    x = normal((1, 2, 3, 16))
    scaled = Rope(8, base=100.0, multiplier=1.25)(x, 5)
    plain = Rope(8, base=100.0)(x, 5)
    np.testing.assert_allclose(
        np.array(scaled[..., :8]), np.array(plain[..., :8] * 1.25), rtol=1e-5
    )
    assert mx.array_equal(scaled[..., 8:], x[..., 8:]).item()


def test_ropes_of_equal_parameters_keep_apart_from_others() -> None:
    """Tables are shared between equal ropes; nobody gets another one's."""
    x = normal((1, 2, 3, 16))
    first = [Rope(16, base=b, traditional=t) for b in (10.0, 20.0) for t in (False, True)]
    answers = [wide(rope(x, 7)) for rope in first]
    again = [Rope(16, base=b, traditional=t) for b in (10.0, 20.0) for t in (False, True)]
    for rope, answer in zip(again, answers, strict=True):
        np.testing.assert_array_equal(wide(rope(x, 7)), answer)
    for i, answer in enumerate(answers):
        assert all(not np.array_equal(answer, other) for other in answers[:i])


OPERATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "rms_norm": lambda x: rms_norm(x, normal((x.shape[-1],), seed=1), 1e-5),
    "layer_norm": lambda x: layer_norm(x, normal((x.shape[-1],), seed=1), None, 1e-5),
    "rope": lambda x: Rope(64, base=10000.0)(x[None], 9)[0],
    "silu": lambda x: gated("silu", x, x),
    "gelu": lambda x: gated("gelu", x),
    "gelu_tanh": lambda x: gated("gelu_tanh", x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_rows_bits_do_not_depend_on_company_strides_or_threads(name: str) -> None:
    operation = OPERATIONS[name]
    x = normal((1, 700, 577)) * 3
    lib = library().lib
    threads = lib.pamx_num_threads()
    together = np.array(operation(x))
    try:
        for count in (1, 5):
            assert lib.pamx_set_num_threads(count) == 0
            np.testing.assert_array_equal(np.array(operation(x)), together)
    finally:
        lib.pamx_set_num_threads(threads)
    strided = mx.concatenate([x, x], axis=-1)[..., :577]
    np.testing.assert_array_equal(np.array(operation(strided)), together)
    if name != "rope":  # a row's position is its place
        for row in (0, 311, 699):
            alone = np.array(operation(x[:, row : row + 1]))
            np.testing.assert_array_equal(alone[0, 0], together[0, row])


@pytest.mark.parametrize("kind", list(GATES))
def test_gates_over_every_magnitude(kind: GateKind) -> None:
    exponents = np.linspace(-45, 38, 4001)
    x = np.concatenate([10.0**exponents, -(10.0**exponents), np.linspace(-12, 12, 4001), [0.0]])
    x = x.astype(np.float32)
    found = np.array(gated(kind, mx.array(x))).astype(np.float64)
    z = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "silu":
            expected = z / (1 + np.exp(-z))
        elif kind == "gelu":
            import math

            expected = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
        elif kind == "gelu_tanh":
            u = math_tanh_argument(z)
            expected = np.where(u < -300, 0.0, z / (1 + np.exp(-2 * u)))
        else:
            expected = np.maximum(z, 0)
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=3e-7)


def math_tanh_argument(z: np.ndarray) -> np.ndarray:
    argument: np.ndarray = np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)
    return argument


@pytest.mark.parametrize("kind", list(GATES))
def test_what_is_not_finite_passes_gates_as_mlx_lets_it(kind: GateKind) -> None:
    x = mx.array([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(
        np.isfinite(wide(gated(kind, x))), np.isfinite(wide(ACTIVATIONS[kind](x)))
    )
    np.testing.assert_array_equal(
        np.isnan(wide(gated(kind, x))), np.isnan(wide(ACTIVATIONS[kind](x)))
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_own_row_alone(bad: float) -> None:
    data = np.ones((3, 40), np.float32)
    data[1, 7] = bad
    x, w = mx.array(data), mx.ones((40,))
    for ours, theirs in (
        (rms_norm(x, w, 1e-5), mx.fast.rms_norm(x, w, 1e-5)),
        (layer_norm(x, w, None, 1e-5), mx.fast.layer_norm(x, w, None, 1e-5)),
    ):
        np.testing.assert_array_equal(np.isnan(wide(ours)), np.isnan(wide(theirs)))


def test_empty_tensors_and_lone_rows() -> None:
    assert rms_norm(mx.zeros((0, 8)), None, 1e-5).shape == (0, 8)
    assert gated("silu", mx.zeros((3, 0))).shape == (3, 0)
    np.testing.assert_allclose(wide(rms_norm(mx.array([3.0, 4.0]), None, 0.0)) ** 2, [0.72, 1.28])


def test_lazy_inside_compiled_functions() -> None:
    x, w = normal((4, 64)), normal((64,), seed=3)
    compiled = mx.compile(lambda a: gated("silu", rms_norm(a * 1.0, w, 1e-5)) + 1.0)
    expected = nn.silu(mx.fast.rms_norm(x, w, 1e-5)) + 1.0
    np.testing.assert_allclose(wide(compiled(x)), wide(expected), atol=1e-5)


X = mx.ones((2, 3, 8))
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: rms_norm(X.astype(mx.int32), None, 1e-5), NativeError, "x is int32"),
    (lambda: rms_norm(mx.array(1.0), None, 1e-5), NativeError, "x has 0 axes"),
    (lambda: rms_norm(X, mx.ones((7,)), 1e-5), NativeError, "weight has shape"),
    (lambda: rms_norm(X, mx.ones((8,)), float("nan")), NativeError, "eps"),
    (lambda: rms_norm(np.ones(3), None, 1e-5), TypeError, "x must be an mlx"),  # type: ignore
    (lambda: layer_norm(X, None, mx.ones((1, 8)), 1e-5), NativeError, "bias has shape"),
    (lambda: gated("silu", X, X[:1]), NativeError, "up"),
    (lambda: gated("silu", X, X.astype(mx.int8)), NativeError, "up is int8"),
    (lambda: Rope(8, base=10.0)(X[0]), NativeError, r"instead of \[batch"),
    (lambda: Rope(16, base=10.0)(X), NativeError, "rows have 8 elements; the rope rotates 16"),
    (lambda: Rope(8, base=10.0)(X, mx.array([1, 2, 3])), NativeError, "offsets have shape"),
    (lambda: Rope(7, base=10.0), ValueError, "even number"),
    (lambda: Rope(8), ValueError, "either base or freqs"),
    (lambda: Rope(8, freqs=mx.ones((3,))), ValueError, "freqs has shape"),
    (lambda: Rope(8, freqs=mx.zeros((4,))), NativeError, "inverse frequency 0 is not finite"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_null_pointers_at_the_c_interface() -> None:
    native = library()
    ffi, lib = native.ffi, native.lib
    one = mx.ones((1, 1, 4))
    floats = ffi.new("float[]", [1.0, 2.0])
    handle = ffi.new("pamx_rope**")
    calls = [
        lambda: lib.pamx_rms_norm(0, 0, 1e-5, id(one)),
        lambda: lib.pamx_rms_norm(id(one), 0, 1e-5, 0),
        lambda: lib.pamx_layer_norm(0, 0, 0, 1e-5, id(one)),
        lambda: lib.pamx_gated(4, id(one), 0, id(one)),
        lambda: lib.pamx_gated(-1, id(one), 0, id(one)),
        lambda: lib.pamx_rope_create(ffi.NULL, 2, 1.0, 1.0, 0, handle),
        lambda: lib.pamx_rope_create(floats, 0, 1.0, 1.0, 0, handle),
        lambda: lib.pamx_rope_create(floats, 2, float("nan"), 1.0, 0, handle),
        lambda: lib.pamx_rope_create(floats, 2, 1.0, 1.0, 0, ffi.NULL),
        lambda: lib.pamx_rope_apply(ffi.NULL, id(one), 0, 0, id(one)),
    ]
    for call in calls:
        assert call() == lib.PAMX_INVALID_ARGUMENT
        assert len(ffi.string(lib.pamx_last_error())) > 5
    lib.pamx_rope_free(ffi.NULL)


def test_lesser_instruction_sets_give_the_same_answers() -> None:
    """The kernels for other machines, in processes that are told to use them."""
    here = library().cpu_isa
    lesser = {"avx512": ["avx2", "portable"], "avx2": ["portable"], "neon": ["portable"]}
    if here not in lesser:
        pytest.skip("this machine has no vector instructions: the portable kernels were tested")
    for isa in lesser[here]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", __file__, "-k", "equal or magnitude or angles"],
            env={**os.environ, "PAMX_CPU_ISA": isa},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        assert "passed" in done.stdout
