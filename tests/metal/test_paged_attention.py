"""The unified kernel, unsplit and split with the reducer, equals float64 attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracle import Case, Step

from metal.attention_case import Programs, Run, check_metal
from metal.covering import Row, covering
from metal.formats import PAIRS
from metal.row_runs import FEATURES, heads_of, run_of_row
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

KERNEL = Kernel.PAGED_ATTENTION
DIMS = [(d, d) for d in (8, 40, 64, 80, 96, 128, 192, 256, 512)]
UNEVEN_DIMS = [(192, 128), (24, 200)]
GROUPS = [1, 3, 4, 5, 6, 7, 8, 16]
PARTITIONS = [0, 32, 64, 256, 512]


def lengths(kind: str, partition: int) -> dict[str, list[int]]:
    """Context and query lengths; at the boundaries of partitions, or of the blocks of 32."""
    p = partition or 32
    context, query = {
        "decode": ([p - 1, 1, p + 1, 9], [1, 1, 1, 1]),
        "boundary": ([p, p + 1], [2, 1]),
        "mixed": ([p + 3, 7, 37], [1, 7, 5]),
        "one token": ([1], [1]),
    }[kind]
    return {"context_lens": context, "query_lens": query}


def run_of(row: Row, seed: int) -> Run:
    """`row` as in row_runs.py, with "group" instead of "heads"."""
    row = row | heads_of(row["group"], row["kv_heads"])
    return run_of_row(KERNEL, row, lengths(row["lengths"], row["partition"]), seed)


def allowed(row: Row) -> bool:
    """Long partitions and many heads take long here and do not bear on each other."""
    long = row.get("partition", 0) > 64
    many = row.get("group", 1) * row.get("kv_heads", 1) > 16
    return not (many or (long and row.get("group", 1) > 8))


AXES: dict[str, list[Any]] = FEATURES | {
    "dims": DIMS + UNEVEN_DIMS,
    "dtypes": PAIRS,
    "group": GROUPS,
    "kv_heads": [1, 2, 3],
    "partition": PARTITIONS,
    "spare_partitions": [0, 2],
    "lengths": ["decode", "boundary", "mixed", "one token"],
}
COVERING = [run_of(row, seed) for seed, row in enumerate(covering(AXES, allowed))]
PROGRAMS = Programs(COVERING)


@pytest.mark.parametrize("run", COVERING, ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)


# ---- what a row's result depends on -------------------------------------------------------------

STEP = Case([70, 41, 300], [70, 1, 9], 6, 2, 40, 64, 16, window=50, sinks=True)


@pytest.mark.parametrize("partition", [0, 32])
def test_a_rows_bits_are_its_own(partition: int) -> None:
    """Alone or in company, in any order, with room for any number of partitions: the same bits."""
    run = Run(KERNEL, STEP, partition=partition)
    together = PROGRAMS.run(run)
    rows = slice(0, 70)  # of the first sequence
    for order in (1, 2, 3):
        np.testing.assert_array_equal(PROGRAMS.run(replace(run, order=order)).out, together.out)
    more = PROGRAMS.run(replace(run, spare_partitions=40))
    np.testing.assert_array_equal(more.out, together.out)

    step = together.step
    for first, last in [(0, 70), (0, 1), (31, 34), (63, 70)]:
        alone = replace(STEP, context_lens=[last], query_lens=[last - first])
        found = PROGRAMS.run_step(
            replace(run, case=alone, spare_partitions=partition and 1), part_of(step, alone)
        )
        np.testing.assert_array_equal(found.out, together.out[rows][first:last])


def part_of(step: Step, case: Case) -> Step:
    """A step whose one sequence is the beginning of another step's first one."""
    part = case.build()
    (context,), (query,) = case.context_lens, case.query_lens
    part.sequence_keys = [step.sequence_keys[0][:context]]
    part.sequence_values = [step.sequence_values[0][:context]]
    part.queries = step.queries[context - query : context]
    part.sinks = step.sinks
    return part


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("partition", [0, 32])
def test_a_row_that_sees_nothing_is_zeros(partition: int, sinks: bool) -> None:
    run = Run(KERNEL, replace(STEP, sinks=sinks), partition=partition)
    step = run.build()
    step.context_lens[1] = 0  # its one query then stands before every key
    out = PROGRAMS.run_step(run, step).out
    assert (out[70] == 0).all()
    assert np.isfinite(out).all()
    assert (out[np.r_[0:70, 71:80]] != 0).any(axis=-1).all()


@pytest.mark.parametrize("partition", [0, 32])
def test_pages_behind_the_window_may_be_gone(partition: int) -> None:
    run = Run(KERNEL, replace(STEP, query_lens=[1, 1, 1]), partition=partition)
    step = run.build()
    expected = PROGRAMS.run_step(run, step).out
    for table, context in zip(step.block_tables, step.context_lens, strict=True):
        table[: max(0, context - 50) // 16] = 1_000_000_000
    np.testing.assert_array_equal(PROGRAMS.run_step(run, step).out, expected)


@pytest.mark.parametrize("partition", [0, 32])
@pytest.mark.parametrize("name", ["sequence_keys", "sequence_values"])
def test_what_is_not_finite_reaches_the_rows_that_see_it_and_no_other(
    partition: int, name: str
) -> None:
    run = Run(KERNEL, replace(STEP, window=None), partition=partition)
    step = run.build()
    getattr(step, name)[0][33, 1, 5] = np.nan
    reached = np.isnan(PROGRAMS.run_step(run, step).out)
    expected = np.zeros_like(reached)
    expected[33:70, 3:] = True  # query heads 3 to 5 read KV head 1
    if name == "sequence_values":
        expected[..., :5] = expected[..., 6:] = False
    np.testing.assert_array_equal(reached, expected)


# ---- every specialisation -----------------------------------------------------------------------


def test_every_specialisation_is_metal() -> None:
    check_metal(COVERING)


@pytest.mark.metal_all
@pytest.mark.parametrize("dims", [*((d, d) for d in range(8, 513, 8)), *UNEVEN_DIMS], ids=str)
def test_every_dim_type_page_and_feature(dims: tuple[int, int]) -> None:
    runs = []
    features = list(product([None, 21], [0.0, 2.5], [False, True]))
    for n, (dtypes, partition, block_size, feature) in enumerate(
        product(PAIRS, [0, 32], [8, 16, 32], features)
    ):
        row = {
            "dims": dims,
            "dtypes": dtypes,
            "partition": partition,
            "block_size": block_size,
            "group": GROUPS[n % len(GROUPS)],
            "kv_heads": 1 + n % 2,
            "lengths": ("decode", "boundary", "mixed")[n % 3],
            "spare_partitions": n % 2,
            "by_head": n % 5 == 0,
            "order": n % 4,
        } | dict(zip(("window", "softcap", "sinks"), feature, strict=True))
        runs.append(run_of(row, n))
    check_metal(runs)
    programs = Programs(runs)
    for run in runs:
        programs.check(run)


# ---- what is turned down ------------------------------------------------------------------------

SHAPE = LaunchShape(
    KERNEL, heads=8, kv_heads=2, k_dim=64, v_dim=64, block_size=16, num_partitions=1, rows=1
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kv_heads": 3}, "8 query heads are not a multiple of 3 KV heads"),
        ({"k_dim": 60}, "k_dim 60 is not a multiple of 8 up to 512"),
        ({"v_dim": 520}, "v_dim 520 is not a multiple of 8 up to 512"),
        ({"block_size": 64}, "no pages of 64 tokens"),
        ({"pool_dtype": "bfloat16"}, "bf16 pools do not go with f16 rows"),
        ({"pool_dtype": "float32"}, "f32 pools do not go with f16 rows"),
        ({"rows": 0}, "no rows"),
        ({"partition": 48}, "partitions of 48 tokens are not a multiple of 32"),
        ({"partition": 256, "num_partitions": 0}, "no partitions"),
    ],
)
def test_a_shape_that_cannot_be_served_is_turned_down(change: dict[str, Any], why: str) -> None:
    launch_of(SHAPE)
    with pytest.raises(NativeError, match=why):
        launch_of(replace(SHAPE, **change))
