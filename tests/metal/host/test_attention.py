"""Stand-alone attention through native/metal equals float64 attention and fills the pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from oracle import Case

from metal.attention_case import FLOAT_ERROR
from metal.formats import PAIRS, ROUNDING, rounded, to_bits
from metal.host.library import Metal, MetalError

DECODE = Case([40, 7, 65], [1, 1, 1], 8, 2, 64, 64, 16)
PREFILL = Case([37], [37], 8, 2, 64, 64, 16)
MIXED = Case([70, 33, 12], [1, 20, 12], 8, 2, 64, 64, 16, seed=3)
FEATURES = [{}, {"window": 9}, {"softcap": 2.5}, {"sinks": True}]


def check(
    metal: Metal,
    case: Case,
    dtype: str,
    pools: str | None = None,
    *,
    by_head: bool = False,
    error: float = FLOAT_ERROR,
) -> str:
    """Compares one step with the oracle, pools included; returns the plan's text.

    Args:
        error: Allowed beside the rounding of the output.
    """
    step = case.build()
    step.queries = rounded(step.queries, dtype)
    for name in ("keys", "values"):
        setattr(step, name, rounded(getattr(step, name), dtype))
    for rows in (step.sequence_keys, step.sequence_values):
        rows[:] = [rounded(r, pools or dtype) for r in rows]
    answer = metal.attention(step, dtype, pools, by_head=by_head)
    np.testing.assert_allclose(
        answer.out, step.expected(), rtol=ROUNDING[dtype], atol=error, err_msg=answer.text
    )
    for found, expected in zip(
        (answer.key_pool, answer.value_pool), step.expected_pools(), strict=True
    ):
        np.testing.assert_array_equal(found, to_bits(expected, pools or dtype))
    return answer.text


@pytest.mark.parametrize("case", [DECODE, PREFILL, MIXED], ids=["decode", "prefill", "mixed"])
@pytest.mark.parametrize(("dtype", "pools"), PAIRS)
def test_steps_of_every_type(metal: Metal, case: Case, dtype: str, pools: str) -> None:
    check(metal, case, dtype, pools)


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_features(metal: Metal, features: dict[str, object]) -> None:
    check(metal, replace(MIXED, **features), "float16")


def test_rows_that_lie_by_head(metal: Metal) -> None:
    check(metal, PREFILL, "float16", by_head=True)


def test_a_context_over_many_partitions(metal: Metal) -> None:
    """Split decode rows take scratch, give it back and take the same again."""
    case = Case([1500, 30], [1, 1], 4, 1, 64, 64, 16)
    check(metal, case, "float16")
    held = metal.scratch_bytes()
    check(metal, replace(case, seed=1), "float16")
    assert metal.scratch_bytes() == held


def test_a_buffer_that_is_too_small_is_refused(metal: Metal) -> None:
    step = DECODE.build()
    step.case = replace(DECODE, v_dim=128)
    with pytest.raises(MetalError, match="values has 1536 bytes and needs 1792"):
        metal.attention(step, "float32")
