"""The CPU attention planner on both sides of each of its thresholds, and its reasons."""

from __future__ import annotations

import pytest

from pamx.errors import NativeError
from pamx.native.plan import CpuAttentionPlan, plan_cpu_attention

MIB = 1 << 20
LARGE, SMALL = (32, 8, 128, 128), (9, 3, 64, 64)


def plan(
    geometry: tuple[int, int, int, int] = LARGE,
    queries: tuple[int, ...] = (1,),
    context: tuple[int, ...] = (8192,),
    threads: int = 2,
    l2_bytes: int = MIB,
    window: int | None = None,
) -> CpuAttentionPlan:
    return plan_cpu_attention(
        *geometry, queries, context, threads=threads, l2_bytes=l2_bytes, window=window
    )


@pytest.mark.parametrize(
    ("l2_bytes", "partition"),
    [
        (1, 64),
        (MIB // 2 - 1, 64),
        (MIB // 2, 128),
        (MIB - 1, 128),
        (MIB, 256),
        (64 * MIB, 256),
    ],
)
def test_the_largest_partition_that_fits_a_quarter_of_l2(l2_bytes: int, partition: int) -> None:
    found = plan(l2_bytes=l2_bytes)
    assert found.partition == partition
    assert f"partition: {partition} tokens" in found.text
    assert (f"not {partition * 2} tokens: they would take" in found.text) == (partition < 256)


def test_nothing_but_geometry_and_cache_moves_the_partition() -> None:
    """A row's bits depend on it, so company, threads and lengths must not."""
    cases = [
        plan(),
        plan(threads=1),
        plan(threads=64),
        plan(queries=(7, 1, 300), context=(7, 40_000, 300)),
        plan(window=100),
    ]
    assert {case.partition for case in cases} == {256}


def test_one_thread_below_the_work_that_is_worth_two() -> None:
    # 3 KV heads, 3 query heads each, 64 + 64 elements: 1,152 multiply-adds a token.
    below, at = plan(SMALL, context=(227,)), plan(SMALL, context=(228,))
    assert below.work == 227 * 1152 < 2**18 <= at.work
    assert (below.threads, at.threads) == (1, 2)
    assert "not more threads: 261504 multiply-adds are fewer than 262144" in below.text
    assert plan(SMALL, context=(228,), threads=1).threads == 1


def test_eight_rows_of_a_kv_head_are_few_and_nine_are_many() -> None:
    few, many = plan(queries=(2,)), plan(queries=(3,))  # 4 query heads for each KV head
    assert few.few_rows_items == few.items
    assert many.few_rows_items == 0
    assert "not tiles of floats" in few.text
    assert "not pages to registers" in many.text
    assert plan((8, 1, 64, 64)).few_rows_items > 0
    assert plan((9, 1, 64, 64)).few_rows_items == 0
    mixed = plan(queries=(1, 100), context=(5000, 100))
    assert 0 < mixed.few_rows_items < mixed.items


def test_tiles_hold_64_rows() -> None:
    at, above = (plan(queries=(n,), context=(n,), threads=1) for n in (16, 17))
    assert at.items == 8  # one for each KV head
    assert (above.items, above.few_rows_items) == (9, 1)  # the last token's rows are few


def test_an_item_walks_at_most_64_rows() -> None:
    at, above = (plan((4 * n, n, 8, 8), context=(9,), threads=1) for n in (16, 17))
    assert (at.items, above.items) == (1, 2)


def test_work_is_cut_for_all_threads_and_folded_afterwards() -> None:
    alone, shared, wide = (plan(threads=n) for n in (1, 2, 16))
    assert (alone.items, alone.folds, alone.partial_bytes) == (1, 0, 0)
    assert "folding: on the way" in alone.text
    assert 16 <= shared.items <= 32
    assert shared.folds == 8
    assert "folding: afterwards" in shared.text
    assert wide.items >= 32
    assert wide.threads == 16


def test_one_partition_is_shared_out_by_heads() -> None:
    found = plan(context=(256,), threads=4)
    assert (found.items, found.folds, found.threads) == (8, 0, 4)


def test_fewer_items_than_threads_leave_threads_alone() -> None:
    found = plan((9, 3, 64, 64), context=(256,), threads=16)
    assert (found.items, found.threads) == (3, 3)
    assert "threads: 3 of 16" in found.text
    assert "not more threads: there are no more items" in found.text


def test_partial_results_stay_within_their_limit() -> None:
    # One sequence of a million tokens, cut by partition, leaves 4,096 partials of 32 heads.
    below, above = (plan(context=(n * 256,), threads=64) for n in (4032, 4033))
    assert below.partial_bytes == 4032 * 32 * 130 * 4 <= 64 * MIB
    assert below.folds == 8
    assert above.partial_bytes == 0
    assert above.folds == 0
    many = plan(queries=(1,) * 256, context=(32_768,) * 256, threads=64)
    assert many.partial_bytes <= 64 * MIB


def test_a_window_leaves_out_what_it_hides() -> None:
    windowed = plan(window=256)
    assert windowed.work == plan(context=(256,)).work
    assert windowed.partial_bytes < plan().partial_bytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"geometry": (32, 7, 128, 128)}, "not a multiple of 7 KV heads"),
        ({"geometry": (32, 8, 12, 128)}, "multiples of 8 up to 512"),
        ({"geometry": (32, 8, 128, 520)}, "multiples of 8 up to 512"),
        ({"queries": (0,)}, "0 query tokens of 8192"),
        ({"queries": (9,), "context": (8,)}, "9 query tokens of 8"),
        ({"queries": (), "context": ()}, "a step has sequences"),
        ({"threads": -1}, "at least 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        plan(**wrong)  # type: ignore[arg-type]
