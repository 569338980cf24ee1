"""Runs of prefill_nax, by head size and types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metal.attention_case import FLOAT_ERROR, Run
from metal.covering import Row
from metal.formats import ROUNDING
from metal.tiled_runs import heads_of, row_of, run_of
from pamx.native.launch import Kernel

TOKENS = 64  # of a work row
DIMS = [64, 80, 96, 128, 192, 256]
# Below 16-bit rows the weights may be rounded to 16 bits too. They sum to at most 1 and stand
# before values of which few are larger than 4.
ERRORS = {
    "float32": FLOAT_ERROR,
    "float16": 4 * ROUNDING["float16"],
    "bfloat16": 4 * ROUNDING["bfloat16"],
}
# Block size, whether there is a window, soft-cap, sinks, query heads of a KV head.
Features = tuple[int, bool, float, bool, int]


def nax_run(row: Row, group: int, kv_heads: int, seed: int) -> Run:
    heads = heads_of(group, kv_heads)
    return run_of(Kernel.PREFILL_NAX, row | heads, TOKENS, seed, ERRORS[row["dtypes"][0]])


def runs_of(
    dim: int, dtypes: tuple[str, str], features: Iterable[Features], first: int = 0
) -> Iterator[Run]:
    """A run of each of the features.

    Args:
        first: Seed of the first; lengths and layouts take turns by it.
    """
    for n, (block_size, window, softcap, sinks, group) in enumerate(features, first):
        row = row_of(n, block_size, window, softcap, sinks) | {
            "dims": (dim, dim),
            "dtypes": dtypes,
        }
        yield nax_run(row, group, 1 + n % 2, n)
