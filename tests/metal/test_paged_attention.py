"""The unified kernel, unsplit and split with the reducer, equals float64 attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from oracle import Case

from metal import softmetal
from metal.attention_case import SHADERS, Programs, Run
from metal.covering import Row, covering
from metal.formats import PAIRS
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
    k_dim, v_dim = row["dims"]
    dtype, pool_dtype = row["dtypes"]
    case = Case(
        **lengths(row["lengths"], row["partition"]),
        heads=row["group"] * row["kv_heads"],
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
        KERNEL,
        case,
        dtype=dtype,
        pool_dtype=pool_dtype,
        partition=row["partition"],
        spare_partitions=row["spare_partitions"],
        by_head=row["by_head"],
        order=row["order"],
    )


def allowed(row: Row) -> bool:
    """Long partitions and many heads take long here and do not bear on each other."""
    long = row.get("partition", 0) > 64
    many = row.get("group", 1) * row.get("kv_heads", 1) > 16
    return not (many or (long and row.get("group", 1) > 8))


AXES: dict[str, list[Any]] = {
    "dims": DIMS + UNEVEN_DIMS,
    "dtypes": PAIRS,
    "group": GROUPS,
    "kv_heads": [1, 2, 3],
    "block_size": [8, 16, 32],
    "partition": PARTITIONS,
    "spare_partitions": [0, 2],
    "lengths": ["decode", "boundary", "mixed", "one token"],
    "window": [None, 1, 7, 33, 1000],
    "softcap": [0.0, 2.5],
    "sinks": [False, True],
    "by_head": [False, True],
    "order": [0, 1, 7],
}
COVERING = [run_of(row, seed) for seed, row in enumerate(covering(AXES, allowed))]
PROGRAMS = Programs(COVERING)


@pytest.mark.parametrize("run", COVERING, ids=str)
def test_equals_float64_attention(run: Run) -> None:
    PROGRAMS.check(run)
