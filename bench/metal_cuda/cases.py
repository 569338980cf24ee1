"""What is run: every specialisation once for checks, and a few geometries for speed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, product

from metal import mla_runs, nax_runs
from metal.attention_case import Run
from metal.formats import PAIRS
from oracle import Case

from pamx.native.launch import Kernel, LaunchShape

# ---- checks -------------------------------------------------------------------------------------

DIMS = (64, 80, 96, 128, 192, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8)
BLOCKS = (8, 16, 32)
UNIFIED_DIMS = (*((d, d) for d in (8, 40, *DIMS, 512)), (192, 128), (24, 200))
FEATURES = tuple(product((None, 21), (0.0, 2.5), (False, True)))  # window, soft-cap, sinks
MORE_FEATURES = tuple(product((False, True), (0.0, 2.5), (False, True)))
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
    yield from latent_runs()
    yield from tensor_runs()


def latent_runs() -> Iterator[Run]:
    """The usual sizes with every block size, the others with one in turn."""
    features, blocks = cycle(MORE_FEATURES), cycle(BLOCKS)
    sizes = [*product(mla_runs.SIZES, BLOCKS), *((size, 0) for size in mla_runs.MORE_SIZES)]
    for n, ((size, block), pair) in enumerate(product(sizes, PAIRS)):
        wanted = [(p, block or next(blocks), *next(features)) for p in (0, 16)]
        yield from mla_runs.runs_of(size, pair, wanted, first=2 * n)


def tensor_runs() -> Iterator[Run]:
    features, groups = cycle(MORE_FEATURES), cycle(GROUPS)
    for n, (dim, pair, block) in enumerate(product(DIMS, PAIRS, BLOCKS)):
        yield from nax_runs.runs_of(dim, pair, [(block, *next(features), next(groups))], first=n)


# ---- speed --------------------------------------------------------------------------------------

BLOCK = 16


@dataclass(frozen=True)
class Decode:
    """One token for each of several sequences of one length."""

    sequences: int
    context: int
    heads: int
    kv_heads: int
    dim: int
    dtype: str = "float16"

    @property
    def bytes(self) -> int:
        return 2 * self.sequences * self.context * self.kv_heads * self.dim * 2

    def shape(self, kernel: Kernel, partition: int) -> LaunchShape:
        return LaunchShape(
            kernel,
            self.dtype,
            self.dtype,
            self.heads,
            self.kv_heads,
            self.dim,
            self.dim,
            BLOCK,
            partition,
            math.ceil(self.context / partition),
            rows=self.sequences,
        )


@dataclass(frozen=True)
class Prefill:
    """All tokens of one prompt."""

    tokens: int
    heads: int
    kv_heads: int
    dim: int
    dtype: str = "float16"

    @property
    def flops(self) -> float:
        """Of the products that a causal mask leaves."""
        return 2 * 2 * self.heads * self.dim * self.tokens * (self.tokens + 1) / 2

    def shape(self, rows: int) -> LaunchShape:
        return LaunchShape(
            Kernel.PREFILL_TILED,
            self.dtype,
            self.dtype,
            self.heads,
            self.kv_heads,
            self.dim,
            self.dim,
            BLOCK,
            rows=rows,
        )


GEOMETRIES = [
    (32, 8, 128),
    (9, 3, 64),
    (24, 4, 256),
    (64, 8, 128),
    (32, 4, 128),
    (16, 2, 128),
    (16, 2, 256),
    (32, 4, 64),
]
DECODES = [
    *(Decode(32, 8192, *geometry) for geometry in GEOMETRIES),
    Decode(32, 8192, 32, 8, 128, "bfloat16"),
    Decode(32, 8192, 64, 8, 128, "bfloat16"),
    *(Decode(1, 131072, *geometry) for geometry in GEOMETRIES),
]
PARTITIONS = (512, 256)  # the larger is what the planner takes for all of these on 132 cores
PREFILLS = [Prefill(4096, 32, 8, 128), Prefill(4096, 9, 3, 64)]
PREFILL_ROW = 32  # query tokens of a work row


def speed_shapes() -> list[LaunchShape]:
    wanted = []
    for decode in DECODES:
        for partition in PARTITIONS:
            for kernel in (Kernel.GQA_DECODE, Kernel.GQA_DECODE_HEADS, Kernel.SPLIT_KV_REDUCE):
                wanted.append(decode.shape(kernel, partition))
    return wanted + [prefill.shape(prefill.tokens // PREFILL_ROW) for prefill in PREFILLS]
