"""Every specialisation against float64 attention, on small steps full of traps.

The steps are those of tests/metal: ragged lengths, shuffled block tables with wild entries behind
their end, NaN in every slot that no token owns, poisoned memory wherever a kernel writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, product
from typing import Any

import numpy as np
import torch
from metal import attention_case
from metal.attention_case import Run
from metal.formats import PAIRS, ROUNDING, Bits, from_bits
from oracle import Case

from pamx.native.launch import Kernel, Launch

from . import device

DIMS = (64, 80, 96, 128, 192, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8)
BLOCKS = (8, 16, 32)
UNIFIED_DIMS = (*((d, d) for d in (8, 40, *DIMS, 512)), (192, 128), (24, 200))
FEATURES = tuple(product((None, 21), (0.0, 2.5), (False, True)))  # window, soft-cap, sinks
LENGTHS = (([150, 1, 64, 9], [1, 1, 1, 1]), ([513, 65, 63], [1, 1, 1]), ([67, 40], [3, 2]))
PREFILL_LENGTHS = (([150, 40, 9], [70, 1, 9]), ([33], [33]), ([300, 17], [31, 17]))


def runs() -> Iterator[Run]:
    """Each specialisation once at least; features, lengths and layouts in turn."""
    features, lengths, prefills = cycle(FEATURES), cycle(LENGTHS), cycle(PREFILL_LENGTHS)
    turn = iter(range(10**6))

    def run(
        kernel: Kernel,
        dims: tuple[int, int],
        group: int,
        block: int,
        pair: tuple[str, str],
        partition: int,
        length: tuple[list[int], list[int]],
    ) -> Run:
        window, softcap, sinks = next(features)
        n = next(turn)
        kv_heads = 1 + n % 2
        case = Case(
            *length,
            heads=group * kv_heads,
            kv_heads=kv_heads,
            k_dim=dims[0],
            v_dim=dims[1],
            block_size=block,
            seed=n,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
        return Run(
            kernel,
            case,
            dtype=pair[0],
            pool_dtype=pair[1],
            partition=partition,
            spare_partitions=n % 2,
            by_head=n % 5 == 0,
        )

    for dim, group, block, pair, partition in product(DIMS, GROUPS, BLOCKS, PAIRS, (64, 512)):
        yield run(Kernel.GQA_DECODE, (dim, dim), group, block, pair, partition, next(lengths))
    groups = cycle(GROUPS)
    for dim, block, pair in product(DIMS, BLOCKS, PAIRS):
        yield run(Kernel.GQA_DECODE_HEADS, (dim, dim), next(groups), block, pair, 64, next(lengths))
    for dims, block, pair, partition in product(UNIFIED_DIMS, BLOCKS, PAIRS, (0, 32)):
        length = next(prefills) if partition == 0 else next(lengths)
        yield run(Kernel.PAGED_ATTENTION, dims, next(groups), block, pair, partition, length)
    for dim, block, pair in product(DIMS, BLOCKS, PAIRS):
        yield run(Kernel.PREFILL_TILED, (dim, dim), next(groups), block, pair, 0, next(prefills))


Loader = Callable[[Launch], Any]


def error_of(run: Run, launches: list[Launch], load: Loader) -> float:
    """Largest error of a run's output, in units of what its rounding and float sums allow.

    Raises:
        AssertionError: a value is not finite, or a kernel did not write what it should.
    """
    step = attention_case.rounded_step(run)
    rows = attention_case.work_rows(run.case.query_lens, launches[0].tokens_a_row)
    arrays: dict[int, Bits] = {
        int(i): array for i, array in attention_case.attention_buffers(run, step, rows).items()
    }
    buffers = {
        i: torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).cuda()
        for i, array in arrays.items()
    }
    for launch in launches:
        device.launcher(
            load(launch), launch.grid, launch.threadgroup, launch.threadgroup_bytes, buffers
        )()
    out = arrays[attention_case.Buffer.OUT]
    found = buffers[attention_case.Buffer.OUT].cpu().numpy().view(out.dtype).reshape(out.shape)
    values = from_bits(found, run.dtype).astype(np.float64)
    assert np.isfinite(values).all(), "not finite"
    expected = step.expected()
    allowed = run.error + ROUNDING[run.dtype] * np.abs(expected)
    return float((np.abs(values - expected) / allowed).max())
