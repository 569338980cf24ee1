"""Copying blocks: in place, lazy, in order, and between the attention calls around it."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from oracle import Case

from pamx.errors import NativeError
from pamx.native.ops import NativeBatch, copy_blocks, paged_attention


def pools(dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    keys = mx.arange(6 * 8 * 2 * 8).reshape(6, 8, 2, 8).astype(dtype)
    values = mx.arange(6 * 8 * 2 * 16).reshape(6, 8, 2, 16).astype(dtype)
    mx.eval(keys, values)
    return keys, values


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_copies_in_order_and_in_place(dtype: mx.Dtype) -> None:
    keys, values = pools(dtype)
    expected = [np.array(p.astype(mx.float32)) for p in (keys, values)]
    for pool in expected:
        pool[3] = pool[0]
        pool[5] = pool[3]  # the second copy sees what the first one wrote
    addresses = [np.array(p.view(mx.uint8), copy=False).ctypes.data for p in (keys, values)]
    results = copy_blocks([0, 3], [3, 5], keys, values)
    for found, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.array(found.astype(mx.float32)), want)
    assert [np.array(p.view(mx.uint8), copy=False).ctypes.data for p in results] == addresses


def test_stands_between_attention_calls_of_one_graph() -> None:
    """Nothing is evaluated in between: the copy sees the first call's rows, the second call's
    sequence reads the copy."""
    step = Case([8], [8], 2, 1, 16, 16, 8, seed=2).build()
    keys, values = mx.zeros((4, 8, 1, 16)), mx.zeros((4, 8, 1, 16))
    mx.eval(keys, values)
    q, k, v = (mx.array(a).swapaxes(0, 1)[None] for a in (step.queries, step.keys, step.values))

    def batch(block: int) -> NativeBatch:
        return NativeBatch(np.array([0, 8]), np.array([8]), np.array([[block]]), 4, 8)

    _, keys, values = paged_attention(batch(1), q, k, v, keys, values, scale=step.scale)
    keys, values = copy_blocks([1], [2], keys, values)
    out, keys, values = paged_attention(batch(2), q, None, None, keys, values, scale=step.scale)
    np.testing.assert_allclose(np.array(out[0].swapaxes(0, 1)), step.expected(), atol=5e-6)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([6], [0], "block 6 is not in the pool of blocks 0 to 5"),
        ([0], [-1], "block -1 is not in the pool"),
        ([2], [2], "block 2 would be copied to itself"),
        ([], [], "there are no blocks to copy"),
    ],
)
def test_wrong_blocks(sources: list[int], targets: list[int], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        copy_blocks(sources, targets, *pools())


def test_wrong_pools() -> None:
    keys, values = pools()
    with pytest.raises(NativeError, match="key_pool is not evaluated"):
        copy_blocks([0], [1], keys + 1, values)
    half = mx.contiguous(values[:3])
    mx.eval(half)
    with pytest.raises(NativeError, match="the pools have 6 and 3 blocks"):
        copy_blocks([0], [1], keys, half)
    with pytest.raises(NativeError, match="key_pool has shape"):
        copy_blocks([0], [1], mx.zeros((4, 4)), values)
    with pytest.raises(TypeError):
        copy_blocks([0], [1], None, values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 sources and 2 targets"):
        copy_blocks([0], [1, 2], keys, values)
