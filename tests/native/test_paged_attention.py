"""The attention primitive equals float64 NumPy over random geometry, in place and lazily."""

from __future__ import annotations

import os
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, Step

from pamx.native.loader import library
from pamx.native.ops import NativeBatch, empty, paged_attention

# What rows and pools may be in: the same, or 16-bit pools below float32 rows.
DTYPES = [
    (mx.float32, mx.float32),
    (mx.float32, mx.float16),
    (mx.float32, mx.bfloat16),
    (mx.float16, mx.float16),
    (mx.bfloat16, mx.bfloat16),
]
# Float16 keeps 11 bits and bfloat16 8: outputs are averages of values near 1, rounded at the end,
# from inputs that were rounded at the start.
TOLERANCE = {mx.float32: 5e-6, mx.float16: 8e-3, mx.bfloat16: 6e-2}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sequences = draw(st.integers(1, 4))
    context = [draw(st.integers(1, 90)) for _ in range(sequences)]
    query = [draw(st.sampled_from([1, n, draw(st.integers(1, n))])) for n in context]
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return Case(
        context_lens=context,
        query_lens=query,
        heads=kv_heads * draw(st.sampled_from([1, 2, 3, 5, 8, 40])),
        kv_heads=kv_heads,
        k_dim=draw(st.sampled_from([8, 24, 40, 64, 96, 128, 200, 256])),
        v_dim=draw(st.sampled_from([8, 24, 40, 64, 96, 128, 200, 256])),
        block_size=draw(st.sampled_from([8, 16, 32])),
        seed=draw(st.integers(0, 2**32 - 1)),
        softcap=draw(st.sampled_from([0.0, 0.0, 2.5])),
        window=draw(st.sampled_from([None, None, 1, 7, 16, 1000])),
        sinks=draw(st.booleans()),
    )


def run(
    step: Step, dtype: mx.Dtype, rows: bool, pool_dtype: mx.Dtype | None = None
) -> tuple[mx.array, mx.array, mx.array]:
    """The primitive's output as [tokens, heads, v_dim], and the pools after it."""

    def pack(array: np.ndarray) -> mx.array:
        packed = mx.array(array).astype(dtype)
        return packed[:, :, None] if rows else packed.swapaxes(0, 1)[None]

    pools = [mx.array(p).astype(pool_dtype or dtype) for p in (step.key_pool, step.value_pool)]
    mx.eval(pools)
    case = step.case
    batch = NativeBatch(
        step.query_starts, step.context_lens, step.block_tables, step.num_blocks, case.block_size
    )
    out, keys, values = paged_attention(
        batch,
        pack(step.queries),
        pack(step.keys),
        pack(step.values),
        *pools,
        scale=step.scale,
        softcap=case.softcap,
        window=case.window,
        sinks=None if step.sinks is None else mx.array(step.sinks),
    )
    return out[:, :, 0] if rows else out[0].swapaxes(0, 1), keys, values


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


@settings(max_examples=150, deadline=None)
@given(
    case=cases(),
    dtypes=st.sampled_from(DTYPES),
    rows=st.booleans(),
)
def test_equals_float64_numpy_over_random_geometry(
    case: Case, dtypes: tuple[mx.Dtype, mx.Dtype], rows: bool
) -> None:
    dtype, pool_dtype = dtypes
    step = case.build()
    rows = rows or len(case.context_lens) > 1
    out, keys, values = run(step, dtype, rows, pool_dtype)
    tolerance = TOLERANCE[pool_dtype]
    np.testing.assert_allclose(as_numpy(out), step.expected(), rtol=0, atol=tolerance)
    for found, expected in zip((keys, values), step.expected_pools(), strict=True):
        # Bit for bit, the NaN in every slot that nobody owns included.
        np.testing.assert_array_equal(
            as_numpy(found), as_numpy(mx.array(expected).astype(pool_dtype))
        )


def test_portable_kernels_give_the_same_answers() -> None:
    """The kernels for machines without AVX2, in a process that is told to use them."""
    if library().cpu_isa == "portable":
        pytest.skip("this machine has no AVX2: the other tests ran the portable kernels")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__, "-k", "random_geometry or special"],
        env={**os.environ, "PAMX_CPU_ISA": "portable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_special_values_of_16_bit_formats_survive_the_round_trip(dtype: mx.Dtype) -> None:
    """One token attends to itself alone, so its output is its value: every finite bit pattern."""
    bits = np.arange(2**16, dtype=np.uint16)
    values = mx.array(bits).view(dtype)
    values = mx.where(mx.isnan(values.astype(mx.float32)), mx.zeros_like(values), values)
    values = values.reshape(-1, 1, 1, 256)  # [tokens, kv_heads, 1, dim]: sequences of one token
    count = values.shape[0]
    pools = [mx.zeros((count, 8, 1, 256), dtype) for _ in range(2)]
    mx.eval(pools)
    batch = NativeBatch(np.arange(count + 1), np.ones(count), np.arange(count)[:, None], count, 8)
    zeros = mx.zeros_like(values)
    out, _, _ = paged_attention(batch, zeros, zeros, values, *pools, scale=1.0)
    finite = mx.isfinite(values.astype(mx.float32))
    assert mx.array_equal(mx.where(finite, out, 0), mx.where(finite, values, 0)).item()


def test_rows_do_not_depend_on_company_chunking_or_threads() -> None:
    """A row's bits are its own: alone, in a mixed batch, in chunks, on one thread or many."""
    case = Case([61, 90, 17], [61, 90, 17], 6, 2, 64, 64, 16, window=33, seed=5)
    step = case.build()
    lib = library().lib
    threads = lib.pamx_num_threads()
    together = as_numpy(run(step, mx.float32, rows=True)[0])
    try:
        assert lib.pamx_set_num_threads(7) == 0
        np.testing.assert_array_equal(as_numpy(run(step, mx.float32, rows=True)[0]), together)
        assert lib.pamx_set_num_threads(1) == 0
        np.testing.assert_array_equal(as_numpy(run(step, mx.float32, rows=True)[0]), together)
    finally:
        lib.pamx_set_num_threads(threads)

    first = int(step.query_starts[1])
    q, k, v = (
        mx.array(a[first : first + 90])[:, :, None] for a in (step.queries, step.keys, step.values)
    )
    keys, values = mx.array(step.key_pool), mx.array(step.value_pool)
    mx.eval(keys, values)
    chunks, start = [], 0
    for size in (1, 31, 2, 40, 16):
        batch = NativeBatch(
            np.array([0, size]),
            np.array([start + size]),
            step.block_tables[1:2],
            step.num_blocks,
            case.block_size,
        )
        part = slice(start, start + size)
        out, keys, values = paged_attention(
            batch, q[part], k[part], v[part], keys, values, scale=step.scale, window=33
        )
        chunks.append(as_numpy(out[:, :, 0]))
        start += size
    np.testing.assert_array_equal(np.concatenate(chunks), together[first : first + 90])


def test_it_is_lazy_and_writes_in_place() -> None:
    step = Case([40], [3], 4, 2, 32, 32, 8).build()
    pools = [mx.array(p) for p in (step.key_pool, step.value_pool)]
    mx.eval(pools)
    addresses = [np.array(p, copy=False).ctypes.data for p in pools]
    before = np.array(pools[0])
    batch = NativeBatch(step.query_starts, step.context_lens, step.block_tables, step.num_blocks, 8)
    q, k, v = (mx.array(a).swapaxes(0, 1)[None] for a in (step.queries, step.keys, step.values))
    out, *new = paged_attention(batch, q, k, v, *pools, scale=step.scale)
    np.testing.assert_array_equal(np.array(pools[0]), before)  # nothing has run yet
    mx.eval(out, new)
    assert [np.array(p, copy=False).ctypes.data for p in new] == addresses


def test_attending_without_writing_leaves_the_pools_alone() -> None:
    step = Case([40], [3], 4, 2, 32, 32, 8).build()
    keys, values = (mx.array(p) for p in step.expected_pools())
    mx.eval(keys, values)
    batch = NativeBatch(step.query_starts, step.context_lens, step.block_tables, step.num_blocks, 8)
    q = mx.array(step.queries).swapaxes(0, 1)[None]
    out, new_keys, _ = paged_attention(batch, q, None, None, keys, values, scale=step.scale)
    np.testing.assert_allclose(np.array(out[0].swapaxes(0, 1)), step.expected(), atol=5e-6)
    np.testing.assert_array_equal(np.array(new_keys), step.expected_pools()[0])


def test_strided_inputs_are_read_where_they_lie() -> None:
    """A model hands over transposed views and slices of one fused projection."""
    step = Case([20], [20], 4, 2, 32, 32, 8, seed=3).build()
    qkv = mx.concatenate([mx.array(a) for a in (step.queries, step.keys, step.values)], axis=1)
    q, k, v = (x.swapaxes(0, 1)[None] for x in mx.split(qkv, [4, 6], axis=1))
    backwards = mx.array(np.ascontiguousarray(step.queries[..., ::-1]))[..., ::-1]
    pools = [mx.array(p) for p in (step.key_pool, step.value_pool)]
    mx.eval(pools)
    batch = NativeBatch(step.query_starts, step.context_lens, step.block_tables, step.num_blocks, 8)
    for queries in (q, backwards.swapaxes(0, 1)[None]):
        out, *pools = paged_attention(batch, queries, k, v, *pools, scale=step.scale)
        np.testing.assert_allclose(np.array(out[0].swapaxes(0, 1)), step.expected(), atol=5e-6)


def test_works_in_compiled_functions_and_on_other_threads() -> None:
    import threading

    step = Case([9], [1], 2, 1, 16, 16, 8, seed=8).build()

    def attend() -> np.ndarray:
        pools = [mx.array(p) for p in (step.key_pool, step.value_pool)]
        mx.eval(pools)
        batch = NativeBatch(
            step.query_starts, step.context_lens, step.block_tables, step.num_blocks, 8
        )

        def body(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
            return paged_attention(batch, q * 1.0, k, v, *pools, scale=step.scale)[0] + 1.0

        rows = [mx.array(a)[:, :, None] for a in (step.queries, step.keys, step.values)]
        return np.array(mx.compile(body)(*rows))[:, :, 0] - 1.0

    results = []
    thread = threading.Thread(target=lambda: results.append(attend()))
    thread.start()
    thread.join()
    for found in (attend(), *results):
        np.testing.assert_allclose(found, step.expected(), atol=5e-6)


def test_untouched_memory_has_the_shape_and_dtype_asked_for() -> None:
    pool = empty((3, 8, 2, 16), mx.bfloat16)
    assert (pool.shape, pool.dtype, pool.nbytes) == ((3, 8, 2, 16), mx.bfloat16, 3 * 8 * 2 * 16 * 2)
