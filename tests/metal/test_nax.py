"""The tensor-unit prefill kernel equals float64 attention, on a model of matmul2d.

The model (softmetal/include/softmetal/tensor_ops.hpp) knows what the operation computes and where
its operands lie on M5, not how the units round: nothing here says how fast or how exact they are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from oracle import Case

from metal import softmetal
from metal.attention_case import SHADERS, Programs, Run, check_metal
from metal.covering import covering
from metal.formats import PAIRS
from metal.nax_runs import DIMS, ERRORS, TOKENS, nax_run, runs_of
from metal.tiled_runs import AXES, GROUPS, check_bits, check_empty_row, check_freed_pages
from pamx.native.launch import Kernel, LaunchShape, launch_of

KERNEL = Kernel.PREFILL_NAX
OWN_AXES = AXES | {
    "dims": [(d, d) for d in DIMS],
    "dtypes": PAIRS,
    "group": GROUPS,
    "kv_heads": [1, 2],
}
COVERING = [
    nax_run(row, row["group"], row["kv_heads"], seed)
    for seed, row in enumerate(covering(OWN_AXES, seed=1))
]
PROGRAMS = Programs(COVERING)
STEP = Case([75, 41, 70], [75, 1, 9], 6, 2, 64, 64, 16, window=30, sinks=True)


@pytest.mark.parametrize("run", COVERING, ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)


@pytest.mark.parametrize("query", [1, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize("start", [0, 15, 16, 17, 31, 32, 33])
def test_edges_of_tiles(query: int, start: int) -> None:
    """Chunks that begin and end one token before, at and after the edges of every tile."""
    case = Case([start + query], [query], 2, 1, 64, 64, 8, seed=start * 100 + query)
    PROGRAMS.check(Run(KERNEL, case, dtype="float32"))
    PROGRAMS.check(Run(KERNEL, replace(case, window=16), dtype="float32"))


@pytest.mark.parametrize("window", [None, 30])
def test_a_rows_bits_are_its_own(window: int | None) -> None:
    check_bits(PROGRAMS, Run(KERNEL, replace(STEP, window=window)))


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_pages_that_left_the_window_are_not_read(block_size: int) -> None:
    case = replace(STEP, context_lens=[75, 100, 70], block_size=block_size, window=5)
    check_freed_pages(PROGRAMS, Run(KERNEL, case, error=ERRORS["float16"]))


def test_a_row_that_sees_nothing_is_zeros() -> None:
    case = replace(STEP, context_lens=[9, 41, 70], query_lens=[1, 1, 9])
    check_empty_row(PROGRAMS, Run(KERNEL, case))


def test_older_compilers_never_see_it() -> None:
    shape = LaunchShape(KERNEL, heads=4, kv_heads=2, k_dim=64, v_dim=64, block_size=16, rows=1)
    launch = launch_of(shape)
    assert launch.tokens_a_row == TOKENS
    path = SHADERS / launch.source
    with pytest.raises(softmetal.MetalError, match="no kernels"):
        softmetal.compile(path, language=310)
    assert softmetal.compile(path, [launch.instantiation], language=400).kernels == [
        launch.function
    ]


# ---- every specialisation -----------------------------------------------------------------------


def test_every_specialisation_is_metal() -> None:
    check_metal(COVERING)


@pytest.mark.metal_all
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
def test_every_type_page_group_and_feature(dim: int, dtypes: tuple[str, str]) -> None:
    features = product([8, 16, 32], [False, True], [0.0, 2.5], [False, True], GROUPS)
    runs = list(runs_of(dim, dtypes, features))
    programs = Programs(runs)
    for run in runs:
        programs.check(run)
