"""Bytes a second of decode attention and of a contiguous attention, and of prefill, FLOP a second.

Keys and values of a decode step are read once at best; that is what the rates count. They are
larger than the cache: several sets of pages take turns where one would fit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from metal.arguments import ATTENTION, WORK_ROW, Buffer, struct
from torch.nn.functional import scaled_dot_product_attention

from pamx.native.launch import Kernel, Launch, LaunchShape

from . import device
from .cases import BLOCK, PARTITIONS, PREFILL_ROW, Decode, Prefill, speed_shapes
from .device import Timed
from .prepared import NO_LIMITS, Limits, Prepared

Calls = Sequence[Callable[[], object]]
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# A kernel is compiled with each of these, which change the order of its instructions too, and timed
# at its fastest. 128 registers are also what an Apple GPU gives a thread.
LIMITS = (
    NO_LIMITS,
    Limits(resident=128),
    Limits(resident=168),
    Limits(most=96),
    Limits(most=168),
)
SPILLED = 64  # bytes a thread: others are left out
BEYOND_CACHE = 400_000_000  # bytes


class Pages:
    """Random keys and values in shuffled pages, in sets that take turns."""

    def __init__(
        self, sequences: int, context: int, kv_heads: int, dim: int, dtype: str, sets: int
    ) -> None:
        self.blocks = math.ceil(context / BLOCK)
        count = sets * sequences * self.blocks
        self.keys = torch.randn(count, BLOCK, kv_heads, dim, device="cuda", dtype=DTYPES[dtype])
        self.values = torch.randn_like(self.keys)
        self.tables = torch.randperm(count, device="cuda").int().view(sets, sequences, self.blocks)
        self.context = context

    def dense(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a set: [sequences, kv_heads, context, dim], tokens apart."""
        blocks = self.tables[i].long()

        def gathered(pool: torch.Tensor) -> torch.Tensor:
            return pool[blocks].flatten(1, 2)[:, : self.context].transpose(1, 2)

        return gathered(self.keys), gathered(self.values)


def _bytes_on_gpu(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).copy()).cuda()


def compile_all(prepared: Prepared) -> None:
    """All that the measurements may load."""
    wanted = []
    for shape in speed_shapes():
        launch = prepared.launch_of(shape)
        wanted += [(launch, limits) for limits in _limits(shape.kernel)]
    prepared.compile_all(wanted, device.architecture(), os.cpu_count() or 1)


def _limits(kernel: Kernel) -> tuple[Limits, ...]:
    return LIMITS if kernel in (Kernel.GQA_DECODE, Kernel.GQA_DECODE_HEADS) else (NO_LIMITS,)


def _load(prepared: Prepared, launch: Launch, limits: Limits) -> Any:
    cubin = prepared.compile(launch, device.architecture(), limits)
    return device.load(cubin, launch.function)


def _fastest(prepared: Prepared, launch: Launch, calls_of: Callable[[Any], Calls]) -> Any:
    """What was loaded of the fastest code; calls_of gives the calls to time."""
    loaded, timed = {}, {}
    for limits in LIMITS:
        one = _load(prepared, launch, limits)
        if limits == NO_LIMITS or device.resources(one)[1] <= SPILLED:
            loaded[str(limits)] = one
            timed[str(limits)] = Timed([*calls_of(one)] * 2)
    seconds = device.interleaved(timed, 5)
    return loaded[min(seconds, key=lambda name: seconds[name])]


def _arguments(
    pages: Pages, queries: torch.Tensor, shape: LaunchShape, context: int, tokens_a_row: int
) -> dict[int, torch.Tensor]:
    """All buffers but the block table, for sequences of one length."""
    tokens = queries.shape[0]
    sequences = pages.tables.shape[1]
    each = tokens // sequences
    rows = [
        (s, s * each + first, min(tokens_a_row, each - first))
        for s in range(sequences)
        for first in range(0, each, tokens_a_row)
    ]
    params = struct(
        ATTENTION,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        block_size=BLOCK,
        max_blocks=pages.blocks,
        rows=shape.rows,
        partition=shape.partition,
        num_partitions=max(1, shape.num_partitions),
        window=0,
        scale_log2=shape.k_dim**-0.5 * math.log2(math.e),
        softcap_log2=0,
        query_token_stride=shape.heads * shape.k_dim,
        query_head_stride=shape.k_dim,
    )
    scratch = (shape.rows, shape.heads, max(1, shape.num_partitions))
    nan = float("nan")
    return {
        Buffer.QUERIES: queries,
        Buffer.KEY_POOL: pages.keys,
        Buffer.VALUE_POOL: pages.values,
        Buffer.CONTEXT_LENS: torch.full((sequences,), context, device="cuda", dtype=torch.int32),
        Buffer.QUERY_STARTS: torch.arange(sequences + 1, device="cuda", dtype=torch.int32) * each,
        Buffer.OUT: torch.full_like(queries, nan),
        Buffer.PARTIAL_OUT: torch.full((*scratch, shape.v_dim), nan, device="cuda"),
        Buffer.PARTIAL_STATS: torch.full((*scratch, 2), nan, device="cuda"),
        Buffer.WORK_ROWS: _bytes_on_gpu(np.array(rows, WORK_ROW)),
        Buffer.PARAMS: _bytes_on_gpu(params),
    }


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def measure_decode(prepared: Prepared, case: Decode, rounds: int) -> dict[str, Any]:
    """Medians of `rounds` interleaved rounds, in bytes of keys and values a second."""
    torch.manual_seed(0)
    sets = max(1, math.ceil(BEYOND_CACHE / case.bytes))
    pages = Pages(case.sequences, case.context, case.kv_heads, case.dim, case.dtype, sets)
    repeats = max(1, 4 // sets)
    queries = torch.randn(
        case.sequences, case.heads, case.dim, device="cuda", dtype=DTYPES[case.dtype]
    )
    candidates: dict[str, Timed] = {}
    registers: dict[str, int] = {}
    outs: dict[str, torch.Tensor] = {}
    for kernel, partition in [
        *((Kernel.GQA_DECODE, partition) for partition in PARTITIONS),
        (Kernel.GQA_DECODE_HEADS, PARTITIONS[0]),
    ]:
        shape = case.shape(kernel, partition)
        launch = prepared.launch_of(shape)
        reducer = prepared.launch_of(case.shape(Kernel.SPLIT_KV_REDUCE, partition))
        merge = _load(prepared, reducer, NO_LIMITS)
        buffers = _arguments(pages, queries, shape, case.context, 1)

        def calls_of(
            loaded: Any,
            launch: Launch = launch,
            reducer: Launch = reducer,
            merge: Any = merge,
            buffers: dict[int, torch.Tensor] = buffers,
        ) -> Calls:
            """The kernel and the reducer behind it, for each set of pages."""
            calls = []
            for i in range(sets):
                bound = {**buffers, Buffer.BLOCK_TABLES: pages.tables[i]}
                first = device.launch_call(loaded, launch, bound)
                second = device.launch_call(merge, reducer, bound)
                calls.append(lambda first=first, second=second: (first(), second()))
            return calls

        loaded = _fastest(prepared, launch, calls_of)
        pairs = calls_of(loaded)
        pairs[0]()
        name = "shared" if kernel == Kernel.GQA_DECODE else "heads"
        outs[f"{name}_{partition}"] = buffers[Buffer.OUT].clone()
        registers[f"{name}_{partition}"] = device.resources(loaded)[0]
        candidates[f"{name}_{partition}"] = Timed([*pairs] * repeats)

    expected = None
    for layout in ("token_major", "head_major"):
        calls = []
        for i in range(sets):
            keys, values = pages.dense(i)
            if layout == "head_major":
                keys, values = keys.contiguous(), values.contiguous()
            calls.append(
                lambda k=keys, v=values: scaled_dot_product_attention(
                    queries[:, :, None], k, v, enable_gqa=True
                )
            )
        if expected is None:
            expected = calls[0]()[:, :, 0]
        candidates[f"contiguous_{layout}"] = Timed(calls * repeats)
    source = torch.empty(case.bytes // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    candidates["copy"] = Timed([lambda: target.copy_(source)] * 4)

    assert expected is not None
    seconds = device.interleaved(candidates, rounds)
    rates = {name: case.bytes / time for name, time in seconds.items()}
    contiguous = max(rates["contiguous_token_major"], rates["contiguous_head_major"])
    return {
        "sequences": case.sequences,
        "context": case.context,
        "geometry": [case.heads, case.kv_heads, case.dim],
        "dtype": case.dtype,
        "bytes": case.bytes,
        "registers": registers,
        "difference": {name: _difference(out, expected) for name, out in outs.items()},
        "tb_per_s": {name: round(rate / 1e12, 3) for name, rate in rates.items()},
        "of_contiguous": {
            name: round(rate / contiguous, 3)
            for name, rate in rates.items()
            if name.startswith(("shared", "heads"))
        },
    }


def measure_prefill(prepared: Prepared, case: Prefill, rounds: int) -> dict[str, Any]:
    """Medians of `rounds` interleaved rounds, in FLOP a second."""
    torch.manual_seed(0)
    pages = Pages(1, case.tokens, case.kv_heads, case.dim, case.dtype, 1)
    queries = torch.randn(
        case.tokens, case.heads, case.dim, device="cuda", dtype=DTYPES[case.dtype]
    )
    shape = case.shape(case.tokens // PREFILL_ROW)
    launch = prepared.launch_of(shape)
    loaded = _load(prepared, launch, NO_LIMITS)
    buffers = _arguments(pages, queries, shape, case.tokens, PREFILL_ROW)
    buffers[Buffer.BLOCK_TABLES] = pages.tables[0]
    ours = device.launch_call(loaded, launch, buffers)
    keys, values = (x.contiguous() for x in pages.dense(0))
    laid_out = queries.transpose(0, 1)[None].contiguous()

    def theirs() -> torch.Tensor:
        return scaled_dot_product_attention(laid_out, keys, values, is_causal=True, enable_gqa=True)

    ours()
    expected = theirs()[0].transpose(0, 1)
    difference = _difference(buffers[Buffer.OUT], expected)
    seconds = device.interleaved({"tiled": Timed([ours]), "contiguous": Timed([theirs])}, rounds)
    return {
        "tokens": case.tokens,
        "geometry": [case.heads, case.kv_heads, case.dim],
        "dtype": case.dtype,
        "registers": device.resources(loaded)[0],
        "difference": difference,
        "tflop_per_s": {name: round(case.flops / time / 1e12, 2) for name, time in seconds.items()},
    }
