"""The reducer merges whatever partial results a split kernel may leave, to float64's answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from metal.arguments import ATTENTION, NO_MAXIMUM, WORK_ROW, Buffer, struct
from metal.attention_case import FLOAT_ERROR, LOG2_E, Programs
from metal.formats import ROUNDING, Bits, Floats, from_bits, poison
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

CAPACITY = 4096  # limits.h
PROGRAMS = Programs()


class Partials:
    """Random partial results of `rows` rows; some partitions saw nothing, and hold NaN."""

    def __init__(self, rows: int, heads: int, partitions: int, dim: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.out = rng.standard_normal((rows, heads, partitions, dim)).astype(np.float32)
        self.maximum = (rng.standard_normal((rows, heads, partitions)) * 8).astype(np.float32)
        self.sum = rng.uniform(1, 512, (rows, heads, partitions)).astype(np.float32)
        self.empty(rng.random((rows, heads, partitions)) < 0.3)

    def empty(self, where: Any) -> None:
        self.maximum[where], self.sum[where] = NO_MAXIMUM, 0
        self.out[where] = np.nan

    def expected(self, sinks: Floats | None) -> npt.NDArray[np.float64]:
        logits = self.maximum.astype(np.float64)
        top = logits.max(axis=-1)
        if sinks is not None:
            top = np.maximum(top, sinks * LOG2_E)
        weights = self.sum * np.exp2(logits - top[..., None])
        total = weights.sum(axis=-1)
        if sinks is not None:
            total = total + np.exp2(sinks * LOG2_E - top)
        out = np.where(weights[..., None] == 0, 0, self.out).astype(np.float64)
        merged = (weights[..., None] * out).sum(axis=-2)
        return merged / np.where(total == 0, 1, total)[..., None]


def reduce(
    partials: Partials, dtype: str = "float32", sinks: Floats | None = None, order: int = 0
) -> Floats:
    rows, heads, partitions, dim = partials.out.shape
    shape = LaunchShape(
        Kernel.SPLIT_KV_REDUCE,
        dtype,
        dtype,
        heads,
        heads,
        dim,
        dim,
        block_size=16,
        num_partitions=partitions,
        rows=rows,
        sinks=sinks is not None,
    )
    params = struct(
        ATTENTION,
        **dict.fromkeys(ATTENTION.names or (), 0)
        | {"heads": heads, "v_dim": dim, "num_partitions": partitions},
    )
    # Rows need not stand in the order of their tokens.
    tokens = np.random.default_rng(1).permutation(rows + 2)[:rows]
    buffers: dict[int, Bits] = {
        Buffer.PARTIAL_OUT: partials.out,
        Buffer.PARTIAL_STATS: np.stack([partials.maximum, partials.sum], axis=-1),
        Buffer.WORK_ROWS: np.array([(0, t, 1) for t in tokens], WORK_ROW),
        Buffer.PARAMS: params,
        Buffer.OUT: poison((rows + 2, heads, dim), dtype),
    }
    if sinks is not None:
        buffers[Buffer.SINKS] = sinks
    PROGRAMS.execute(launch_of(shape), buffers, order)
    out = from_bits(buffers[Buffer.OUT], dtype)
    assert np.isnan(np.delete(out, tokens, axis=0)).all()  # nobody's rows are left alone
    return out[tokens]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("dtype", "partitions", "dim", "order"),
    [
        ("float32", 1, 8, 0),
        ("float16", 3, 40, 1),
        ("bfloat16", 300, 128, 7),
        ("float32", 33, 512, 2),
        ("float32", CAPACITY, 80, 3),
    ],
)
def test_equals_float64(dtype: str, partitions: int, dim: int, order: int, sinks: bool) -> None:
    partials = Partials(3, 2, partitions, dim, seed=dim)
    values = np.array([1.5, -40.0], np.float32) if sinks else None
    out = reduce(partials, dtype, values, order)
    np.testing.assert_allclose(
        out, partials.expected(values), rtol=ROUNDING[dtype], atol=FLOAT_ERROR
    )


@pytest.mark.parametrize("sinks", [None, np.array([0.5, -90.0], np.float32)])
def test_rows_of_empty_partitions_are_zeros(sinks: Floats | None) -> None:
    partials = Partials(3, 2, 5, 64)
    partials.empty(np.s_[1])
    out = reduce(partials, sinks=sinks)
    assert (out[1] == 0).all()
    assert (out[[0, 2]] != 0).any()


def test_a_partition_far_below_the_others_weighs_nothing() -> None:
    partials = Partials(1, 1, 2, 64)
    partials.maximum[...], partials.sum[...] = (-1e5, 1e5), 1.0
    partials.out[...] = np.array([1.0, 2.0])[:, None]
    assert (reduce(partials) == 2).all()


def test_bits_do_not_depend_on_room_for_more_partitions() -> None:
    few = Partials(2, 2, 700, 64)
    many = Partials(2, 2, 1500, 64)
    many.empty(np.s_[:])
    for name in ("out", "maximum", "sum"):
        getattr(many, name)[:, :, :700] = getattr(few, name)
    np.testing.assert_array_equal(reduce(many), reduce(few))
    np.testing.assert_array_equal(reduce(few, order=5), reduce(few))


@pytest.mark.parametrize(("partitions", "dim"), [(1, 64), (37, 80), (700, 128), (90, 512)])
def test_bits_do_not_depend_on_how_many_rows_there_are(partitions: int, dim: int) -> None:
    """Few of them take twice the threads."""
    many = Partials(130, 1, partitions, dim)
    few = Partials(1, 1, partitions, dim)
    for name in ("out", "maximum", "sum"):
        setattr(few, name, getattr(many, name)[:1])
    np.testing.assert_array_equal(reduce(few)[0], reduce(many)[0])


def test_a_sum_that_is_not_a_number_is_not_hidden() -> None:
    partials = Partials(1, 2, 3, 64)
    partials.sum[0, 1, 1] = np.nan
    out = reduce(partials)
    assert np.isnan(out[0, 1]).all()
    assert np.isfinite(out[0, 0]).all()


def test_more_partitions_than_there_is_room_for_are_turned_down() -> None:
    shape = {"heads": 8, "kv_heads": 2, "k_dim": 64, "v_dim": 64, "block_size": 16, "rows": 1}
    launch = launch_of(LaunchShape(Kernel.SPLIT_KV_REDUCE, num_partitions=CAPACITY, **shape))
    assert launch.threadgroup_bytes == 4 * CAPACITY
    with pytest.raises(NativeError, match="4097 partitions are more than the 4096"):
        launch_of(LaunchShape(Kernel.SPLIT_KV_REDUCE, num_partitions=CAPACITY + 1, **shape))
