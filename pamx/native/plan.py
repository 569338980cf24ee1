"""What the CPU's attention planner decides for a step, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pamx.native.loader import check, library
from pamx.native.whole_numbers import int32, step_lengths, whole


@dataclass(frozen=True)
class CpuAttentionPlan:
    """How one attention call is cut into work for the CPU's threads.

    Attributes:
        partition: Tokens that share one softmax; geometry and L2 cache alone decide it, unless it
            is forced.
        threads: Of the threads offered, how many get work.
        items: Independent pieces of work.
        few_rows_items: Those that take keys and values from the pages into registers; the
            others convert them to floats once for many query rows.
        folds: Groups of query rows whose partial results are folded afterwards.
        work: Multiply-adds.
        scratch_bytes: Working memory of each thread.
        partial_bytes: Partial results of the whole call.
        text: The plan in sentences, one a line, with a reason against each other path.
    """

    partition: int
    threads: int
    items: int
    few_rows_items: int
    folds: int
    work: int
    scratch_bytes: int
    partial_bytes: int
    text: str


def plan_cpu_attention(
    heads: int,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    window: int | None = None,
    threads: int | None = None,
    l2_bytes: int | None = None,
    block_size: int = 16,
) -> CpuAttentionPlan:
    """The plan that `paged_attention` follows for a step's sequences; nothing is run.

    Args:
        query_lens: Query tokens that each sequence brings.
        context_lens: Tokens of each sequence, the new ones included.
        window: Positions that a query sees, its own included; None for all.
        threads: Threads offered; None for as many as this process uses.
        l2_bytes: Size of a core's second-level cache; None for this machine's.
        block_size: Tokens a block; a forced partition must be a multiple.

    Raises:
        NativeError: the geometry or a length cannot be served, or the partition that is forced on
            this thread's calls cannot be had; or the step is larger than any that is planned.
        ValueError: a number is no int32, or the lengths differ in number.
    """
    starts, lens = step_lengths(query_lens, context_lens)
    native = library()
    desc = native.ffi.new("pamx_cpu_attention_desc*")
    desc.heads, desc.kv_heads = int32("heads", heads), int32("kv_heads", kv_heads)
    desc.k_dim, desc.v_dim = int32("k_dim", k_dim), int32("v_dim", v_dim)
    desc.window, desc.threads = int32("window", window or 0), int32("threads", threads or 0)
    desc.l2_bytes = whole("l2_bytes", l2_bytes or 0, 64)
    desc.block_size = int32("block_size", block_size)
    plan = native.ffi.new("pamx_cpu_attention_plan*")
    status = native.lib.pamx_plan_cpu_attention(
        desc,
        len(lens),
        native.ffi.new("int32_t[]", starts),
        native.ffi.new("int32_t[]", lens),
        plan,
    )
    check(native, status)
    numbers = {
        name: int(getattr(plan, name))
        for name in CpuAttentionPlan.__annotations__
        if name != "text"
    }
    return CpuAttentionPlan(**numbers, text=native.ffi.string(plan.text).decode())
