"""What the GPU's attention planner decides for a step, and why; the GPU need not be here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pamx.native.dispatch import DispatchKind
from pamx.native.launch import (
    Kernel,
    Launch,
    LaunchShape,
    dtype_number,
    launch_from,
    shape_from,
)
from pamx.native.loader import Library, check, library
from pamx.native.ops import Int32Array
from pamx.native.whole_numbers import int32, step_lengths

# A kernel's dispatch for a shape, or a reason against it in one clause.
Ability = Callable[[LaunchShape], Launch | str]


@dataclass(frozen=True)
class Gpu:
    """A GPU, as far as the planner wants to know it.

    Attributes:
        cores: None: unknown, and then nothing is chosen that depends on it.
        architecture: For example "applegpu_g15g"; empty: unknown.
        tensor_units: None: as the architecture's name says.
        tensor_compiler: Whether its system's Metal compiles for tensor units.
        threadgroup_memory: Bytes.
        threadgroup_threads: Most threads of a threadgroup.
    """

    cores: int | None = None
    architecture: str = ""
    tensor_units: bool | None = None
    tensor_compiler: bool = True
    threadgroup_memory: int = 32 * 1024
    threadgroup_threads: int = 1024


@dataclass(frozen=True)
class Overrides:
    """What an A/B run forces.

    Attributes:
        disable_gqa_decode: Neither form of gqa_decode (PAMX_DISABLE_GQA_DECODE).
        disable_nax: No tensor units (PAMX_DISABLE_NAX).
        force_partition: Tokens a partition of decode rows; 0: by rule (PAMX_FORCE_PARTITION).
    """

    disable_gqa_decode: bool = False
    disable_nax: bool = False
    force_partition: int = 0


@dataclass(frozen=True)
class GpuPlanPart:
    """What becomes of a step's decode rows, or of its prefill rows.

    Attributes:
        sequences: How many bring such rows.
        kind: What `last_dispatch` will say.
        kernel: The shader that attends.
        path: Kernel and form in words.
        why: The reason for it, a clause.
        rows: Rows of work.
        partition: Tokens; 0: not split.
        num_partitions: Of the longest row.
        work: Simdgroups: for gqa_decode those of full partitions, else those launched.
        scratch_bytes: Partial results.
        turned_down: The other paths, each with a clause that says why not.
    """

    sequences: int
    kind: DispatchKind
    kernel: Kernel
    path: str
    why: str
    rows: int
    partition: int
    num_partitions: int
    work: int
    scratch_bytes: int
    turned_down: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GpuLaunch:
    """One launch of a plan.

    Attributes:
        shape: What it works on.
        launch: The dispatch.
        rows: int32 [rows, 3]: sequence, first packed token, tokens (WorkRow).
        partial_out: Where partial outputs lie in scratch, in bytes; None: there are none.
        partial_stats: Where their maxima and sums lie.
    """

    shape: LaunchShape
    launch: Launch
    rows: Int32Array
    partial_out: int | None
    partial_stats: int | None


@dataclass(frozen=True)
class GpuAttentionPlan:
    """One attention call on a GPU.

    Attributes:
        decode: The sequences with one query token; None: the step has none.
        prefill: The others; None: the step has none.
        scratch_bytes: Partial results of the call.
        launches: In order; each one's results are seen by the next.
        text: The plan in sentences, one a line, with a reason against each other path.
    """

    decode: GpuPlanPart | None
    prefill: GpuPlanPart | None
    scratch_bytes: int
    launches: tuple[GpuLaunch, ...]
    text: str


def plan_gpu_attention(
    heads: int,
    kv_heads: int,
    k_dim: int,
    v_dim: int,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    gpu: Gpu,
    block_size: int = 16,
    dtype: str = "float16",
    pool_dtype: str | None = None,
    window: int | None = None,
    softcap: bool = False,
    sinks: bool = False,
    mla: bool = False,
    overrides: Overrides | None = None,
    ability: Ability | None = None,
) -> GpuAttentionPlan:
    """The plan that a GPU of this kind follows for a step's sequences; nothing is run.

    Args:
        k_dim: Head size of queries and keys; MLA: latent and rotary parts together.
        v_dim: Head size of values; MLA: the latent part.
        query_lens: Query tokens that each sequence brings.
        context_lens: Tokens of each sequence, the new ones included.
        gpu: The machine.
        block_size: Tokens a block: 8, 16 or 32.
        dtype: Of queries and output: "float32", "float16" or "bfloat16".
        pool_dtype: Of the pools; None: the same.
        window: Positions that a query sees, its own included; None for all.
        softcap, sinks: Whether the layer has them.
        mla: Whether the cache is a latent one.
        overrides: None: what this thread's calls follow.
        ability: Stands in for the library's own kernels.

    Raises:
        NativeError: no kernel serves, or what is forced cannot run, with each reason; or the
            step is larger than any that is planned.
        ValueError: a number is no int32, a dtype unknown, or the lengths differ in number.
    """
    starts, lens = step_lengths(query_lens, context_lens)
    native = library()
    ffi = native.ffi
    desc = ffi.new("pamx_gpu_attention_desc*")
    desc.heads, desc.kv_heads = int32("heads", heads), int32("kv_heads", kv_heads)
    desc.k_dim, desc.v_dim = int32("k_dim", k_dim), int32("v_dim", v_dim)
    desc.window, desc.block_size = int32("window", window or 0), int32("block_size", block_size)
    desc.mla, desc.softcap, desc.sinks = mla, softcap, sinks
    desc.dtype = dtype_number("dtype", dtype)
    desc.pool_dtype = dtype_number("pool_dtype", pool_dtype or dtype)
    asked = _Asked(native, ability) if ability else None
    architecture = ffi.new("char[]", gpu.architecture.encode())
    machine = _machine(native, gpu, architecture)
    handle = ffi.new("pamx_gpu_plan**")
    status = native.lib.pamx_plan_gpu_attention(
        desc,
        machine,
        ffi.NULL if overrides is None else _overrides(native, overrides),
        len(lens),
        ffi.new("int32_t[]", starts),
        ffi.new("int32_t[]", lens),
        asked.callback if asked else ffi.NULL,
        ffi.NULL,
        handle,
    )
    if asked and asked.error:
        raise asked.error
    check(native, status)
    plan = ffi.gc(handle[0], native.lib.pamx_gpu_plan_free)
    return GpuAttentionPlan(
        decode=_part(native, plan, 0),
        prefill=_part(native, plan, 1),
        scratch_bytes=int(native.lib.pamx_gpu_plan_scratch(plan)),
        launches=tuple(
            _launch(native, plan, i) for i in range(native.lib.pamx_gpu_plan_launches(plan))
        ),
        text=_text(native, native.lib.pamx_gpu_plan_text(plan)),
    )


def overrides_here() -> Overrides:
    """What this thread's calls follow: the environment, and `force_partition` in front.

    Raises:
        NativeError: a variable cannot be understood, or the library cannot be used here.
    """
    native = library()
    found = native.ffi.new("pamx_overrides*")
    check(native, native.lib.pamx_overrides_here(found))
    return Overrides(
        bool(found.disable_gqa_decode), bool(found.disable_nax), int(found.force_partition)
    )


class _Asked:
    """An `Ability` as the callback that C wants; keeps what it hands out, and what it raised."""

    def __init__(self, native: Library, ability: Ability) -> None:
        self.error: Exception | None = None
        ffi = native.ffi
        kept: list[Any] = []

        def text(value: str) -> Any:
            kept.append(ffi.new("char[]", value.encode()))
            return kept[-1]

        def answer(_: Any, shape: Any, launch: Any) -> Any:
            try:
                found = ability(shape_from(shape))
            except Exception as error:  # C cannot pass it on
                self.error = error
                return text("asking failed")
            if isinstance(found, str):
                return text(found)
            launch.source, launch.function = text(found.source), text(found.function)
            launch.instantiation = text(found.instantiation)
            for index, name in enumerate(("has_window", "has_softcap", "has_sinks", "block_size")):
                if index in found.constants:
                    launch.constant_mask |= 1 << index
                    setattr(launch, name, int(found.constants[index]))
            launch.tokens_a_row = found.tokens_a_row
            launch.grid, launch.threadgroup = found.grid, found.threadgroup
            launch.threadgroup_bytes = found.threadgroup_bytes
            return ffi.NULL

        self.callback = ffi.callback(
            "const char*(void*, const pamx_launch_desc*, pamx_launch*)", answer
        )


def _machine(native: Library, gpu: Gpu, architecture: Any) -> Any:
    machine = native.ffi.new("pamx_gpu_machine*")
    if gpu.architecture:
        machine.architecture = architecture
    machine.cores = int32("cores", gpu.cores or 0)
    machine.tensor_units = -1 if gpu.tensor_units is None else gpu.tensor_units
    machine.tensor_compiler = gpu.tensor_compiler
    machine.threadgroup_memory = int32("threadgroup_memory", gpu.threadgroup_memory)
    machine.threadgroup_threads = int32("threadgroup_threads", gpu.threadgroup_threads)
    return machine


def _overrides(native: Library, overrides: Overrides) -> Any:
    given = native.ffi.new("pamx_overrides*")
    given.disable_gqa_decode = overrides.disable_gqa_decode
    given.disable_nax = overrides.disable_nax
    given.force_partition = int32("force_partition", overrides.force_partition)
    return given


def _text(native: Library, pointer: Any) -> str:
    return str(native.ffi.string(pointer).decode())


def _part(native: Library, plan: Any, number: int) -> GpuPlanPart | None:
    ffi, lib = native.ffi, native.lib
    part = ffi.new("pamx_gpu_plan_part*")
    check(native, lib.pamx_gpu_plan_part_of(plan, number, part))
    if part.sequences == 0:
        return None
    turned_down = []
    path, reason = ffi.new("const char**"), ffi.new("const char**")
    for i in range(part.turned_down):
        check(native, lib.pamx_gpu_plan_turned_down(plan, number, i, path, reason))
        turned_down.append((_text(native, path[0]), _text(native, reason[0])))
    return GpuPlanPart(
        sequences=int(part.sequences),
        kind=DispatchKind(part.kind),
        kernel=Kernel(part.kernel),
        path=_text(native, part.path),
        why=_text(native, part.why),
        rows=int(part.rows),
        partition=int(part.partition),
        num_partitions=int(part.num_partitions),
        work=int(part.work),
        scratch_bytes=int(part.scratch_bytes),
        turned_down=tuple(turned_down),
    )


def _launch(native: Library, plan: Any, number: int) -> GpuLaunch:
    found = native.ffi.new("pamx_gpu_plan_launch*")
    check(native, native.lib.pamx_gpu_plan_launch_of(plan, number, found))
    count = int(found.shape.rows)
    data = native.ffi.buffer(found.rows, count * 12)
    rows = np.frombuffer(data, np.int32).reshape(count, 3).copy()
    return GpuLaunch(
        shape=shape_from(found.shape),
        launch=launch_from(native, found.launch),
        rows=rows,
        partial_out=None if found.partial_out < 0 else int(found.partial_out),
        partial_stats=None if found.partial_stats < 0 else int(found.partial_stats),
    )
