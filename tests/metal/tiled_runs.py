"""Runs for kernels that take several query tokens of a sequence at a time.

Lengths stand at the edges of a kernel's tiles: of `tokens` query tokens, and of context tokens,
whose tiles are 8, 16 or 32 long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from oracle import Step

from metal.arguments import Buffer
from metal.attention_case import FLOAT_ERROR, Programs, Run, attention_buffers, work_rows
from metal.covering import Row
from metal.formats import Floats, from_bits
from metal.row_runs import FEATURES, run_of_row
from metal.row_runs import heads_of as heads_of
from pamx.native.launch import Kernel, launch_of

GROUPS = [1, 2, 3, 4, 6, 8]
LENGTHS = ["ones", "whole", "chunk", "edges", "mixed"]
WINDOWS = FEATURES["window"]


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


def run_of(kernel: Kernel, row: Row, tokens: int, seed: int = 0, error: float = FLOAT_ERROR) -> Run:
    """A run of a kernel that takes `tokens` query tokens of a sequence at a time."""
    return run_of_row(kernel, row, lengths(row["lengths"], tokens), seed, error)


AXES: dict[str, list[Any]] = FEATURES | {"lengths": LENGTHS}


def row_of(n: int, block_size: int, window: bool, softcap: float, sinks: bool) -> Row:
    """The n-th row with these features; which window, lengths and layout takes turns by n."""
    return {
        "block_size": block_size,
        "window": WINDOWS[1 + n % 4] if window else None,
        "softcap": softcap,
        "sinks": sinks,
        "lengths": LENGTHS[n % len(LENGTHS)],
        "by_head": n % 7 == 0,
        "order": n % 4,
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
