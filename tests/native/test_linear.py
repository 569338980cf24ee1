"""Linear layers on packed weights: equal to float64 NumPy, to themselves in any company, and to
the bits that were packed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pamx.errors import NativeError
from pamx.native.loader import library
from pamx.native.matrices import (
    Compute,
    Matrix,
    MatrixFormat,
    Memory,
    embedding,
    linear,
    narrowest_scale_type,
    pack,
)

Floats = npt.NDArray[np.float64]
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
BITS = [2, 3, 4, 6, 8]


@dataclass
class Weights:
    """MLX's arrays, and what they mean in float64."""

    weight: mx.array
    scales: mx.array | None
    biases: mx.array | None
    bits: int
    group_size: int

    @property
    def format(self) -> MatrixFormat:
        return MatrixFormat.of(self.weight, self.scales, bits=self.bits, group_size=self.group_size)

    def matrix(self, *, wide: bool = False, bias: mx.array | None = None) -> Matrix:
        memory = Memory.allocate(self.format.nbytes)
        pack(self.format, self.weight, self.scales, self.biases, memory)
        return Matrix(self.format, memory, wide=wide, bias=bias)

    def integers(self) -> npt.NDArray[np.int64]:
        """[outputs, inputs], read from the string of bits that a row is."""
        words = np.array(self.weight)
        strings = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        places = strings.reshape(len(words), -1, self.bits).astype(np.int64)
        return places @ (1 << np.arange(self.bits))

    def float64(self) -> Floats:
        if self.scales is None or self.biases is None:
            return numpy(self.weight)
        scales, biases = (
            np.repeat(numpy(a), self.group_size, axis=1) for a in (self.scales, self.biases)
        )
        return self.integers() * scales + biases


def numpy(array: mx.array) -> Floats:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def quantised(
    outputs: int, inputs: int, bits: int, group_size: int, dtype: mx.Dtype, seed: int
) -> Weights:
    """Any integers, with scales and biases that are no model's: nothing is symmetric."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (outputs, inputs * bits // 32), dtype=np.uint32)
    groups = (outputs, inputs // group_size)
    scales = rng.normal(size=groups) * 2.0 ** rng.integers(-6, 3, groups)
    biases = rng.normal(size=groups) * 2.0 ** rng.integers(-3, 5, groups)
    return Weights(
        mx.array(words),
        mx.array(scales.astype(np.float32)).astype(dtype),
        mx.array(biases.astype(np.float32)).astype(dtype),
        bits,
        group_size,
    )


def dense(outputs: int, inputs: int, dtype: mx.Dtype, seed: int) -> Weights:
    values = np.random.default_rng(seed).normal(size=(outputs, inputs)).astype(np.float32)
    return Weights(mx.array(values).astype(dtype), None, None, 0, 0)


def rounding(weights: Weights, x: Floats, compute: Compute, wide: bool) -> Floats:
    """What each output may be off by: roundings of float32 sums, and of activations in `fast`."""
    w = np.abs(weights.float64())
    if weights.scales is not None and weights.biases is not None:
        # Larger than |w|: what s * q and b are before they cancel.
        s, b = (
            np.abs(np.repeat(numpy(a), weights.group_size, axis=1))
            for a in (weights.scales, weights.biases)
        )
        w = weights.integers() * s + b
    terms = np.abs(x) @ w.T
    # Errors of n roundings grow like their square root; 8 is far out.
    bound = 8 * np.sqrt(x.shape[-1]) * 2.0**-24 * terms + 1e-30
    if compute == "fast" and weights.bits:
        steps = 16256 if wide else 127
        largest = np.abs(x).reshape(*x.shape[:-1], -1, 32).max(-1)
        off = np.repeat(largest / steps / 2, 32, axis=-1) * 1.001
        bound = bound + off @ np.abs(weights.float64()).T
    return np.asarray(bound)


def check(weights: Weights, x: mx.array, compute: Compute, *, wide: bool = False) -> None:
    out = linear(weights.matrix(wide=wide), x, compute)
    assert out.dtype == x.dtype
    assert out.shape == (*x.shape[:-1], weights.format.outputs)
    rows = numpy(x)
    expected = rows @ weights.float64().T
    error = np.abs(numpy(out) - expected)
    bound = rounding(weights, rows, compute, wide)
    if x.dtype != mx.float32:
        half = x.dtype == mx.float16  # 11 bits, and nothing finer than 2^-24; bfloat16 has 8
        bound = bound + np.abs(expected) * 2.0 ** (-11 if half else -8) + (2.0**-25 if half else 0)
    assert (error <= bound).all(), f"{(error / bound).max():.2f} times what rounding explains"


@st.composite
def cases(draw: st.DrawFn) -> tuple[Weights, mx.array]:
    outputs = draw(st.one_of(st.integers(1, 80), st.sampled_from([16, 64, 200])))
    dtype = draw(st.sampled_from(DTYPES))
    seed = draw(st.integers(0, 2**32 - 1))
    bits = draw(st.sampled_from([0, *BITS]))
    if bits == 0:
        inputs = draw(st.one_of(st.integers(1, 70), st.sampled_from([576, 1500])))
        weights = dense(outputs, inputs, dtype, seed)
    else:
        group_size = draw(st.sampled_from([32, 64, 128]))
        inputs = group_size * draw(st.one_of(st.integers(1, 6), st.sampled_from([9, 20])))
        weights = quantised(outputs, inputs, bits, group_size, dtype, seed)
    rows = draw(st.one_of(st.integers(1, 20), st.sampled_from([70, 130])))
    rng = np.random.default_rng(seed + 1)
    values = rng.normal(size=(rows, inputs)) * 2.0 ** rng.integers(-9, -2, (rows, 1))
    x = mx.array(values.astype(np.float32))
    return weights, x.astype(draw(st.sampled_from([mx.float32, mx.float32, *DTYPES])))


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(["fast", "exact"]), st.booleans())
def test_equals_float64(case: tuple[Weights, mx.array], compute: Compute, wide: bool) -> None:
    check(*case, compute, wide=wide)


@pytest.mark.parametrize("compute", ["fast", "exact"])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_every_format(bits: int, group_size: int, compute: Compute) -> None:
    for dtype in DTYPES:
        weights = quantised(40, 2 * group_size, bits, group_size, dtype, seed=bits)
        x = mx.array(np.random.default_rng(3).normal(size=(11, 2 * group_size)).astype(np.float32))
        check(weights, x, compute)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.sampled_from([0, *BITS]),
    st.sampled_from(DTYPES),
    st.sampled_from(["fast", "exact"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_a_row_does_not_depend_on_its_company(
    rows: int, bits: int, dtype: mx.Dtype, compute: Compute, wide: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    group_size = int(rng.choice([32, 64, 128]))
    inputs, outputs = group_size * int(rng.integers(1, 12)), int(rng.integers(1, 150))
    if bits:
        weights = quantised(outputs, inputs, bits, group_size, dtype, seed)
    else:
        weights = dense(outputs, inputs, dtype, seed)
    matrix = weights.matrix(wide=wide, bias=mx.random.normal((outputs,)))
    x = mx.array(rng.normal(size=(rows, inputs)).astype(np.float32))
    together = linear(matrix, x, compute)
    for threads in (1, 2, 3):
        library().lib.pamx_set_num_threads(threads)
        for r in rng.permutation(rows)[:8]:
            alone = linear(matrix, x[int(r)], compute)
            assert mx.array_equal(alone, together[int(r)])
        assert mx.array_equal(linear(matrix, x, compute), together)


@pytest.fixture(autouse=True)
def _threads_again() -> object:
    before = library().lib.pamx_num_threads()
    yield
    library().lib.pamx_set_num_threads(before)


def test_more_rows_than_one_pass_takes() -> None:
    weights = quantised(24, 64, 4, 64, mx.float32, seed=5)
    matrix = weights.matrix()
    x = mx.random.normal((1100, 64))
    for compute in ("fast", "exact"):
        whole = linear(matrix, x, compute)
        for first in (0, 1, 511, 512, 1023, 1099):
            assert mx.array_equal(linear(matrix, x[first : first + 1], compute)[0], whole[first])
        half = linear(matrix, x.astype(mx.float16), compute)
        assert half.dtype == mx.float16
        assert mx.array_equal(
            half,
            linear(matrix, x.astype(mx.float16).astype(mx.float32), compute).astype(half.dtype),
        )


@pytest.mark.parametrize("bits", [0, *BITS])
def test_the_same_on_every_instruction_set(bits: int, tmp_path: Path) -> None:
    """Child processes compute with lesser kernels; every bit is the same."""
    script = """
import sys
import mlx.core as mx
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_linear import dense, quantised, linear
bits = int(sys.argv[1])
parts = []
for group_size in (32, 64, 128):
    for wide in (False, True):
        weights = (
            quantised(37, 512, bits, group_size, mx.float16, 1) if bits
            else dense(37, 512, mx.bfloat16, 1)
        )
        matrix = weights.matrix(wide=wide)
        for rows in (1, 2, 7, 21):
            x = np.random.default_rng(rows).normal(size=(rows, 512)).astype(np.float32)
            for compute in ("fast", "exact"):
                parts.append(np.array(linear(matrix, mx.array(x), compute)).ravel())
np.concatenate(parts).tofile(sys.argv[3])
"""
    isas = {"x86_64": ["avx512", "avx2", "portable"], "aarch64": ["neon", "portable"]}
    results = []
    for isa in isas.get(os.uname().machine, ["portable"]):
        out = tmp_path / isa
        subprocess.run(
            [sys.executable, "-c", script, str(bits), str(Path(__file__).parent), str(out)],
            env={**os.environ, "PAMX_CPU_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
        results.append(out.read_bytes())
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("bits", [0, *BITS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unpacking_gives_the_same_bits(bits: int, dtype: mx.Dtype) -> None:
    for outputs in (1, 16, 45):
        weights = (
            quantised(outputs, 256, bits, 64, dtype, seed=7)
            if bits
            else dense(outputs, 77, dtype, 7)
        )
        for found, packed in zip(
            weights.matrix().unpack(), (weights.weight, weights.scales, weights.biases), strict=True
        ):
            if packed is None:
                assert found is None
                continue
            assert found is not None
            assert found.dtype == packed.dtype
            assert mx.array_equal(found.view(mx.uint8), packed.view(mx.uint8))


def test_narrow_scales_change_no_result() -> None:
    weights = quantised(50, 192, 4, 32, mx.float16, seed=8)
    assert weights.scales is not None
    assert weights.biases is not None
    full = Weights(
        weights.weight,
        weights.scales.astype(mx.float32),
        weights.biases.astype(mx.float32),
        4,
        32,
    )
    assert full.scales is not None
    assert full.biases is not None
    assert narrowest_scale_type(full.scales, full.biases) == mx.float16
    assert narrowest_scale_type(full.scales, full.biases + 1e-5) == mx.float32
    assert narrowest_scale_type(full.scales * 1e9) == mx.float32
    assert narrowest_scale_type(full.scales.astype(mx.bfloat16)) == mx.bfloat16
    wide, narrow = full.format, MatrixFormat(50, 192, 4, 32, mx.float16)
    assert narrow.nbytes < wide.nbytes
    memory = Memory.allocate(narrow.nbytes)
    pack(narrow, full.weight, full.scales, full.biases, memory)
    matrix = Matrix(narrow, memory)
    x = mx.random.normal((5, 192))
    for compute in ("fast", "exact"):
        assert mx.array_equal(linear(matrix, x, compute), linear(full.matrix(), x, compute))
    again = matrix.unpack(mx.float32)
    for found, packed in zip(again, (full.weight, full.scales, full.biases), strict=True):
        assert found is not None
        assert mx.array_equal(found.view(mx.uint8), packed.view(mx.uint8))
    other = Memory.allocate(narrow.nbytes)
    with pytest.raises(NativeError, match="no float16 number"):
        pack(narrow, full.weight, full.scales, full.biases + 1e-5, other)
    ids = mx.array([3, 0, 49])
    assert mx.array_equal(
        embedding(matrix, ids, mx.float32),
        mx.dequantize(full.weight, full.scales, full.biases, group_size=32, bits=4)[ids],
    )


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_exact_equals_mlx(bits: int, group_size: int) -> None:
    w = mx.random.normal((96, 512), key=mx.random.key(bits))
    words, scales, biases = mx.quantize(w, group_size=group_size, bits=bits)
    weights = Weights(words, scales, biases, bits, group_size)
    x = mx.random.normal((9, 512), key=mx.random.key(1))
    expected = mx.quantized_matmul(x, words, scales, biases, group_size=group_size, bits=bits)
    found = linear(weights.matrix(), x, "exact")
    spread = np.abs(numpy(x)) @ np.abs(weights.float64()).T
    assert (np.abs(numpy(found) - numpy(expected)) <= 4e-6 * spread).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_equals_dequantize(bits: int, dtype: mx.Dtype) -> None:
    for group_size in (32, 64, 128):
        weights = quantised(61, 256, bits, group_size, dtype, seed=9)
        ids = mx.array([[0, 60, 17], [60, 5, -1]])
        expected = mx.dequantize(
            weights.weight, weights.scales, weights.biases, group_size=group_size, bits=bits
        )[ids]
        found = embedding(weights.matrix(), ids, dtype)
        assert found.dtype == dtype
        assert mx.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_embedding_takes_ids_as_they_are(dtype: type[np.integer[Any]]) -> None:
    """No id that is outside the matrix becomes one inside by losing its upper bits."""
    weights = dense(8, 32, mx.float32, seed=19)
    info = np.iinfo(dtype)
    ids = [3, 7, 8, -1, -8, -9, info.max, info.min, 2**32 + 1, 3 - 2**32]
    fitting = [i for i in ids if info.min <= i <= info.max]
    found = embedding(weights.matrix(), mx.array(np.array(fitting, dtype)), mx.float32)
    for i, row in zip(fitting, np.array(found), strict=True):
        expected = np.array(weights.weight)[i] if -8 <= i < 8 else np.full(32, np.nan)
        np.testing.assert_array_equal(row, expected, err_msg=str(i))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_of_dense_rows(dtype: mx.Dtype) -> None:
    weights = dense(33, 45, dtype, seed=10)
    ids = mx.array([32, 0, 7], dtype=mx.uint32)
    assert mx.array_equal(embedding(weights.matrix(), ids, dtype), weights.weight[ids])
    assert mx.isnan(embedding(weights.matrix(), mx.array([33]), dtype)).all()


# ---- extremes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", ["fast", "exact"])
@pytest.mark.parametrize("bits", BITS)
def test_integers_at_both_ends(bits: int, compute: Compute) -> None:
    """All bits clear and all bits set, against activations of +max and -max: where saturating
    arithmetic would give itself away."""
    words = mx.array(np.repeat(np.array([[0], [2**32 - 1]], np.uint32), 64 * bits // 32, axis=1))
    weights = Weights(words, mx.full((2, 2), 0.5), mx.full((2, 2), -3.0), bits, 32)
    for signs in (np.ones(64), -np.ones(64), np.tile([1.0, -1.0], 32)):
        x = (signs * 1000.0)[None]
        expected = x @ weights.float64().T
        for wide in (False, True):
            out = linear(weights.matrix(wide=wide), mx.array(x.astype(np.float32)), compute)
            np.testing.assert_allclose(numpy(out), expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("compute", ["fast", "exact"])
def test_groups_of_zeros(compute: Compute) -> None:
    weights = quantised(20, 128, 4, 32, mx.float32, seed=11)
    x = np.random.default_rng(0).normal(size=(5, 128)).astype(np.float32)
    x[:, 32:64] = 0
    x[3] = 0
    check(weights, mx.array(x), compute)
    assert (numpy(linear(weights.matrix(), mx.array(x), compute))[3] == 0).all()
    assert weights.scales is not None
    flat = Weights(weights.weight, mx.zeros_like(weights.scales), weights.biases, 4, 32)
    check(flat, mx.array(x), compute)


@pytest.mark.parametrize("compute", ["fast", "exact"])
@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-35, 1e-20, 1e20, 1e30, 1e35])
def test_tiny_and_huge_activations(scale: float, compute: Compute) -> None:
    weights = quantised(20, 128, 8, 64, mx.float32, seed=12)
    x = mx.array((np.random.default_rng(1).normal(size=(3, 128)) * scale).astype(np.float32))
    out = numpy(linear(weights.matrix(), x, compute))
    expected = numpy(x) @ weights.float64().T
    # float32 itself keeps nothing below 1e-45; `fast` takes activations below 2^-100 for zero.
    floor = 128 * 255 * 16 * (2.0**-100 if compute == "fast" else 1e-45)
    bound = rounding(weights, numpy(x), compute, False) + floor
    inside = np.abs(numpy(x)) @ np.abs(weights.float64()).T < 3e38  # partial sums, too
    assert (np.abs(out - expected) <= bound)[inside].all()
    mixed = mx.concatenate([x, mx.ones((2, 128))])
    assert mx.array_equal(
        linear(weights.matrix(), mixed, compute)[3:],
        linear(weights.matrix(), mx.ones((2, 128)), compute),
    )


@pytest.mark.parametrize("compute", ["fast", "exact"])
@pytest.mark.parametrize("bits", [0, 4, 8])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_passes_through_as_in_mlx(
    value: float, bits: int, compute: Compute
) -> None:
    weights = (
        quantised(24, 128, bits, 64, mx.float32, 13) if bits else dense(24, 128, mx.float32, 13)
    )
    values = np.random.default_rng(2).normal(size=(6, 128)).astype(np.float32)
    clean = linear(weights.matrix(), mx.array(values), compute)
    values[2, 77] = value
    values[5, 3] = value
    bias = mx.arange(24).astype(mx.float32)
    out = linear(weights.matrix(bias=bias), mx.array(values), compute)
    if bits:
        expected = mx.quantized_matmul(
            mx.array(values),
            weights.weight,
            weights.scales,
            weights.biases,
            group_size=64,
            bits=bits,
        )
    else:
        expected = mx.array(values) @ weights.weight.T
    for row in (2, 5):
        np.testing.assert_array_equal(np.array(out[row]), np.array(expected[row]))
    for row in (0, 1, 3, 4):
        assert mx.array_equal(out[row], clean[row] + bias)


# ---- how it joins a graph -------------------------------------------------------------------


def test_lazy_strided_and_shaped() -> None:
    weights = quantised(20, 64, 6, 32, mx.float16, seed=14)
    matrix = weights.matrix()
    x = mx.random.normal((4, 3, 2, 64))
    flat = linear(matrix, x.reshape(-1, 64))
    assert mx.array_equal(linear(matrix, x).reshape(-1, 20), flat)
    turned = linear(matrix, (x * 2).transpose(1, 0, 2, 3) / 2)
    assert mx.array_equal(turned, linear(matrix, x).transpose(1, 0, 2, 3))
    every_other = mx.random.normal((5, 128))[:, ::2]
    assert mx.array_equal(
        linear(matrix, every_other), linear(matrix, mx.array(np.array(every_other)))
    )
    assert linear(matrix, mx.zeros((0, 64))).shape == (0, 20)
    assert embedding(matrix, mx.array([], dtype=mx.int32), mx.float16).shape == (0, 64)


def test_a_queued_operation_keeps_the_weights() -> None:
    weights = quantised(64, 256, 4, 32, mx.float32, seed=15)
    x = mx.random.normal((3, 256))
    mx.eval(x)
    expected = np.array(linear(weights.matrix(), x))
    waiting = [linear(weights.matrix(), x) for _ in range(20)]  # matrices and memory are gone
    for out in waiting:
        np.testing.assert_array_equal(np.array(out), expected)


def test_compiled() -> None:
    matrix = quantised(32, 64, 4, 32, mx.float32, seed=16).matrix()
    step = mx.compile(lambda x: linear(matrix, x * 2) + 1)
    x = mx.random.normal((2, 64))
    assert mx.array_equal(step(x), linear(matrix, x * 2) + 1)


def test_mapped_memory(tmp_path: Path) -> None:
    weights = quantised(40, 128, 3, 64, mx.bfloat16, seed=17)
    matrix = weights.matrix()
    path = tmp_path / "weights"
    path.write_bytes(bytes(64) + bytes(matrix.memory.view()))
    size = path.stat().st_size
    mapped = Matrix(weights.format, Memory.map(path, size), 64)
    x = mx.random.normal((3, 128))
    assert mx.array_equal(linear(mapped, x), linear(matrix, x))
    with pytest.raises(NativeError, match=f"is {size} bytes long instead of {size + 1}"):
        Memory.map(path, size + 1)
    with pytest.raises(NativeError, match="No such file"):
        Memory.map(tmp_path / "none", 64)


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 64, 4, 32), "a matrix of 0 x 64 is none"),
        ((2**31 - 1, 64, 4, 32), "a matrix of 2147483647 x 64 is too large"),
        ((2**30, 2**30, 0, 0), "is too large; the most are 2097152 each way"),
        ((16, 64, 5, 32), "bits must be 2, 3, 4, 6 or 8, not 5"),
        ((16, 64, 4, 16), "group_size must be 32, 64 or 128, not 16"),
        ((16, 80, 4, 32), "80 inputs are not a multiple of 32"),
        ((16, 64, 0, 32), "a dense matrix has no groups, not 32"),
    ],
)
def test_wrong_formats(fields: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        _ = MatrixFormat(*fields, mx.float32).nbytes


def test_wrong_arguments() -> None:
    weights = quantised(16, 64, 4, 32, mx.float32, seed=18)
    matrix = weights.matrix()
    with pytest.raises(NativeError, match="the matrix has 64 inputs"):
        linear(matrix, mx.zeros((2, 63)))
    with pytest.raises(NativeError, match="x is int32"):
        linear(matrix, mx.zeros((2, 64), dtype=mx.int32))
    with pytest.raises(NativeError, match="instead of integers"):
        embedding(matrix, mx.zeros((2,)), mx.float32)
    with pytest.raises(TypeError):
        linear(matrix, np.zeros((2, 64)))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        embedding(matrix, [1, 2], mx.float32)  # type: ignore[arg-type]
    small = Memory.allocate(64)
    with pytest.raises(NativeError, match="does not fit memory of 64 bytes"):
        Matrix(weights.format, small)
    with pytest.raises(NativeError, match="does not fit"):
        Matrix(weights.format, Memory.allocate(weights.format.nbytes + 64), 32)
    with pytest.raises(ValueError, match="are not in memory of 64"):
        pack(weights.format, weights.weight, weights.scales, weights.biases, small)
    with pytest.raises(ValueError, match="scales is missing"):
        pack(weights.format, weights.weight, None, None, matrix.memory)
    with pytest.raises(ValueError, match="weight is"):
        pack(weights.format, weights.weight[:8], weights.scales, weights.biases, matrix.memory)
    with pytest.raises(ValueError, match="bias has shape"):
        weights.matrix(bias=mx.zeros((15,)))


def test_unpacking_without_memory_is_an_error_and_no_crash() -> None:
    code = """
import resource
import mlx.core as mx
from pamx.native.matrices import Matrix, MatrixFormat, Memory
made = MatrixFormat(4096, 2048, 4, 64, mx.float16)
matrix = Matrix(made, Memory.allocate(made.nbytes))
matrix.unpack()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (30 << 20), resource.RLIM_INFINITY))
kept = []
try:
    while True:
        kept.append(matrix.unpack())
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "there is no memory for" in done.stdout
