"""Every form of gqa_decode, with the reducer, equals float64 attention and the others.

Groups of 7 and 8 heads take the matrix form (gqa_decode_matrix) where rows and pools are 16-bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracle import Case

from metal.attention_case import FLOAT_ERROR, Programs, Run, check_metal
from metal.covering import Row, covering
from metal.formats import PAIRS, ROUNDING, rounded
from metal.row_runs import FEATURES, heads_of, run_of_row
from pamx.errors import NativeError
from pamx.native.launch import Kernel, LaunchShape, launch_of

FORMS = [Kernel.GQA_DECODE, Kernel.GQA_DECODE_HEADS]
DIMS = [64, 80, 96, 128, 192, 256]
GROUPS = [1, 2, 3, 4, 5, 6, 7, 8]
BLOCKS = [8, 16, 32]
PARTITIONS = [64, 512]  # 4 simdgroups of the group-sharing form, and 2

LENGTHS = {
    "decode": ([150, 1, 64, 9], [1, 1, 1, 1]),
    "boundary": ([64, 65, 63], [1, 1, 1]),
    "several tokens": ([67, 40], [3, 2]),
    "one token": ([1], [1]),
    "two partitions": ([513], [1]),
}


def run_of(row: Row, seed: int) -> Run:
    """`row` as in row_runs.py, with "form", "dim" and "group" for what they say there."""
    context_lens, query_lens = LENGTHS[row["lengths"]]
    lengths = {"context_lens": context_lens, "query_lens": query_lens}
    shape = {"dims": (row["dim"], row["dim"])} | heads_of(row["group"], row["kv_heads"])
    return run_of_row(row["form"], row | shape, lengths, seed)


def allowed(row: Row) -> bool:
    """A long context takes long here, whatever the rest: it meets few heads."""
    return row.get("lengths") != "two partitions" or row.get("kv_heads", 1) == 1


AXES: dict[str, list[Any]] = FEATURES | {
    "form": FORMS,
    "dim": DIMS,
    "dtypes": PAIRS,
    "group": GROUPS,
    "kv_heads": [1, 2],
    "partition": PARTITIONS,
    "spare_partitions": [0, 2],
    "lengths": list(LENGTHS),
}
COVERING = [run_of(row, seed) for seed, row in enumerate(covering(AXES, allowed))]
PROGRAMS = Programs(COVERING)


@pytest.mark.parametrize("run", COVERING, ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)


# ---- what a row's result depends on -------------------------------------------------------------

STEP = Case([150, 41, 70], [1, 2, 1], 6, 2, 64, 64, 16, window=50, sinks=True)


@dataclass(frozen=True)
class Form:
    kernel: Kernel
    group: int = 3

    def run(self, case: Case, **more: Any) -> Run:
        return Run(self.kernel, replace(case, heads=self.group * case.kv_heads), **more)

    def __str__(self) -> str:
        return f"{self.kernel.name.lower()}-{self.group}"


EACH = pytest.mark.parametrize("form", [*map(Form, FORMS), Form(Kernel.GQA_DECODE, 8)], ids=str)


@EACH
@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_rows_bits_are_its_own(form: Form, partition: int) -> None:
    """Alone or in company, in any order, with room for any number of partitions: the same bits."""
    run = form.run(STEP, partition=partition)
    together = PROGRAMS.run(run)
    for order in (1, 2, 3):
        np.testing.assert_array_equal(PROGRAMS.run(replace(run, order=order)).out, together.out)
    more = PROGRAMS.run(replace(run, spare_partitions=5))
    np.testing.assert_array_equal(more.out, together.out)
    for s, rows in enumerate([slice(0, 1), slice(1, 3), slice(3, 4)]):
        alone = replace(STEP, context_lens=[STEP.context_lens[s]], query_lens=[STEP.query_lens[s]])
        part = alone.build()
        part.sequence_keys = [together.step.sequence_keys[s]]
        part.sequence_values = [together.step.sequence_values[s]]
        part.queries = together.step.queries[rows]
        part.sinks = together.step.sinks
        found = PROGRAMS.run_step(form.run(alone, partition=partition), part).out
        np.testing.assert_array_equal(found, together.out[rows])


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 2e-6), ("float16", 2e-3)])
def test_both_forms_agree(dim: int, dtype: str, error: float) -> None:
    case = Case([300, 17], [1, 1], 16, 2, dim, dim, 16, softcap=3.0)
    one, other = (PROGRAMS.run(Run(form, case, dtype=dtype, partition=64)) for form in FORMS)
    np.testing.assert_allclose(one.out, other.out, atol=error)


@EACH
def test_a_row_that_sees_nothing_is_zeros(form: Form) -> None:
    run = form.run(replace(STEP, sinks=False), partition=64)
    step = run.build()
    step.context_lens[0] = 0  # its one query then stands before every key
    out = PROGRAMS.run_step(run, step).out
    assert (out[0] == 0).all()
    assert np.isfinite(out).all()
    assert (out[1:] != 0).any(axis=-1).all()


@EACH
def test_pages_behind_the_window_may_be_gone(form: Form) -> None:
    run = form.run(replace(STEP, query_lens=[1, 1, 1]), partition=64)
    step = run.build()
    expected = PROGRAMS.run_step(run, step).out
    for table, context in zip(step.block_tables, step.context_lens, strict=True):
        table[: max(0, context - 50) // 16] = 1_000_000_000
    np.testing.assert_array_equal(PROGRAMS.run_step(run, step).out, expected)


@EACH
@pytest.mark.parametrize("name", ["sequence_keys", "sequence_values"])
def test_what_is_not_finite_reaches_the_heads_that_see_it_and_no_other(
    form: Form, name: str
) -> None:
    run = form.run(replace(STEP, window=None), partition=64)
    step = run.build()
    getattr(step, name)[0][33, 1, 5] = np.nan
    reached = np.isnan(PROGRAMS.run_step(run, step).out)
    expected = np.zeros_like(reached)
    expected[0, form.group :] = True  # the second half reads KV head 1
    if name == "sequence_values":
        expected[..., :5] = expected[..., 6:] = False
    np.testing.assert_array_equal(reached, expected)


@EACH
def test_scores_that_rise_late_and_far(form: Form) -> None:
    """The running maximum is raised by steps: by less than its slack, by more, and by a lot."""
    run = form.run(Case([300], [1], 4, 1, 64, 64, 16), partition=512)
    step = run.build()
    for position, factor in [(20, 2.0), (90, 6.0), (170, 40.0), (171, 41.0), (299, 80.0)]:
        key = step.queries[0, position % form.group] * factor / 8
        step.sequence_keys[0][position, 0] = rounded(key, "float16")
    result = PROGRAMS.run_step(run, step)
    np.testing.assert_allclose(
        result.out, step.expected(), rtol=ROUNDING["float16"], atol=FLOAT_ERROR
    )


# ---- every specialisation -----------------------------------------------------------------------


def test_every_specialisation_is_metal() -> None:
    check_metal(COVERING)


@pytest.mark.metal_all
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dim", DIMS)
def test_every_group_type_page_and_feature(dim: int, group: int) -> None:
    runs = []
    features = list(product([None, 21], [0.0, 2.5], [False, True]))
    shapes = product(FORMS, PAIRS, PARTITIONS, BLOCKS)
    for n, (form, dtypes, partition, block_size) in enumerate(shapes):
        window, softcap, sinks = features[n % len(features)]
        row = {
            "form": form,
            "dim": dim,
            "group": group,
            "dtypes": dtypes,
            "partition": partition,
            "block_size": block_size,
            "kv_heads": 1 + n % 2,
            "lengths": ("decode", "boundary", "several tokens")[n % 3],
            "spare_partitions": n % 2,
            "by_head": n % 5 == 0,
            "order": n % 4,
            "window": window,
            "softcap": softcap,
            "sinks": sinks,
        }
        runs.append(run_of(row, n))
    check_metal(runs)
    programs = Programs(runs)
    for run in runs:
        programs.check(run)


# ---- what is turned down ------------------------------------------------------------------------

SHAPE = LaunchShape(
    Kernel.GQA_DECODE,
    heads=8,
    kv_heads=2,
    k_dim=64,
    v_dim=64,
    block_size=16,
    partition=512,
    num_partitions=1,
    rows=1,
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name.lower())
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kv_heads": 3}, "8 query heads are not a multiple of 3 KV heads"),
        ({"heads": 18}, "9 query heads share a KV head, more than 8"),
        ({"k_dim": 72, "v_dim": 72}, "no fast path for head sizes 72 and 72"),
        ({"v_dim": 128}, "no fast path for head sizes 64 and 128"),
        ({"block_size": 64}, "no pages of 64 tokens"),
        ({"pool_dtype": "bfloat16"}, "bf16 pools do not go with f16 rows"),
        ({"rows": 0}, "no rows"),
        ({"partition": 0}, "partitions of 0 tokens"),
        ({"partition": 48}, "partitions of 48 tokens are not a multiple of 32"),
        ({"num_partitions": 0}, "no partitions"),
    ],
)
def test_a_shape_that_cannot_be_served_is_turned_down(
    form: Kernel, change: dict[str, Any], why: str
) -> None:
    shape = replace(SHAPE, kernel=form)
    launch_of(shape)
    with pytest.raises(NativeError, match=why):
        launch_of(replace(shape, **change))


@pytest.mark.parametrize(
    ("heads", "pool_dtype", "dtype", "source"),
    [
        (14, "float16", "float16", "gqa_decode_matrix.metal"),
        (12, "float16", "float16", "gqa_decode.metal"),
        (16, "bfloat16", "bfloat16", "gqa_decode_matrix.metal"),
        (16, "float16", "float32", "gqa_decode.metal"),
    ],
)
def test_groups_that_fill_a_matrix_take_it(
    heads: int, pool_dtype: str, dtype: str, source: str
) -> None:
    shape = replace(SHAPE, heads=heads, dtype=dtype, pool_dtype=pool_dtype)
    assert launch_of(shape).source == source


def test_simdgroups_follow_from_the_partition_alone() -> None:
    for rows, heads, partition, simdgroups in product(
        [1, 64], [4, 64], [256, 512, 1024], [{256: 4, 512: 2, 1024: 2}]
    ):
        shape = replace(SHAPE, rows=rows, heads=heads, kv_heads=heads // 4, partition=partition)
        assert launch_of(shape).threadgroup == (32, simdgroups[partition], 1)
