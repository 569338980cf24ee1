"""Runs of mla_decode and mla_prefill, by latent and rotary size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from metal.attention_case import Run
from metal.covering import Row
from metal.tiled_runs import row_of, run_of
from pamx.native.launch import Kernel

TOKENS = 4  # of a work row of mla_prefill
# (latent, rope): DeepSeek's, tiny models', and sizes that do not go into a threadgroup evenly.
SIZES = [(512, 64), (256, 32), (128, 16), (72, 8), (320, 40)]
MORE_SIZES = [(8 * n, 8) for n in range(1, 65, 5)]
HEADS = [1, 8, 9, 16, 20, 40]
# Partition, block size, whether there is a window, soft-cap, sinks.
Features = tuple[int, int, bool, float, bool]


def decode_run(row: Row, seed: int) -> Run:
    """One token of some sequences, several of one: a token is a work row."""
    run = run_of(Kernel.MLA_DECODE, row, TOKENS, seed)
    lengths: dict[str, Any] = {"context_lens": [31, 32, 33, 1, 70], "query_lens": [1, 1, 1, 1, 2]}
    return replace(run, case=replace(run.case, **lengths))


def runs_of(
    size: tuple[int, int], dtypes: tuple[str, str], features: Iterable[Features], first: int = 0
) -> Iterator[Run]:
    """A decode run of each of the features, and a prefill run where they ask for no partitions.

    Args:
        first: Seed of the first; lengths, heads and layouts take turns by it.
    """
    for n, (partition, block_size, window, softcap, sinks) in enumerate(features, first):
        row = row_of(n, block_size, window, softcap, sinks) | {
            "dims": (sum(size), size[0]),
            "dtypes": dtypes,
            "heads": HEADS[n % len(HEADS)],
            "kv_heads": 1,
        }
        yield decode_run(row | {"partition": partition}, n)
        if not partition:
            yield run_of(Kernel.MLA_PREFILL, row, TOKENS, n)
