"""The software Metal's library against NumPy: types, functions, simdgroups, matrices."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from metal import softmetal

SOURCE = Path(__file__).parent / "kernels" / "primitives.metal"
FROM_OUTSIDE = (
    'template [[host_name("outside")]] [[kernel]] '
    "decltype(inner::instantiated_from_outside<half>) inner::instantiated_from_outside<half>;"
)
ORDERS = [0, 1, 3]


@pytest.fixture(scope="module")
def program() -> softmetal.Program:
    return softmetal.compile(SOURCE, [FROM_OUTSIDE])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def to_bfloat(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16, ties to even; NaN stays quiet."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def from_bfloat(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ---- conversions and vectors --------------------------------------------------------------------


def test_floats_round_to_half_and_bfloat(
    program: softmetal.Program, rng: np.random.Generator
) -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65520, 1e-8, 6e-5, 3.4e38, 1.00390625]
    tie = np.array([0x3F808000, 0x3F818000, 0x3F80C000, 0x7F7FFFFF], np.uint32).view(np.float32)
    x = np.concatenate([special, tie, rng.standard_normal(1009) * 10.0 ** rng.uniform(-9, 9, 1009)])
    x = x.astype(np.float32)
    halves, bfloats = np.zeros(1024, np.float16), np.zeros(1024, np.uint16)
    program.run("round_to", (32, 1, 1), (32, 1, 1), {0: x, 1: halves, 2: bfloats})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves, x.astype(np.float16))
    np.testing.assert_array_equal(from_bfloat(bfloats), from_bfloat(to_bfloat(x)))

    wide = np.zeros((1024, 2), np.float32)
    program.run("widen", (32, 1, 1), (32, 1, 1), {0: halves, 1: bfloats, 2: wide})
    np.testing.assert_array_equal(wide[:, 0], halves.astype(np.float32))
    np.testing.assert_array_equal(wide[:, 1], from_bfloat(bfloats))


def test_half_rounds_after_every_operation(
    program: softmetal.Program, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((256, 4)).astype(np.float16)
    out = np.zeros_like(x)
    program.run("half_arithmetic", (8, 1, 1), (32, 1, 1), {0: x, 1: out})
    a, b, c = x[:, 0], x[:, 1], x[:, 2]
    fused = (a.astype(np.float64) * b + c).astype(np.float16)
    np.testing.assert_array_equal(out, np.stack([a * b + c, fused, a - b, a / b], 1))
    assert (out[:, 0] != out[:, 1]).any()


def test_bfloat_vectors(program: softmetal.Program, rng: np.random.Generator) -> None:
    bits = to_bfloat(rng.standard_normal((64, 4)))
    out = np.zeros_like(bits)
    program.run("bfloat_vectors", (2, 1, 1), (32, 1, 1), {0: bits, 1: out})
    x = from_bfloat(bits)
    np.testing.assert_array_equal(out, to_bfloat(x[:, ::-1] * 2 + x))


def test_swizzles(program: softmetal.Program, rng: np.random.Generator) -> None:
    x = rng.standard_normal((32, 4)).astype(np.float32)
    out = np.zeros((32, 6, 4), np.float32)
    program.run("swizzles", (1, 1, 1), (32, 1, 1), {0: x, 1: out})
    a, b, c, _ = x.T
    np.testing.assert_array_equal(out[:, 0], x[:, ::-1])
    np.testing.assert_array_equal(out[:, 1], np.stack([a, a, b * 2, c * 2], 1))
    np.testing.assert_array_equal(out[:, 2], np.stack([a, b, a, b], 1))
    a2, b2 = a + 2, b + 1
    np.testing.assert_array_equal(out[:, 3], np.stack([a2, b2, a, b], 1))
    four = np.stack([2 * a2 * a + b2 * b2, np.hypot(a2, b2), -b, a], 1)
    np.testing.assert_allclose(out[:, 4], four, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        out[:, 5], np.stack([a2, np.maximum(a2, a), np.maximum(b2, b), b], 1)
    )


def test_integer_vectors(program: softmetal.Program, rng: np.random.Generator) -> None:
    v = rng.integers(-1000, 1000, (64, 4), dtype=np.int32)
    v[0] = [0, -1, 2**30, 5]
    out = np.zeros((64, 4, 4), np.int32)
    program.run("integers", (2, 1, 1), (32, 1, 1), {0: v, 1: out})
    with np.errstate(over="ignore"):
        first = (v + 3) * v - (v << 2) + (v & 7) + (v | 1) + (v ^ v[:, ::-1]) + ~v
    np.testing.assert_array_equal(out[:, 0], first)
    pairs = v[:, [1, 0, 3, 2]]
    second = np.where(v > pairs, np.clip(v, -5, 5), np.minimum(v, pairs))
    np.testing.assert_array_equal(out[:, 1], second)
    words = [format(x & 0xFFFFFFFF, "032b") for x in v[:, 0].tolist()]
    third = [
        [
            w.count("1"),
            len(w) - len(w.lstrip("0")),
            len(w) - len(w.rstrip("0")),
            w[-8:].count("1"),
        ]
        for w in words
    ]
    np.testing.assert_array_equal(out[:, 2], third)
    high = (v[:, 0].astype(np.int64) * v[:, 1]) >> 32
    fourth = np.stack([(v > 0).any(1), (v > 0).all(1), high, abs(v[:, 2])], 1)
    np.testing.assert_array_equal(out[:, 3], fourth)


def test_packed_vectors_have_the_alignment_of_their_elements(
    program: softmetal.Program, rng: np.random.Generator
) -> None:
    x = np.zeros(32, [("a", "f4", 3), ("b", "f4"), ("c", "f2", 2)])
    for name in x.dtype.names or ():
        x[name] = rng.standard_normal(x[name].shape)
    out = np.zeros((32, 4), np.float32)
    program.run("packed", (1, 1, 1), (32, 1, 1), {0: x, 1: out})
    want = [x["a"][:, 2], x["a"][:, 1], x["b"] + x["a"][:, 0], x["c"][:, 0] + x["c"][:, 1]]
    np.testing.assert_array_equal(out, np.stack(want, 1))


def test_functions(program: softmetal.Program, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.uniform(-5, 5, 60), [0.5, -0.5, 2.5, -1.5]]).astype(np.float32)
    out = np.zeros((64, 24), np.float32)
    program.run("functions", (2, 1, 1), (32, 1, 1), {0: x, 1: out})
    y, a = x.astype(np.float64), np.abs(x.astype(np.float64))
    want = [np.exp(y), *[np.exp2(y)] * 3, np.log(a), np.log2(a), np.tanh(y), np.sin(y), np.cos(y)]
    want += [np.sqrt(a), 1 / np.sqrt(a), np.floor(y), np.ceil(y), np.rint(y)]
    want += [np.copysign(np.floor(a + 0.5), y), np.trunc(y), a**1.5]
    want += [np.fmod(x, np.float32(0.7)), np.copysign(2, y), np.sign(y)]
    want += [np.exp(x.astype(np.float16).astype(np.float64)).astype(np.float16), np.tanh(y)]
    want += [np.full(64, np.float32(1) / np.float32(3)), 2 * y]
    np.testing.assert_allclose(out, np.stack(want, 1), rtol=2e-6, atol=1e-6)
    assert (out[:, 22] == np.float32(1) / np.float32(3)).all()


# ---- simdgroups, threadgroups, grids ------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["float", "half", "int"])
def test_simd_operations(program: softmetal.Program, kind: str, order: int) -> None:
    dtype = {"float": np.float32, "half": np.float16, "int": np.int32}[kind]
    x = np.random.default_rng(3).permutation(64).astype(dtype)
    out = np.zeros((64, 20), dtype)
    program.run(f"simd_{kind}", (1, 1, 1), (64, 1, 1), {0: x, 1: out}, order=order)
    for half in (x[:32], x[32:]):
        got = out[:32] if half[0] == x[0] else out[32:]
        lane = np.arange(32)
        quads = half.reshape(8, 4)
        both = np.concatenate([-half, half])
        want = {
            0: np.full(32, half.sum()),
            1: np.full(32, half.max()),
            2: np.full(32, half.min()),
            3: np.cumsum(half),
            4: np.cumsum(half) - half,
            5: half[::-1],
            6: half[lane ^ 5],
            7: half[np.where(lane < 3, lane, lane - 3)],
            8: half[np.where(lane > 28, lane, lane + 3)],
            9: both[32 - 3 : 64 - 3],
            10: np.concatenate([half, -half])[3:35],
            11: np.full(32, half[7]),
            12: np.full(32, half[0]),
            13: np.repeat(quads.sum(1), 4),
            14: np.repeat(quads.max(1), 4),
            15: half[lane ^ 1],
            16: np.repeat(quads[:, 2], 4),
            17: np.roll(half, 2),
            18: np.roll(half, -2),
            19: np.full(32, (half > 8).any() * 2 + (half > 8).all()),
        }
        for column, values in want.items():
            np.testing.assert_array_equal(got[:, column], values, err_msg=f"column {column}")


def test_ballots_and_vector_reductions(program: softmetal.Program) -> None:
    out = np.zeros((32, 2), np.uint32)
    program.run("ballot", (1, 1, 1), (32, 1, 1), {0: out})
    assert (out == [0x22222222, 31 * 16 + 32]).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [64, 40])
def test_threadgroup_variables_have_the_size_that_the_template_gives(
    program: softmetal.Program, size: int, order: int
) -> None:
    x = np.arange(5 * size, dtype=np.int32)
    want = x.reshape(5, size)[:, ::-1].ravel()
    program.run(f"reverse_{size}", (5, 1, 1), (size, 1, 1), {0: x}, order=order)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("order", ORDERS)
def test_positions(program: softmetal.Program, order: int) -> None:
    grid, size = (2, 3, 2), (5, 4, 3)
    shape = tuple(g * s for g, s in zip(grid, size, strict=True))
    out = np.zeros((*shape[::-1], 16), np.uint32)
    program.run("positions", grid, size, {0: out}, order=order)
    z, y, x = np.indices(shape[::-1])
    local = [x % 5, y % 4, z % 3]
    index = local[0] + 5 * (local[1] + 4 * local[2])
    want = [x, y, z, x // 5, y // 4, z // 3, *local, index, index % 32, index // 32]
    want += [np.full_like(x, c) for c in (543, 232, 2, 32)]
    np.testing.assert_array_equal(out, np.stack(want, -1))


@pytest.mark.parametrize("order", ORDERS)
def test_atomics(program: softmetal.Program, order: int) -> None:
    total, top = np.zeros(1, np.uint32), np.zeros(1, np.int32)
    program.run("count", (4, 1, 1), (64, 1, 1), {0: total, 1: top}, order=order)
    assert (total[0], top[0]) == (255 * 128, 255)


def test_kernels_in_namespaces(program: softmetal.Program) -> None:
    out, halves = np.zeros(32, np.float32), np.zeros(32, np.float16)
    program.run("in_a_namespace", (1, 1, 1), (32, 1, 1), {2: out})
    program.run("outside", (1, 1, 1), (32, 1, 1), {2: halves})
    assert (out == 8).all()
    np.testing.assert_array_equal(halves, np.arange(32) * 3)


# ---- matrices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
@pytest.mark.parametrize("transpose", range(8))
def test_matrices(program: softmetal.Program, kind: str, transpose: int, order: int) -> None:
    rng = np.random.default_rng(transpose)
    ta, tb, td = flags = [bool(transpose >> i & 1) for i in range(3)]
    a, b = rng.standard_normal((2, 12, 12)).astype(np.float32)
    c = rng.standard_normal((8, 12)).astype(np.float32)
    if kind == "half":
        a, b = a.astype(np.float16), b.astype(np.float16)
    given = [to_bfloat(a), to_bfloat(b)] if kind == "bfloat" else [a, b]
    if kind == "bfloat":
        a, b = (from_bfloat(x) for x in given)
    d = np.zeros((12, 12), np.float32)
    buffers = {0: given[0], 1: given[1], 2: c, 3: d, 4: np.array(flags)}
    program.run(f"multiply_{kind}", (1, 1, 1), (32, 1, 1), buffers, order=order)
    left, right = a[1:9, 2:10].astype(np.float64), b[:8, :8].astype(np.float64)
    want = (left.T if ta else left) @ (right.T if tb else right) + c[:, :8]
    np.testing.assert_allclose(d[2:10, 1:9], want.T if td else want, atol=3e-6)
    d[2:10, 1:9] = 0
    assert not d.any()


def test_the_lanes_of_a_matrix(program: softmetal.Program) -> None:
    m = np.arange(64, dtype=np.float32).reshape(8, 8)
    lanes, product = np.zeros((32, 2), np.float32), np.zeros((8, 8), np.float32)
    program.run("matrix_elements", (1, 1, 1), (32, 1, 1), {0: m, 1: lanes, 2: product})
    lane = np.arange(32)
    row = (lane // 4 & 4) + lane // 2 % 4
    column = (lane // 4 & 2) * 2 + lane % 2 * 2
    np.testing.assert_array_equal(lanes, np.stack([m[row, column], m[row, column + 1]], 1))
    np.testing.assert_array_equal(product, ((m @ np.full((8, 8), 2.0)) + 1) * 3)


# ---- the tool itself ----------------------------------------------------------------------------


def test_a_decode_of_1024_tokens_takes_well_under_a_second(
    program: softmetal.Program, rng: np.random.Generator
) -> None:
    q, k, v = (rng.standard_normal((n, 128)).astype(np.float32) for n in (32, 1024, 1024))
    out = np.zeros_like(q)
    start = time.process_time()
    buffers = {0: q * 0.1, 1: k, 2: v, 3: out, 4: np.array([1024], np.uint32)}
    switches = program.run("decode", (32, 1, 1), (32, 1, 1), buffers)
    seconds = time.process_time() - start
    scores = (q * 0.1).astype(np.float64) @ k.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights @ v / weights.sum(1, keepdims=True), atol=1e-5)
    assert switches > 32 * 1024 * 32
    assert seconds < 0.5


def test_one_array_at_two_indices_is_one_buffer(program: softmetal.Program) -> None:
    x = np.arange(32, dtype=np.float32)
    pieces = np.zeros((32, 2), np.float32)
    with pytest.raises(softmetal.MetalError, match="overlaps"):
        program.run("matrix_elements", (1, 1, 1), (32, 1, 1), {0: x, 1: x[:16], 2: pieces})
    m = np.arange(64, dtype=np.float32)
    program.run("matrix_elements", (1, 1, 1), (32, 1, 1), {0: m, 1: pieces, 2: m})
    assert m[0] == (28 * 2 + 1) * 3


def test_a_changed_text_is_another_program(tmp_path: Path) -> None:
    path, header = tmp_path / "k.metal", tmp_path / "value.h"
    path.write_text(
        '#include <metal_stdlib>\n#include "value.h"\n'
        "kernel void k(device int* out [[buffer(0)]]) { out[0] = VALUE + __METAL_VERSION__; }\n"
    )
    out = np.zeros(1, np.int32)
    for value in (1, 2):
        header.write_text(f"#define VALUE {value}\n")
        softmetal.compile(path).run("k", (1, 1, 1), (1, 1, 1), {0: out})
        assert out[0] == value + 310
    start = time.perf_counter()
    assert softmetal.compile(path) is softmetal.compile(path)
    assert time.perf_counter() - start < 2
    softmetal.compile(path, language=400).run("k", (1, 1, 1), (1, 1, 1), {0: out})
    assert out[0] == 402
