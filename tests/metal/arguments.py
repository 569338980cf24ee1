"""The argument structs and buffer indices of shaders/params.h, for NumPy.

tests/metal/test_arguments.py holds them against the header.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

WORK_ROW = np.dtype([("sequence", "u4"), ("first_token", "u4"), ("tokens", "u4")], align=True)

ATTENTION = np.dtype(
    [
        ("heads", "u4"),
        ("kv_heads", "u4"),
        ("k_dim", "u4"),
        ("v_dim", "u4"),
        ("block_size", "u4"),
        ("max_blocks", "u4"),
        ("rows", "u4"),
        ("partition", "u4"),
        ("num_partitions", "u4"),
        ("window", "u4"),
        ("scale_log2", "f4"),
        ("softcap_log2", "f4"),
        ("query_token_stride", "u8"),
        ("query_head_stride", "u8"),
    ],
    align=True,
)

KV_WRITE = np.dtype(
    [
        ("tokens", "u4"),
        ("kv_heads", "u4"),
        ("k_dim", "u4"),
        ("v_dim", "u4"),
        ("key_token_stride", "u8"),
        ("key_head_stride", "u8"),
        ("value_token_stride", "u8"),
        ("value_head_stride", "u8"),
    ],
    align=True,
)

COPY_BLOCKS = np.dtype([("pairs", "u4"), ("block_bytes", "u4")], align=True)
GATHER_BLOCKS = np.dtype(
    [("tokens", "u4"), ("block_size", "u4"), ("token_bytes", "u4")], align=True
)

STRUCTS = {
    "WorkRow": WORK_ROW,
    "AttentionParams": ATTENTION,
    "KvWriteParams": KV_WRITE,
    "CopyBlocksParams": COPY_BLOCKS,
    "GatherBlocksParams": GATHER_BLOCKS,
}


class Buffer(IntEnum):
    """Of the attention kernels and the reducer."""

    QUERIES = 0
    KEY_POOL = 1
    VALUE_POOL = 2
    BLOCK_TABLES = 3
    CONTEXT_LENS = 4
    QUERY_STARTS = 5
    OUT = 6
    PARTIAL_OUT = 7
    PARTIAL_STATS = 8
    SINKS = 9
    WORK_ROWS = 10
    PARAMS = 11


NO_MAXIMUM = np.float32(-1.0e30)  # limits.h


def struct(dtype: npt.DTypeLike, **fields: Any) -> npt.NDArray[Any]:
    """One struct; every field is named."""
    made = np.zeros(1, dtype)
    assert set(fields) == set(made.dtype.names or ())
    for name, value in fields.items():
        made[name] = value
    return made
