"""Runs an attention kernel on the software Metal against the float64 oracle: a Run says it all.

RUNS = [Run(Kernel.PAGED_ATTENTION, Case([40], [1], 4, 2, 64, 64, 16), dtype="float16")]
PROGRAMS = Programs(RUNS)  # compiles nothing yet

@pytest.mark.parametrize("run", RUNS, ids=str)
def test_equals_the_oracle(run: Run) -> None:
    PROGRAMS.check(run)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from oracle import Case, Step

from metal import softmetal
from metal.arguments import ATTENTION, NO_MAXIMUM, WORK_ROW, Buffer, struct
from metal.formats import ROUNDING, Bits, Floats, from_bits, poison, rounded, to_bits
from pamx.native.launch import Kernel, Launch, LaunchShape, launch_of

SHADERS = Path(__file__).parents[2] / "shaders"
LOG2_E = math.log2(math.e)
# Beside the rounding of the output: sums of float products, and the device's exp2 and tanh.
FLOAT_ERROR = 5e-6
TOGETHER = 8  # specialisations of a program
# Values are the latent part of the keys, which lie in two pools.
LATENT = {Kernel.MLA_DECODE, Kernel.MLA_PREFILL}
LANGUAGES = {"prefill_nax.metal": 400}  # of shaders that need more than Metal 3.1


@dataclass(frozen=True)
class Run:
    """One launch of a kernel, with the reducer behind it where it is split.

    Attributes:
        dtype: Of queries and output.
        pool_dtype: None: the same.
        partition: Tokens; 0: not split.
        spare_partitions: That the scratch has room for beyond the longest context's.
        by_head: Queries lie as [heads, tokens, k_dim] with a gap between heads.
        order: In which lanes and simdgroups run (softmetal).
        error: Allowed beside the rounding of the output.
    """

    kernel: Kernel
    case: Case
    dtype: str = "float16"
    pool_dtype: str | None = None
    partition: int = 0
    spare_partitions: int = 0
    by_head: bool = False
    order: int = 0
    error: float = FLOAT_ERROR

    def __str__(self) -> str:
        c = self.case
        parts = [
            self.kernel.name.lower(),
            self.dtype,
            self.pool_dtype if self.pool_dtype not in (None, self.dtype) else "",
            f"{c.heads}h{c.kv_heads}",
            f"{c.k_dim}k{c.v_dim}",
            f"b{c.block_size}",
            f"p{self.partition}",
            f"w{c.window}" if c.window else "",
            "cap" if c.softcap else "",
            "sinks" if c.sinks else "",
            f"o{self.order}" if self.order else "",
        ]
        return "-".join(p for p in parts if p)

    @property
    def pools(self) -> str:
        return self.pool_dtype or self.dtype

    @property
    def num_partitions(self) -> int:
        if not self.partition:
            return 1
        return -(-max(self.case.context_lens) // self.partition) + self.spare_partitions

    def build(self) -> Step:
        """The case's arrays as the kernel sees them: the oracle then judges arithmetic alone."""
        step = self.case.build()
        step.queries = rounded(step.queries, self.dtype)
        step.sequence_keys = [rounded(k, self.pools) for k in step.sequence_keys]
        step.sequence_values = [rounded(v, self.pools) for v in step.sequence_values]
        if self.kernel in LATENT:
            step.sequence_values = [k[..., : self.case.v_dim] for k in step.sequence_keys]
        return step

    def shape(self) -> LaunchShape:
        """Of one work row."""
        c = self.case
        return LaunchShape(
            self.kernel,
            self.dtype,
            self.pools,
            c.heads,
            c.kv_heads,
            c.k_dim,
            c.v_dim,
            c.block_size,
            self.partition,
            self.num_partitions,
            rows=1,
            window=c.window is not None,
            softcap=bool(c.softcap),
            sinks=c.sinks,
        )

    def launches(self) -> list[LaunchShape]:
        """The kernel, and the reducer if it is split; of the run's work rows."""
        a_row = launch_of(self.shape()).tokens_a_row
        rows = sum(-(-n // a_row) for n in self.case.query_lens)
        shape = replace(self.shape(), rows=rows)
        if not self.partition:
            return [shape]
        return [shape, replace(shape, kernel=Kernel.SPLIT_KV_REDUCE)]


@dataclass
class Result:
    """What a run left behind; the arrays are float32.

    Attributes:
        out: [tokens, heads, v_dim]
        partial_out: [rows, heads, num_partitions, v_dim]; empty if it was not split.
        partial_stats: [rows, heads, num_partitions, 2]
    """

    out: Floats
    partial_out: Floats
    partial_stats: Floats
    step: Step
    rows: npt.NDArray[Any]


class Programs:
    """Compiles what the runs need, a few specialisations at a time, when the first of them runs."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = list(runs)
        self._sources: dict[str, str] = {}  # function: file
        self._instantiations: dict[str, str] = {}
        self._programs: dict[str, Any] = {}

    def check(self, run: Run) -> Result:
        """Runs it and compares the output with the oracle's.

        Raises:
            AssertionError: an element is further off than its rounding and the run's error allow.
        """
        result = self.run(run)
        expected = result.step.expected()
        np.testing.assert_allclose(
            result.out, expected, rtol=ROUNDING[run.dtype], atol=run.error, err_msg=str(run)
        )
        if run.partition:
            check_partials(run, result)
        return result

    def run(self, run: Run) -> Result:
        return self.run_step(run, run.build())

    def run_step(self, run: Run, step: Step) -> Result:
        """Runs it on a step that the caller may have changed since run.build()."""
        launches = [launch_of(shape) for shape in run.launches()]
        rows = work_rows(run.case.query_lens, launches[0].tokens_a_row)
        buffers = attention_buffers(run, step, rows)
        for launch in launches:
            self.execute(launch, buffers, run.order)
        return Result(
            from_bits(buffers[Buffer.OUT], run.dtype),
            buffers.get(Buffer.PARTIAL_OUT, np.zeros(0, np.float32)),
            buffers.get(Buffer.PARTIAL_STATS, np.zeros(0, np.float32)),
            step,
            rows,
        )

    def execute(self, launch: Launch, buffers: dict[int, Bits], order: int = 0) -> None:
        """Runs one dispatch; kernels that have no use for a buffer are not given it."""
        self.program(launch).run(
            launch.function,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            buffers={int(i): array for i, array in buffers.items()},
            constants=launch.constants,
            threadgroup_bytes=launch.threadgroup_bytes,
            order=order,
        )

    def program(self, launch: Launch) -> Any:
        self._announce(launch)
        for run in self._runs:
            for shape in run.launches():
                self._announce(launch_of(shape))
        self._runs = []
        if launch.function not in self._programs:
            functions = [f for f, source in self._sources.items() if source == launch.source]
            first = functions.index(launch.function) // TOGETHER * TOGETHER
            some = functions[first : first + TOGETHER]
            program = softmetal.compile(
                SHADERS / launch.source,
                instantiations=[self._instantiations[f] for f in some if self._instantiations[f]],
                language=LANGUAGES.get(launch.source, 310),
            )
            self._programs |= dict.fromkeys(some, program)
        return self._programs[launch.function]

    def _announce(self, launch: Launch) -> None:
        self._sources.setdefault(launch.function, launch.source)
        self._instantiations.setdefault(launch.function, launch.instantiation)


def check_metal(runs: Iterable[Run]) -> None:
    """Their specialisations hold no construct that the Metal compiler would not take.

    Raises:
        LintError: with a reason for each that there is.
    """
    lines: dict[str, set[str]] = {}
    for run in runs:
        for launch in map(launch_of, run.launches()):
            lines.setdefault(launch.source, set()).add(launch.instantiation)
    for source, instantiations in lines.items():
        softmetal.check(
            SHADERS / source,
            instantiations=sorted(instantiations),
            language=LANGUAGES.get(source, 310),
        )


def work_rows(query_lens: list[int], tokens_a_row: int) -> npt.NDArray[Any]:
    """WorkRow of each run of up to tokens_a_row query tokens, in the order of the tokens."""
    rows, start = [], 0
    for sequence, tokens in enumerate(query_lens):
        for first in range(0, tokens, tokens_a_row):
            rows.append((sequence, start + first, min(tokens_a_row, tokens - first)))
        start += tokens
    return np.array(rows, WORK_ROW)


def attention_buffers(run: Run, step: Step, rows: npt.NDArray[Any]) -> dict[int, Bits]:
    """What is bound, by index; memory that the kernel should write is poisoned."""
    c = run.case
    tokens = len(step.queries)
    keys, values = step.sequence_keys, step.sequence_values
    if run.kernel in LATENT:
        keys, values = [k[..., : c.v_dim] for k in keys], [k[..., c.v_dim :] for k in keys]
    queries, token_stride, head_stride = lay_out(to_bits(step.queries, run.dtype), run.by_head)
    params = struct(
        ATTENTION,
        heads=c.heads,
        kv_heads=c.kv_heads,
        k_dim=c.k_dim,
        v_dim=c.v_dim,
        block_size=c.block_size,
        max_blocks=step.block_tables.shape[1],
        rows=len(rows),
        partition=run.partition,
        num_partitions=run.num_partitions,
        window=c.window or 0,
        scale_log2=step.scale * LOG2_E,
        softcap_log2=c.softcap * LOG2_E,
        query_token_stride=token_stride,
        query_head_stride=head_stride,
    )
    buffers: dict[int, Bits] = {
        Buffer.QUERIES: queries,
        Buffer.KEY_POOL: to_bits(pool_of(step, keys), run.pools),
        Buffer.VALUE_POOL: to_bits(pool_of(step, values), run.pools),
        Buffer.BLOCK_TABLES: step.block_tables,
        Buffer.CONTEXT_LENS: step.context_lens,
        Buffer.QUERY_STARTS: step.query_starts,
        Buffer.OUT: poison((tokens, c.heads, c.v_dim), run.dtype),
        Buffer.WORK_ROWS: rows,
        Buffer.PARAMS: params,
    }
    if step.sinks is not None:
        buffers[Buffer.SINKS] = step.sinks
    if run.partition:
        scratch = (len(rows), c.heads, run.num_partitions)
        buffers[Buffer.PARTIAL_OUT] = poison((*scratch, c.v_dim), "float32")
        buffers[Buffer.PARTIAL_STATS] = poison((*scratch, 2), "float32")
    return buffers


def pool_of(step: Step, sequences: list[Floats]) -> Floats:
    """[num_blocks, block_size, kv_heads, dim] with every token in its slot, and NaN elsewhere."""
    size = step.case.block_size
    pool = np.full((step.num_blocks, size, *sequences[0].shape[1:]), np.nan, np.float32)
    for table, rows in zip(step.block_tables, sequences, strict=True):
        positions = np.arange(len(rows))
        owned = table[positions // size] < step.num_blocks  # others are wild, and never read
        pool[table[positions[owned] // size], positions[owned] % size] = rows[owned]
    return pool


def lay_out(rows: Bits, by_head: bool, gap: int | None = None) -> tuple[Bits, int, int]:
    """[tokens, heads, dim] in that order or by head, with the strides of tokens and heads.

    Args:
        gap: Elements after each token, or each head; an odd one leaves most rows unaligned. None: 3
            after each head, none after tokens.
    """
    gap = (3 if by_head else 0) if gap is None else gap
    dim = rows.shape[-1]
    outer = rows.swapaxes(0, 1) if by_head else rows
    stride = outer[0].size + gap
    memory = np.zeros((len(outer), stride), rows.dtype)
    memory[:, : outer[0].size] = outer.reshape(len(outer), -1)
    return (memory, dim, stride) if by_head else (memory, stride, dim)


def check_partials(run: Run, result: Result) -> None:
    """Every partition of the scratch is written; one that sees nothing says so."""
    c, stats = run.case, result.partial_stats
    assert np.isfinite(stats).all()
    assert np.isfinite(result.partial_out).all()
    starts = np.arange(run.num_partitions) * run.partition
    for i, row in enumerate(result.rows):
        s = int(row["sequence"])
        position = c.context_lens[s] - int(result.step.query_starts[s + 1] - row["first_token"])
        first = 0 if c.window is None else max(0, position - c.window + 1)
        empty = (starts > position) | (starts + run.partition <= first)
        assert (stats[i, :, empty] == (NO_MAXIMUM, 0)).all()
        assert (result.partial_out[i, :, empty] == 0).all()
        assert (stats[i, :, ~empty, 1] >= 1).all()
