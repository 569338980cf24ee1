"""Attention over a latent cache equals float64 attention in absorbed form.

Absorbed (DeepSeek-V2, arXiv:2405.04434, section 2.1), it is attention of many query heads over one
KV head whose values are the latent part of its keys: so the oracle computes it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from oracle import Case

from metal.attention_case import Programs, Run, check_metal
from metal.covering import Row, covering
from metal.formats import PAIRS
from metal.mla_runs import HEADS, MORE_SIZES, SIZES, TOKENS, decode_run, runs_of
from metal.tiled_runs import AXES, check_bits, check_empty_row, check_freed_pages, run_of
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

DECODE, PREFILL = Kernel.MLA_DECODE, Kernel.MLA_PREFILL
OWN_AXES = AXES | {
    "dims": [(latent + rope, latent) for latent, rope in SIZES],
    "dtypes": PAIRS,
    "heads": HEADS,
    "kv_heads": [1],
}


def fits(row: Row) -> bool:
    """Prefill of many long heads takes long here."""
    return row.get("heads", 1) <= 20 or row.get("dims", (0, 0))[1] <= 256


DECODE_RUNS = [
    decode_run(row, seed)
    for seed, row in enumerate(covering(OWN_AXES | {"partition": [0, 16, 32, 256]}, fits, seed=2))
]
PREFILL_RUNS = [
    run_of(PREFILL, row, TOKENS, seed) for seed, row in enumerate(covering(OWN_AXES, fits, seed=3))
]
PROGRAMS = Programs([*DECODE_RUNS, *PREFILL_RUNS])
STEP = Case([21, 41, 70], [21, 1, 9], 9, 1, 144, 128, 16, window=15, sinks=True)


@pytest.mark.parametrize("run", [*DECODE_RUNS, *PREFILL_RUNS], ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)


@pytest.mark.parametrize("query", [1, 3, 4, 5])
@pytest.mark.parametrize("start", [0, 3, 4, 7, 8, 9, 15, 16, 17])
def test_edges_of_tiles(query: int, start: int) -> None:
    """Chunks that begin and end one token before, at and after the edges of every tile."""
    case = Case([start + query], [query], 3, 1, 144, 128, 8, seed=start * 100 + query)
    for window in (None, 4):
        windowed = replace(case, window=window)
        PROGRAMS.check(Run(PREFILL, windowed))
        PROGRAMS.check(Run(DECODE, windowed))
        PROGRAMS.check(Run(DECODE, windowed, partition=16))


@pytest.mark.parametrize("window", [None, 15])
@pytest.mark.parametrize(("kernel", "partition"), [(PREFILL, 0), (DECODE, 0), (DECODE, 16)])
def test_a_rows_bits_are_its_own(kernel: Kernel, partition: int, window: int | None) -> None:
    check_bits(PROGRAMS, Run(kernel, replace(STEP, window=window), partition=partition))


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize(("kernel", "partition"), [(PREFILL, 0), (DECODE, 0), (DECODE, 32)])
def test_pages_that_left_the_window_are_not_read(
    kernel: Kernel, partition: int, block_size: int
) -> None:
    case = replace(STEP, context_lens=[45, 100, 70], block_size=block_size, window=5)
    check_freed_pages(PROGRAMS, Run(kernel, case, partition=partition))


@pytest.mark.parametrize(("kernel", "partition"), [(PREFILL, 0), (DECODE, 0), (DECODE, 16)])
def test_a_row_that_sees_nothing_is_zeros(kernel: Kernel, partition: int) -> None:
    case = replace(STEP, context_lens=[9, 41, 70], query_lens=[1, 1, 9])
    check_empty_row(PROGRAMS, Run(kernel, case, partition=partition))


# ---- every specialisation -----------------------------------------------------------------------


def test_every_specialisation_is_metal() -> None:
    check_metal([*DECODE_RUNS, *PREFILL_RUNS])


@pytest.mark.metal_all
@pytest.mark.parametrize("size", [*SIZES, *MORE_SIZES], ids=str)
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_every_type_page_and_feature(size: tuple[int, int], dtypes: tuple[str, str]) -> None:
    features = product([0, 16, 32], [8, 16, 32], [False, True], [0.0, 2.5], [False, True])
    runs = list(runs_of(size, dtypes, features))
    programs = Programs(runs)
    for run in runs:
        programs.check(run)


# ---- what is turned down ------------------------------------------------------------------------

SHAPE = LaunchShape(DECODE, heads=16, kv_heads=1, k_dim=576, v_dim=512, block_size=16, rows=1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kv_heads": 2}, "a latent cache has one KV head"),
        ({"k_dim": 512}, "no rotary part"),
        ({"k_dim": 580}, "k_dim 68 is not a multiple of 8"),
        ({"v_dim": 520}, "v_dim 520 is not a multiple of 8 up to 512"),
        ({"partition": 40, "num_partitions": 1}, "40 tokens are not a multiple of 16"),
        ({"partition": 256}, "no partitions"),
        ({"kernel": PREFILL, "partition": 256}, "it does not split a sequence"),
    ],
)
def test_a_shape_that_cannot_be_served_is_turned_down(change: dict[str, Any], why: str) -> None:
    assert launch_of(SHAPE).grid == (1, 1, 1)
    with pytest.raises(NativeError, match=why):
        launch_of(replace(SHAPE, **change))
