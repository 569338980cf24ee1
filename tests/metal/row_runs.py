"""From a row of values, as covering.py makes them, to a run; and the axes of every kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oracle import Case

from metal.attention_case import FLOAT_ERROR, Run
from metal.covering import Row
from pamx.native.launch import Kernel

FEATURES: dict[str, list[Any]] = {
    "block_size": [8, 16, 32],
    "window": [None, 1, 7, 33, 1000],
    "softcap": [0.0, 2.5],
    "sinks": [False, True],
    "by_head": [False, True],
    "order": [0, 1, 7],
}


def heads_of(group: int, kv_heads: int) -> dict[str, int]:
    """The part of a row that says how many heads there are, `group` query heads to a KV head."""
    return {"heads": group * kv_heads, "kv_heads": kv_heads}


def run_of_row(
    kernel: Kernel,
    row: Row,
    lengths: Mapping[str, list[int]],
    seed: int = 0,
    error: float = FLOAT_ERROR,
) -> Run:
    """A run with what the row says.

    Args:
        row: A value for each of FEATURES, and "dims", "dtypes" (rows, pools), "heads" and
            "kv_heads"; for kernels that split "partition" and "spare_partitions", by default 0.
        lengths: "context_lens" and "query_lens".
        error: Allowed beside the rounding of the output.
    """
    k_dim, v_dim = row["dims"]
    dtype, pool_dtype = row["dtypes"]
    case = Case(
        **lengths,
        heads=row["heads"],
        kv_heads=row["kv_heads"],
        k_dim=k_dim,
        v_dim=v_dim,
        block_size=row["block_size"],
        seed=seed,
        softcap=row["softcap"],
        window=row["window"],
        sinks=row["sinks"],
    )
    return Run(
        kernel,
        case,
        dtype=dtype,
        pool_dtype=pool_dtype,
        partition=row.get("partition", 0),
        spare_partitions=row.get("spare_partitions", 0),
        by_head=row["by_head"],
        order=row["order"],
        error=error,
    )
