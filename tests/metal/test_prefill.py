"""The tiled prefill kernel equals float64 attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from oracle import Case

from metal.attention_case import Programs, Run, check_metal
from metal.covering import covering
from metal.formats import PAIRS
from metal.tiled_runs import (
    AXES,
    GROUPS,
    LENGTHS,
    WINDOWS,
    check_bits,
    check_empty_row,
    check_freed_pages,
    heads_of,
    run_of,
)
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

KERNEL = Kernel.PREFILL_TILED
TOKENS = 32
DIMS = [64, 80, 96, 128, 192, 256]


OWN_AXES = AXES | {
    "dims": [(d, d) for d in DIMS],
    "dtypes": PAIRS,
    "group": GROUPS,
    "kv_heads": [1, 2],
}
COVERING = [
    run_of(KERNEL, row | heads_of(row["group"], row["kv_heads"]), TOKENS, seed)
    for seed, row in enumerate(covering(OWN_AXES))
]
PROGRAMS = Programs(COVERING)
STEP = Case([45, 41, 70], [45, 1, 9], 6, 2, 64, 64, 16, window=30, sinks=True)


@pytest.mark.parametrize("run", COVERING, ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)


@pytest.mark.parametrize("query", [1, 7, 8, 9, 31, 32, 33])
@pytest.mark.parametrize("start", [0, 7, 8, 15, 16, 17, 31, 32, 33])
def test_edges_of_tiles(query: int, start: int) -> None:
    """Chunks that begin and end one token before, at and after the edges of every tile."""
    case = Case([start + query], [query], 2, 1, 64, 64, 8, seed=start * 100 + query)
    PROGRAMS.check(Run(KERNEL, case))
    PROGRAMS.check(Run(KERNEL, replace(case, window=16)))


@pytest.mark.parametrize("window", [None, 30])
def test_a_rows_bits_are_its_own(window: int | None) -> None:
    check_bits(PROGRAMS, Run(KERNEL, replace(STEP, window=window)))


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_pages_that_left_the_window_are_not_read(block_size: int) -> None:
    case = replace(STEP, context_lens=[45, 100, 70], block_size=block_size, window=5)
    check_freed_pages(PROGRAMS, Run(KERNEL, case))


def test_a_row_that_sees_nothing_is_zeros() -> None:
    case = replace(STEP, context_lens=[9, 41, 70], query_lens=[1, 1, 9])
    check_empty_row(PROGRAMS, Run(KERNEL, case))


# ---- every specialisation -----------------------------------------------------------------------


def test_every_specialisation_is_metal() -> None:
    check_metal(COVERING)


@pytest.mark.metal_all
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_every_type_page_group_and_feature(dim: int, dtypes: tuple[str, str]) -> None:
    features = product([8, 16, 32], [None, 21], [0.0, 2.5], [False, True], GROUPS)
    runs = []
    for n, (block_size, window, softcap, sinks, group) in enumerate(features):
        row = {
            "dims": (dim, dim),
            "dtypes": dtypes,
            "block_size": block_size,
            "window": window if window is None else WINDOWS[1 + n % 4],
            "softcap": softcap,
            "sinks": sinks,
            "lengths": LENGTHS[n % len(LENGTHS)],
            "by_head": n % 7 == 0,
            "order": n % 4,
        }
        runs.append(run_of(KERNEL, row | heads_of(group, 1 + n % 2), TOKENS, n))
    programs = Programs(runs)
    for run in runs:
        programs.check(run)


# ---- what is turned down ------------------------------------------------------------------------

SHAPE = LaunchShape(KERNEL, heads=8, kv_heads=2, k_dim=64, v_dim=64, block_size=16, rows=1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"k_dim": 72, "v_dim": 72}, "head size 72 is none of 64, 80, 96, 128, 192, 256"),
        ({"v_dim": 128}, "keys and values differ in size"),
        ({"partition": 256}, "it does not split a sequence"),
        ({"kv_heads": 3}, "8 query heads are not a multiple of 3 KV heads"),
        ({"block_size": 64}, "no pages of 64 tokens"),
        ({"pool_dtype": "bfloat16"}, "bf16 pools do not go with f16 rows"),
    ],
)
def test_a_shape_that_cannot_be_served_is_turned_down(change: dict[str, Any], why: str) -> None:
    assert launch_of(SHAPE).tokens_a_row == TOKENS
    for kernel in (KERNEL, Kernel.PREFILL_NAX):
        with pytest.raises(NativeError, match=why):
            launch_of(replace(SHAPE, kernel=kernel, **change))
