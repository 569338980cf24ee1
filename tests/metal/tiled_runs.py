"""Runs for kernels that take several query tokens of a sequence at a time.

Lengths stand at the edges of a kernel's tiles: of `tokens` query tokens, and of context tokens,
whose tiles are 8, 16 or 32 long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from oracle import Case, Step

from metal.arguments import Buffer
from metal.attention_case import FLOAT_ERROR, Programs, Run, attention_buffers, work_rows
from metal.covering import Row
from metal.formats import Floats, from_bits
from pamx.native.launch import Kernel, launch_of

GROUPS = [1, 2, 3, 4, 6, 8]
LENGTHS = ["ones", "whole", "chunk", "edges", "mixed"]
WINDOWS = [None, 1, 7, 33, 1000]


def lengths(kind: str, tokens: int) -> dict[str, list[int]]:
    """Context and query lengths; a context that is longer than its query starts at an offset."""
    context, query = {
        "ones": ([1, 33, 8], [1, 1, 1]),
        "whole": ([tokens, tokens + 1, tokens - 1], [tokens, tokens + 1, tokens - 1]),
        "chunk": ([tokens + 32, tokens + 47], [tokens - 1, tokens + 1]),
        "edges": ([31, 32, 33, 15, 17], [3, 2, 4, 5, 1]),
        "mixed": ([2 * tokens + 5, 9, 50], [2 * tokens + 3, 1, 7]),
    }[kind]
    return {"context_lens": context, "query_lens": query}


def heads_of(group: int, kv_heads: int) -> dict[str, int]:
    return {"heads": group * kv_heads, "kv_heads": kv_heads}


def run_of(kernel: Kernel, row: Row, tokens: int, seed: int = 0, error: float = FLOAT_ERROR) -> Run:
    k_dim, v_dim = row["dims"]
    dtype, pool_dtype = row["dtypes"]
    case = Case(
        **lengths(row["lengths"], tokens),
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
        by_head=row["by_head"],
        order=row["order"],
        error=error,
    )


AXES: dict[str, list[Any]] = {
    "block_size": [8, 16, 32],
    "lengths": LENGTHS,
    "window": WINDOWS,
    "softcap": [0.0, 2.5],
    "sinks": [False, True],
    "by_head": [False, True],
    "order": [0, 1, 7],
}


# ---- what holds for each of them ----------------------------------------------------------------


def check_bits(programs: Programs, run: Run) -> None:
    """A row's bits do not depend on the order of execution, its company or how a prompt was cut.

    The run's first sequence is prefilled whole.
    """
    tokens = run.case.query_lens[0]
    assert run.case.context_lens[0] == tokens
    together = programs.run(run)
    for order in (1, 2, 3):
        again = programs.run(replace(run, order=order))
        np.testing.assert_array_equal(again.out, together.out)
    for first, last in [(0, tokens), (0, 1), (3, tokens - 1), (tokens - 2, tokens)]:
        case = replace(run.case, context_lens=[last], query_lens=[last - first])
        alone = replace(run, case=case)
        found = programs.run_step(alone, part_of(together.step, alone))
        np.testing.assert_array_equal(found.out, together.out[first:last])


def part_of(step: Step, run: Run) -> Step:
    """A step whose one sequence is the beginning of another step's first one."""
    part = run.build()
    (context,), (query,) = run.case.context_lens, run.case.query_lens
    part.sequence_keys = [step.sequence_keys[0][:context]]
    part.sequence_values = [step.sequence_values[0][:context]]
    part.queries = step.queries[context - query : context]
    part.sinks = step.sinks
    return part


def check_freed_pages(programs: Programs, run: Run) -> None:
    """Blocks that no query's window reaches may have been given back: they are not looked at."""
    assert run.case.window is not None
    step = run.build()
    launches = [launch_of(shape) for shape in run.launches()]
    rows = work_rows(run.case.query_lens, launches[0].tokens_a_row)
    buffers = attention_buffers(run, step, rows)
    freed = 0
    for s, (context, query) in enumerate(
        zip(run.case.context_lens, run.case.query_lens, strict=True)
    ):
        first = max(0, context - query + 1 - run.case.window)
        buffers[Buffer.BLOCK_TABLES][s, : first // run.case.block_size] = 1_000_000_000
        freed += first // run.case.block_size
    assert freed
    for launch in launches:
        programs.execute(launch, buffers, run.order)
    out: Floats = from_bits(buffers[Buffer.OUT], run.dtype)
    np.testing.assert_array_equal(out, programs.check(run).out)


def check_empty_row(programs: Programs, run: Run) -> None:
    """A query that stands before every key gives zeros, with a sink or without."""
    for sinks in (False, True):
        empty = replace(run, case=replace(run.case, sinks=sinks))
        assert empty.case.query_lens[0] == 1
        step = empty.build()
        step.context_lens[0] = 0
        out = programs.run_step(empty, step).out
        assert (out[0] == 0).all()
        assert np.isfinite(out).all()
        assert (out[1:] != 0).any(axis=-1).all()
