"""The fused blocks equal float64 NumPy and mlx-lm's layers; a row's bits are its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import families
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Array, Case, Step, attention

from pamx.errors import NativeError
from pamx.native.blocks import AttentionBlock, LayerBlock, MlpBlock, Norm
from pamx.native.loader import library
from pamx.native.matrices import Compute, Matrix, MatrixFormat, Memory, linear, pack
from pamx.native.ops import NativeBatch
from pamx.native.small import GateKind, Rope

COMPUTES: list[Compute] = ["fast", "exact"]
# x of about 1 through sums of a hundred products; 16-bit rows are rounded on their way in and out.
TOLERANCE = {mx.float32: 5e-5, mx.float16: 6e-3, mx.bfloat16: 5e-2}


class Weights:
    """Random parameters, as the library's matrices and norms and as float64."""

    def __init__(self, seed: int, bits: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.bits = bits

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def layer(self, outputs: int, inputs: int, bias: bool) -> tuple[nn.Module, Callable[..., Any]]:
        """An mlx layer and what it computes."""
        linear = nn.Linear(inputs, outputs, bias=bias)
        linear.weight = mx.array(self.normal(outputs, inputs, scale=inputs**-0.5))
        if bias:
            linear.bias = mx.array(self.normal(outputs))
        layer: nn.Module = linear
        weight = linear.weight
        if self.bits:
            layer = linear.to_quantized(group_size=32, bits=self.bits)
            weight = mx.dequantize(
                layer.weight, layer.scales, layer.biases, group_size=32, bits=self.bits
            )
        w = np.array(weight).astype(np.float64)
        b = np.array(linear.bias).astype(np.float64) if bias else 0.0
        return layer, lambda x: x @ w.T + b

    def norm(self, kind: str | None, size: int) -> tuple[Norm | None, Callable[..., Any]]:
        if kind is None:
            return None, lambda x: x
        weight, bias = self.normal(size), self.normal(size)
        has_bias = kind == "layer"
        found = Norm(
            "layer" if kind == "layer" else "rms",
            size,
            1e-3,
            mx.array(weight),
            mx.array(bias) if has_bias else None,
        )

        def expected(x: Array) -> Array:
            centred = x - x.mean(-1, keepdims=True) if has_bias else x
            scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
            result: Array = scaled * weight + (bias if has_bias else 0.0)
            return result

        return found, expected


def matrix_of(*layers: nn.Module) -> Matrix:
    """A packed matrix of one mlx layer, or of several with their rows one below the other."""
    parts = [
        mx.concatenate([layer[name] for layer in layers]) if name in layers[0] else None
        for name in ("weight", "scales", "biases", "bias")
    ]
    weight, scales, biases, bias = parts
    quantised = {} if scales is None else {"bits": layers[0].bits, "group_size": 32}
    form = MatrixFormat.of(weight, scales, **quantised)
    memory = Memory.allocate(form.nbytes)
    pack(form, weight, scales, biases, memory)
    return Matrix(form, memory, bias=bias)


def rotate(x: Array, positions: np.ndarray, dims: int, base: float, traditional: bool) -> Array:
    """x: [tokens, heads, dim]"""
    half = dims // 2
    inverse = base ** -(np.arange(half) / half)
    angles = (positions[:, None] * inverse)[:, None]
    a, b = (
        (slice(0, dims, 2), slice(1, dims, 2))
        if traditional
        else (
            slice(0, half),
            slice(half, dims),
        )
    )
    out = x.copy()
    out[..., a] = x[..., a] * np.cos(angles) - x[..., b] * np.sin(angles)
    out[..., b] = x[..., a] * np.sin(angles) + x[..., b] * np.cos(angles)
    return out


@dataclass
class Options:
    """What a block may have besides its matrices."""

    bits: int = 4
    biases: bool = False
    fused: bool = False
    input_norm: str | None = "rms"
    head_norm: str | None = None
    head_norm_each: bool = True
    output_norm: str | None = None
    rope_dims: int = 0
    traditional: bool = False
    residual_scale: float = 1.0
    width: int = 96
    case: Case = field(default_factory=lambda: Case([9], [9], 4, 2, 16, 16, 8))


class Attention:
    """A block and its oracle."""

    def __init__(self, options: Options, compute: Compute = "exact") -> None:
        o, case = options, options.case
        weights = Weights(case.seed, o.bits)
        self.options = o
        sizes = [case.heads * case.k_dim, case.kv_heads * case.k_dim, case.kv_heads * case.v_dim]
        layers, self.project = zip(
            *(weights.layer(size, o.width, o.biases) for size in sizes), strict=True
        )
        out_layer, self.output = weights.layer(o.width, case.heads * case.v_dim, o.biases)
        input_norm, self.input_norm = weights.norm(o.input_norm, o.width)
        output_norm, self.output_norm = weights.norm(o.output_norm, o.width)
        each = o.head_norm_each
        query_norm, self.query_norm = weights.norm(o.head_norm, case.k_dim if each else sizes[0])
        key_norm, self.key_norm = weights.norm(o.head_norm, case.k_dim if each else sizes[1])
        step = case.build()
        self.sinks = step.sinks
        self.block = AttentionBlock(
            compute=compute,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.k_dim,
            v_dim=case.v_dim,
            projections=[matrix_of(*layers)] if o.fused else [matrix_of(x) for x in layers],
            output=matrix_of(out_layer),
            input_norm=input_norm,
            query_norm=query_norm,
            key_norm=key_norm,
            output_norm=output_norm,
            rope=Rope(o.rope_dims, base=100.0, traditional=o.traditional) if o.rope_dims else None,
            scale=step.scale,
            softcap=case.softcap,
            sinks=None if step.sinks is None else mx.array(step.sinks),
            residual_scale=o.residual_scale,
        )

    def expected(self, x: Array, step: Step, pool: mx.Dtype) -> tuple[Array, Step]:
        """The output, and the step with the rows that must now be in the pools."""
        case, o = self.options.case, self.options

        def rounded(rows: Array) -> np.ndarray:
            return np.array(mx.array(rows.astype(np.float32)).astype(pool).astype(mx.float32))

        n = self.input_norm(x)
        q, k, v = (p(n) for p in self.project)
        q, k = (
            norm(a.reshape(len(x), -1, case.k_dim) if o.head_norm_each else a)
            for a, norm in ((q, self.query_norm), (k, self.key_norm))
        )
        q, k, v = (
            a.reshape(len(x), -1, d) for a, d in ((q, case.k_dim), (k, case.k_dim), (v, case.v_dim))
        )
        positions = np.concatenate(
            [np.arange(c - m, c) for c, m in zip(case.context_lens, case.query_lens, strict=True)]
        )
        if o.rope_dims:
            q, k = (rotate(a, positions, o.rope_dims, 100.0, o.traditional) for a in (q, k))
        attended = []
        for s, new in enumerate(case.query_lens):
            rows = slice(*step.query_starts[s : s + 2])
            step.sequence_keys[s][-new:] = rounded(k[rows])
            step.sequence_values[s][-new:] = rounded(v[rows])
            attended.append(
                attention(
                    q[rows],
                    step.sequence_keys[s].astype(np.float64),
                    step.sequence_values[s].astype(np.float64),
                    scale=step.scale,
                    softcap=case.softcap,
                    window=case.window,
                    sinks=None if step.sinks is None else step.sinks.astype(np.float64),
                )
            )
        out = self.output(np.concatenate(attended).reshape(len(x), -1))
        return x + o.residual_scale * self.output_norm(out), step


def pools_of(step: Step, dtype: mx.Dtype) -> list[mx.array]:
    pools = [mx.array(p).astype(dtype) for p in (step.key_pool, step.value_pool)]
    mx.eval(pools)
    return pools


def batch_of(step: Step) -> NativeBatch:
    return NativeBatch(
        step.query_starts,
        step.context_lens,
        step.block_tables,
        step.num_blocks,
        step.case.block_size,
    )


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


@st.composite
def attention_options(draw: st.DrawFn) -> Options:
    sequences = draw(st.integers(1, 3))
    context = [draw(st.integers(1, 70)) for _ in range(sequences)]
    query = [draw(st.sampled_from([1, n, draw(st.integers(1, n))])) for n in context]
    kv_heads = draw(st.sampled_from([1, 2]))
    k_dim = draw(st.sampled_from([16, 32, 96]))
    bits = draw(st.sampled_from([0, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    v_dim = draw(st.sampled_from([16, 32, k_dim]))
    if bits and heads * v_dim % 32:  # the output matrix's groups
        v_dim = 32
    norms = st.sampled_from([None, "rms", "layer"])
    return Options(
        bits=bits,
        biases=draw(st.booleans()),
        fused=draw(st.booleans()),
        input_norm=draw(norms),
        head_norm=draw(norms),
        head_norm_each=draw(st.booleans()),
        output_norm=draw(norms),
        rope_dims=draw(st.sampled_from([0, 6, k_dim])),
        traditional=draw(st.booleans()),
        residual_scale=draw(st.sampled_from([1.0, 0.22])),
        width=draw(st.sampled_from([32, 96])),
        case=Case(
            context,
            query,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            draw(st.sampled_from([8, 16])),
            seed=draw(st.integers(0, 2**32 - 1)),
            softcap=draw(st.sampled_from([0.0, 0.0, 2.5])),
            window=draw(st.sampled_from([None, None, 7, 1000])),
            sinks=draw(st.booleans()),
        ),
    )


@settings(max_examples=80, deadline=None)
@given(
    options=attention_options(),
    dtype=st.sampled_from([mx.float32, mx.float32, mx.float16, mx.bfloat16]),
    pool=st.sampled_from([mx.float32, mx.float32, mx.float16, mx.bfloat16]),
    rows=st.booleans(),
)
def test_attention_blocks_equal_float64_numpy(
    options: Options, dtype: mx.Dtype, pool: mx.Dtype, rows: bool
) -> None:
    case = options.case
    step = case.build()
    attend = Attention(options)
    rng = np.random.default_rng(case.seed + 1)
    tokens = int(step.query_starts[-1])
    x = mx.array(rng.standard_normal((tokens, options.width)).astype(np.float32)).astype(dtype)
    pools = pools_of(step, pool)
    for s in range(len(case.context_lens)):  # what is in the pools is rounded already
        for sequence in (step.sequence_keys, step.sequence_values):
            sequence[s] = wide(mx.array(sequence[s]).astype(pool))
    packed = x[:, None] if rows else x[None]
    out, *new = attend.block(packed, batch_of(step), *pools, window=case.window)
    assert (out.shape, out.dtype) == (packed.shape, dtype)
    expected, after = attend.expected(wide(x).astype(np.float64), step, pool)
    bound = max(TOLERANCE[dtype], 0.0 if pool == mx.float32 else TOLERANCE[pool])
    found = wide(out).reshape(tokens, -1)
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound)
    for array, want in zip(new, after.expected_pools(), strict=True):
        assert array.dtype == pool
        want = wide(mx.array(want).astype(pool))
        # NaN wherever nobody wrote, the new rows elsewhere.
        np.testing.assert_allclose(
            wide(array), want, rtol=TOLERANCE[pool], atol=TOLERANCE[pool], equal_nan=True
        )


ACTIVATIONS: dict[GateKind, Callable[[Array], Array]] = {
    "silu": lambda z: z / (1 + np.exp(-z)),
    "gelu": lambda z: z * 0.5 * np.vectorize(math.erfc)(-z / np.sqrt(2)),
    "gelu_tanh": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "relu": lambda z: np.maximum(z, 0),
}


def mlp(
    bits: int,
    kind: GateKind,
    *,
    compute: Compute = "exact",
    biases: bool = False,
    fused: bool = False,
    input_norm: str | None = "rms",
    output_norm: str | None = None,
    residual: bool = True,
    scale: float = 1.0,
    width: int = 96,
    hidden: int = 160,
    seed: int = 0,
) -> tuple[MlpBlock, Callable[[Array], Array]]:
    weights = Weights(seed, bits)
    gate_layer, gate = weights.layer(hidden, width, biases)
    up_layer, up = weights.layer(hidden, width, biases)
    down_layer, down = weights.layer(width, hidden, biases)
    norm, before = weights.norm(input_norm, width)
    last, after = weights.norm(output_norm, width)
    layers = [gate_layer, up_layer]
    block = MlpBlock(
        compute=compute,
        kind=kind,
        projections=[matrix_of(*layers)] if fused else [matrix_of(x) for x in layers],
        down=matrix_of(down_layer),
        input_norm=norm,
        output_norm=last,
        residual=residual,
        residual_scale=scale,
    )

    def expected(x: Array) -> Array:
        n = before(x)
        result: Array = scale * after(down(ACTIVATIONS[kind](gate(n)) * up(n)))
        return result + (x if residual else 0.0)

    return block, expected


@settings(max_examples=80, deadline=None)
@given(
    bits=st.sampled_from([0, 4, 8]),
    kind=st.sampled_from(list(ACTIVATIONS)),
    biases=st.booleans(),
    fused=st.booleans(),
    input_norm=st.sampled_from([None, "rms", "layer"]),
    output_norm=st.sampled_from([None, "rms", "layer"]),
    residual=st.booleans(),
    scale=st.sampled_from([1.0, 0.22]),
    dtype=st.sampled_from([mx.float32, mx.float16, mx.bfloat16]),
    tokens=st.sampled_from([1, 2, 5, 40]),
    strided=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_mlp_blocks_equal_float64_numpy(
    bits: int,
    kind: GateKind,
    biases: bool,
    fused: bool,
    input_norm: str | None,
    output_norm: str | None,
    residual: bool,
    scale: float,
    dtype: mx.Dtype,
    tokens: int,
    strided: bool,
    seed: int,
) -> None:
    block, expected = mlp(
        bits,
        kind,
        biases=biases,
        fused=fused,
        input_norm=input_norm,
        output_norm=output_norm,
        residual=residual,
        scale=scale,
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    x = mx.array(rng.standard_normal((1, tokens, 96)).astype(np.float32)).astype(dtype)
    if strided:
        x = mx.concatenate([x, x], axis=-1)[..., :96]
    out = block(x)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    np.testing.assert_allclose(
        wide(out),
        expected(wide(x).astype(np.float64)),
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype],
    )


# ---- mlx-lm's own layers ------------------------------------------------------------------------


def norm_of(layer: nn.Module, add: float = 0.0) -> Norm:
    return Norm("rms", layer.weight.shape[0], layer.eps, layer.weight + add)


def fused_layer(
    family: str, layer: Any, compute: Compute
) -> tuple[AttentionBlock, MlpBlock, dict[str, int]]:
    """The two blocks of a layer of tests/families.py, with their pools' geometry."""
    attn, feed = layer.self_attn, layer.mlp
    gemma = family == "gemma3_text"
    heads = attn.n_heads
    kv_heads = attn.n_kv_heads
    if family == "phi3":
        projections = [matrix_of(attn.qkv_proj)]
        gate_up = [matrix_of(feed.gate_up_proj)]
    else:
        projections = [matrix_of(x) for x in (attn.q_proj, attn.k_proj, attn.v_proj)]
        gate_up = [matrix_of(feed.gate_proj), matrix_of(feed.up_proj)]
    dim = round(attn.scale**-2)
    plus = 1.0 if gemma else 0.0
    before = None if family == "olmo2" else norm_of(layer.input_layernorm, plus)
    after = (
        norm_of(layer.post_attention_layernorm, plus)
        if family in ("olmo2", "gemma3_text")
        else None
    )
    query = norm_of(attn.q_norm, plus) if hasattr(attn, "q_norm") else None
    key = norm_of(attn.k_norm, plus) if hasattr(attn, "k_norm") else None
    block = AttentionBlock(
        compute=compute,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        v_dim=dim,
        projections=projections,
        output=matrix_of(attn.o_proj),
        input_norm=before,
        query_norm=query,
        key_norm=key,
        output_norm=after,
        rope=Rope(attn.rope.dims, base=attn.rope.base, scale=attn.rope.scale),
        scale=attn.scale,
    )
    if family == "olmo2":
        mlp_norms = (None, norm_of(layer.post_feedforward_layernorm))
    elif gemma:
        mlp_norms = (
            norm_of(layer.pre_feedforward_layernorm, plus),
            norm_of(layer.post_feedforward_layernorm, plus),
        )
    else:
        mlp_norms = (norm_of(layer.post_attention_layernorm), None)
    feed_block = MlpBlock(
        compute=compute,
        kind="gelu_tanh" if gemma else "silu",
        projections=gate_up,
        down=matrix_of(feed.down_proj),
        input_norm=mlp_norms[0],
        output_norm=mlp_norms[1],
    )
    return block, feed_block, {"kv_heads": kv_heads, "dim": dim}


def fresh_pools(blocks: int, size: int, kv_heads: int, dim: int) -> list[mx.array]:
    pools = [mx.full((blocks, size, kv_heads, dim), mx.nan) for _ in range(2)]
    mx.eval(pools)
    return pools


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "olmo2", "phi3", "gemma3_text"])
def test_blocks_equal_mlx_lms_layer(family: str, bits: int) -> None:
    """Prefill of most of a prompt, then its last tokens one by one."""
    changes = {"head_dim": 32} if family in ("qwen3", "gemma3_text") else {}
    if family == "gemma3_text":
        changes["query_pre_attn_scalar"] = 32
    model = families.make(family, **changes)
    if bits:
        nn.quantize(model, 32, bits)
    layer = model.layers[0]
    attend, feed, geometry = fused_layer(family, layer, "exact")
    tokens, prefill = 20, 17
    x = mx.array(np.random.default_rng(3).standard_normal((1, tokens, 64)).astype(np.float32))
    expected = wide(layer(x, "causal", None))
    pools = fresh_pools(4, 8, geometry["kv_heads"], geometry["dim"])
    found, start = [], 0
    for size in [prefill] + [1] * (tokens - prefill):
        end = start + size
        batch = NativeBatch(np.array([0, size]), np.array([end]), np.array([[2, 0, 3]]), 4, 8)
        h, *pools = attend(x[:, start:end], batch, *pools)
        found.append(wide(feed(h)))
        start = end
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=5e-5, atol=5e-5)


# ---- a row's bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("bits", [0, 4])
def test_a_rows_bits_do_not_depend_on_company_chunks_or_threads(
    compute: Compute, bits: int
) -> None:
    case = Case(
        [700, 3, 130], [600, 1, 67], 6, 2, 32, 32, 16, seed=4, window=150
    )  # more rows than a slab has
    options = Options(bits=bits, head_norm="rms", output_norm="rms", rope_dims=32, case=case)
    attend = Attention(options, compute).block
    feed, _ = mlp(bits, "silu", compute=compute)
    step = case.build()
    tokens = int(step.query_starts[-1])
    x = mx.array(np.random.default_rng(1).standard_normal((tokens, 1, 96)).astype(np.float32))

    def run(part: mx.array, batch: NativeBatch, pools: list[mx.array]) -> tuple[np.ndarray, Any]:
        out, *pools = attend(part, batch, *pools, window=case.window)
        return wide(feed(out)), pools

    together, pools = run(x, batch_of(step), pools_of(step, mx.float16))
    assert np.isfinite(together).all()
    after = [wide(p) for p in pools]
    lib = library().lib
    threads = lib.pamx_num_threads()
    try:
        for count in (1, 5):
            assert lib.pamx_set_num_threads(count) == 0
            again, pools = run(x.swapaxes(0, 1), batch_of(step), pools_of(step, mx.float16))
            np.testing.assert_array_equal(again[0], together[:, 0])
            for p, q in zip(pools, after, strict=True):
                np.testing.assert_array_equal(wide(p), q)
    finally:
        lib.pamx_set_num_threads(threads)

    pools = pools_of(step, mx.float16)
    for s, (context, new) in enumerate(zip(case.context_lens, case.query_lens, strict=True)):
        chunks, start = [], 0
        first = int(step.query_starts[s])
        for size in (1, 2, 13, 300, 1000):
            size = min(size, new - start)
            if size == 0:
                break
            batch = NativeBatch(
                np.array([0, size]),
                np.array([context - new + start + size]),
                step.block_tables[s : s + 1],
                step.num_blocks,
                case.block_size,
            )
            part = x[first + start : first + start + size]
            out, pools = run(part, batch, pools)
            chunks.append(out)
            start += size
        np.testing.assert_array_equal(np.concatenate(chunks), together[first : first + new])


def test_blocks_are_lazy_and_write_in_place() -> None:
    options = Options(case=Case([40], [3], 4, 2, 32, 32, 8))
    step = options.case.build()
    attend = Attention(options).block
    pools = pools_of(step, mx.float32)
    addresses = [np.array(p, copy=False).ctypes.data for p in pools]
    before = np.array(pools[0])
    x = mx.ones((1, 3, 96))
    out, *new = attend(x, batch_of(step), *pools)
    np.testing.assert_array_equal(np.array(pools[0]), before)  # nothing has run yet
    once_more, *newest = attend(out, batch_of(step), *new)  # a pool that is to come is welcome
    mx.eval(once_more, newest)
    assert [np.array(p, copy=False).ctypes.data for p in newest] == addresses
    assert not np.array_equal(np.array(newest[0]), before, equal_nan=True)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_layer_has_the_bits_of_its_two_blocks(compute: Compute, dtype: mx.Dtype) -> None:
    case = Case([700, 3, 130], [600, 1, 67], 6, 2, 32, 32, 16, seed=4, window=150)
    options = Options(head_norm="rms", output_norm="rms", rope_dims=32, case=case)
    attend, (feed, _) = Attention(options, compute).block, mlp(4, "silu", compute=compute)
    step = case.build()
    rows = np.random.default_rng(1).standard_normal((int(step.query_starts[-1]), 1, 96))
    x, pools = mx.array(rows.astype(np.float32)).astype(dtype), pools_of(step, mx.float16)
    h, *expected_pools = attend(x, batch_of(step), *pools, window=case.window)
    expected = [feed(h), *expected_pools]
    mx.eval(expected)
    layer, pools = LayerBlock(attend, feed), pools_of(step, mx.float16)
    del attend, feed
    found = layer(x, batch_of(step), *pools, window=case.window)
    del layer  # what is queued needs none of them
    assert found[0].dtype == dtype
    assert found[0].shape == x.shape
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(wide(one), wide(other))


def test_parts_may_go_before_the_block() -> None:
    """A block holds its matrices and rope, and copies the rest."""
    options = Options(rope_dims=16, case=Case([9], [9], 4, 2, 16, 16, 8))
    attend = Attention(options)
    step = options.case.build()
    import gc

    gc.collect()
    rubbish = [mx.full((96, 96), mx.nan) for _ in range(50)]
    mx.eval(rubbish)
    x = np.random.default_rng(2).standard_normal((9, 96))
    expected, _ = attend.expected(x.astype(np.float32).astype(np.float64), step, mx.float32)
    out = attend.block(
        mx.array(x.astype(np.float32))[None], batch_of(step), *pools_of(step, mx.float32)
    )[0]
    np.testing.assert_allclose(wide(out)[0], expected, atol=5e-5, rtol=5e-5)


# ---- what is refused ----------------------------------------------------------------------------


def dense(outputs: int, inputs: int) -> Matrix:
    layer = nn.Linear(inputs, outputs, bias=False)
    return matrix_of(layer)


def small_attention(**changes: Any) -> AttentionBlock:
    arguments: dict[str, Any] = {
        "compute": "exact",
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "v_dim": 8,
        "projections": [dense(64, 24), dense(32, 24), dense(16, 24)],
        "output": dense(24, 32),
        "scale": 0.25,
    }
    return AttentionBlock(**{**arguments, **changes})


def rms(size: int, eps: float = 1e-5) -> Norm:
    return Norm("rms", size, eps)


WRONG_ATTENTION: list[tuple[dict[str, Any], str]] = [
    ({"heads": 3}, "3 query heads are not a multiple of 2 KV heads"),
    ({"kv_heads": 0}, "0 KV heads"),
    ({"head_dim": 12}, "head_dim must be a multiple of 8"),
    ({"v_dim": 264}, "v_dim must be a multiple of 8 up to 256, not 264"),
    ({"output": dense(24, 64)}, r"output matrix is \[24, 64\] instead of \[24, 32\]"),
    ({"projections": [dense(96, 24)]}, r"fused projection matrix is \[96, 24\]"),
    (
        {"projections": [dense(64, 24), dense(16, 24), dense(16, 24)]},
        r"key matrix is \[16, 24\] instead of \[32, 24\]",
    ),
    ({"input_norm": rms(23)}, "input norm has size 23 instead of 24"),
    ({"output_norm": rms(25)}, "output norm has size 25 instead of 24"),
    ({"query_norm": rms(32)}, "query norm has size 32 instead of 16 or 64"),
    ({"key_norm": rms(64)}, "key norm has size 64 instead of 16 or 32"),
    ({"input_norm": rms(24, float("nan"))}, "eps"),
    ({"input_norm": Norm("rms", 24, 1e-5, bias=mx.zeros((24,)))}, "rms norm with a bias"),
    ({"rope": Rope(18, base=10.0)}, "rotates 18 elements of heads of 16"),
    ({"scale": float("inf")}, "scale is not finite"),
    ({"softcap": -1.0}, "softcap"),
    ({"residual_scale": float("nan")}, "residual_scale"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_ATTENTION)
def test_attention_descriptions_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        small_attention(**changes)


def test_a_fused_projection_that_fits() -> None:
    small_attention(projections=[dense(112, 24)])


WRONG_MLP: list[tuple[dict[str, Any], str]] = [
    ({"projections": [dense(40, 24), dense(32, 24)]}, r"gate matrix is \[40, 24\]"),
    ({"projections": [dense(32, 24), dense(32, 16)]}, r"up matrix is \[32, 16\]"),
    ({"projections": [dense(32, 24)]}, r"fused gate and up matrix is \[32, 24\]"),
    (
        {"projections": [dense(48, 24)], "down": dense(24, 24)},
        "multiple of 16, not 24",
    ),
    ({"down": dense(16, 32)}, "cannot be added"),
    ({"input_norm": rms(32)}, "input norm has size 32 instead of 24"),
    ({"output_norm": rms(32)}, "output norm has size 32 instead of 24"),
    ({"residual_scale": float("inf")}, "residual_scale"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_MLP)
def test_mlp_descriptions_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "compute": "fast",
        "kind": "silu",
        "projections": [dense(32, 24), dense(32, 24)],
        "down": dense(24, 32),
    }
    with pytest.raises(NativeError, match=message):
        MlpBlock(**{**arguments, **changes})


def test_numbers_of_projections() -> None:
    with pytest.raises(ValueError, match="1 or 3 projections, not 2"):
        small_attention(projections=[dense(64, 24), dense(48, 24)])
    with pytest.raises(ValueError, match="sinks has shape"):
        small_attention(sinks=mx.zeros((3,)))


def pool(dim: int, dtype: mx.Dtype = mx.float32, blocks: int = 6) -> mx.array:
    array = mx.zeros((blocks, 8, 2, dim), dtype)
    mx.eval(array)
    return array


WRONG_ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({"x": mx.ones((1, 3, 25))}, r"instead of \[1, 3, 24\] or \[3, 1, 24\]"),
    ({"x": mx.ones((1, 4, 24))}, "x has shape"),
    ({"x": mx.ones((3, 24))}, "x has shape"),
    ({"x": mx.ones((1, 3, 24), mx.int32)}, "x is int32"),
    ({"key_pool": pool(8)}, "key_pool has shape"),
    ({"value_pool": pool(16)}, "value_pool has shape"),
    ({"value_pool": pool(8, blocks=5)}, "value_pool has shape"),
    ({"key_pool": pool(16, mx.float16)}, "the pools are float16 and float32"),
    ({"key_pool": pool(16, mx.int32)}, "key_pool is int32"),
    ({"key_pool": mx.zeros((6, 8, 2, 16)) + 1}, "not evaluated"),
    ({"window": -1}, "window"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG_ARRAYS)
def test_arrays_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": mx.ones((1, 3, 24)),
        "batch": NativeBatch(np.array([0, 3]), np.array([11]), np.array([[4, 1]]), 6, 8),
        "key_pool": pool(16),
        "value_pool": pool(8),
    }
    with pytest.raises(NativeError, match=message):
        small_attention()(**{**arguments, **changes})


def test_blocks_that_do_not_make_a_layer() -> None:
    feed = MlpBlock(
        compute="exact", kind="silu", projections=[dense(32, 16)] * 2, down=dense(16, 32)
    )
    batch = NativeBatch(np.array([0, 3]), np.array([11]), np.array([[4, 1]]), 6, 8)
    layer = LayerBlock(small_attention(), feed)
    with pytest.raises(NativeError, match="rows of 24 elements; the MLP block takes 16 and gives"):
        layer(mx.ones((1, 3, 24)), batch, pool(16), pool(8))
    with pytest.raises(TypeError, match="not ndarray, array and array"):
        layer(np.ones((1, 3, 24)), batch, pool(16), pool(8))  # type: ignore[arg-type]


def test_what_a_call_returns_is_its_own() -> None:
    """Results are made from copies of one array, which stays what it is."""
    rows = [dense(8, 8) for _ in range(2)]
    x = mx.ones((1, 8))
    first, second = (linear(row, x, "exact") for row in rows)
    assert not np.array_equal(np.array(first), np.array(second))
    assert library().blank() is not library().blank()
    assert library().blank().item() == 0


def test_null_pointers_at_the_c_interface() -> None:
    native = library()
    ffi, lib = native.ffi, native.lib
    one = mx.ones((1, 1, 4))
    attend, (feed, _) = small_attention(), mlp(0, "silu")
    calls = [
        lambda: lib.pamx_attention_block_create(ffi.NULL, ffi.new("pamx_attention_block**")),
        lambda: lib.pamx_attention_block_create(ffi.new("pamx_attention_block_desc*"), ffi.NULL),
        lambda: lib.pamx_attention_block_create(
            ffi.new("pamx_attention_block_desc*", {"heads": 1, "kv_heads": 1}),
            ffi.new("pamx_attention_block**"),
        ),
        lambda: lib.pamx_attention_block_create(
            ffi.new(
                "pamx_attention_block_desc*",
                {"heads": 1, "kv_heads": 1, "head_dim": 8, "v_dim": 8},
            ),
            ffi.new("pamx_attention_block**"),
        ),
        lambda: lib.pamx_attention_block_apply(ffi.NULL, ffi.NULL, 0, *[id(one)] * 6),
        lambda: lib.pamx_attention_block_apply(attend.handle, ffi.NULL, 0, *[id(one)] * 6),
        lambda: lib.pamx_layer_apply(attend.handle, ffi.NULL, ffi.NULL, 0, *[id(one)] * 6),
        lambda: lib.pamx_layer_apply(ffi.NULL, feed.handle, ffi.NULL, 0, *[id(one)] * 6),
        lambda: lib.pamx_mlp_block_create(ffi.NULL, ffi.new("pamx_mlp_block**")),
        lambda: lib.pamx_mlp_block_create(ffi.new("pamx_mlp_block_desc*"), ffi.NULL),
        lambda: lib.pamx_mlp_block_create(
            ffi.new("pamx_mlp_block_desc*"), ffi.new("pamx_mlp_block**")
        ),
        lambda: lib.pamx_mlp_block_create(
            ffi.new("pamx_mlp_block_desc*", {"gate_kind": 9}), ffi.new("pamx_mlp_block**")
        ),
        lambda: lib.pamx_mlp_block_create(
            ffi.new("pamx_mlp_block_desc*", {"compute": 7}), ffi.new("pamx_mlp_block**")
        ),
        lambda: lib.pamx_mlp_block_apply(ffi.NULL, id(one), id(one)),
    ]
    for call in calls:
        assert call() == lib.PAMX_INVALID_ARGUMENT
        assert len(ffi.string(lib.pamx_last_error())) > 5
    lib.pamx_attention_block_free(ffi.NULL)
    lib.pamx_mlp_block_free(ffi.NULL)
