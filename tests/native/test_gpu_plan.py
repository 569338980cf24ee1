"""The GPU planner: each rule on both sides of its threshold, its reasons, and its invariants.

Kernels are stood in for by `kernels`, so that a rule is tested apart from what today's kernels
serve; the last tests ask the library's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pamx.errors import NativeError
from pamx.native.dispatch import DispatchKind
from pamx.native.gpu_plan import (
    Ability,
    Gpu,
    GpuAttentionPlan,
    GpuPlanPart,
    Overrides,
    overrides_here,
    plan_gpu_attention,
)
from pamx.native.launch import Kernel, Launch, LaunchShape, launch_of

MIB = 1 << 20
Geometry = tuple[int, int, int]
LARGE, WIDE, NARROW, NARROW_WIDE = (32, 8, 128), (24, 4, 256), (16, 2, 128), (16, 2, 256)
M4_MAX = Gpu(cores=40, architecture="applegpu_g16s")
M3 = Gpu(cores=10, architecture="applegpu_g15g")
M5 = Gpu(cores=10, architecture="applegpu_g17g")
TILE, UNIFIED_SIMDGROUPS, CAPACITY = 32, 4, 4096
GQA, SPLIT, UNIFIED = DispatchKind.GqaDecode, DispatchKind.SplitKv, DispatchKind.Unified


def kernels(
    shape: LaunchShape,
    *,
    without: Sequence[Kernel] = (),
    capacity: int = CAPACITY,
    threadgroup_bytes: int = 0,
) -> Launch | str:
    """Kernels with a simdgroup or a few for each piece of work, as the real ones have."""
    if shape.kernel in without:
        return "it is out of order"
    tiled = shape.kernel in (Kernel.PREFILL_TILED, Kernel.PREFILL_NAX, Kernel.MLA_PREFILL)
    grid, threads = (shape.heads, shape.rows, max(1, shape.num_partitions)), 32
    match shape.kernel:
        case Kernel.GQA_DECODE | Kernel.GQA_DECODE_HEADS:
            if shape.softcap:
                return "it has no soft-cap"
            grid = (shape.kv_heads, shape.rows, shape.num_partitions)
        case Kernel.SPLIT_KV_REDUCE:
            if shape.num_partitions > capacity:
                return f"{shape.num_partitions} are more than {capacity}"
            grid = (shape.heads, shape.rows, 1)
        case Kernel.PAGED_ATTENTION | Kernel.MLA_DECODE:
            threads = 32 * UNIFIED_SIMDGROUPS
    return Launch(
        source=f"{shape.kernel.name.lower()}.metal",
        function=shape.kernel.name.lower(),
        instantiation="",
        constants={3: shape.block_size},
        tokens_a_row=TILE if tiled else 1,
        grid=grid,
        threadgroup=(threads, 1, 1),
        threadgroup_bytes=threadgroup_bytes,
    )


def plan(
    geometry: Geometry = LARGE,
    context: Sequence[int] = (20_000,),
    queries: Sequence[int] | None = None,
    gpu: Gpu = M4_MAX,
    ability: Ability = kernels,
    overrides: Overrides | None = None,
    **more: object,
) -> GpuAttentionPlan:
    heads, kv_heads, dim = geometry
    return plan_gpu_attention(
        heads,
        kv_heads,
        dim,
        dim,
        [1] * len(context) if queries is None else queries,
        context,
        gpu=gpu,
        ability=ability,
        overrides=overrides or Overrides(),
        **more,  # type: ignore[arg-type]
    )


def decode(*args: object, **more: object) -> GpuPlanPart:
    part = plan(*args, **more).decode  # type: ignore[arg-type]
    assert part is not None
    return part


def gqa_partition(*args: object, **more: object) -> int:
    """The partition of gqa_decode; 0 if it was not taken."""
    part = decode(*args, **more)
    return part.partition if part.kind is GQA else 0


def reason(part: GpuPlanPart, path: str) -> str:
    found = [why for name, why in part.turned_down if name.startswith(path)]
    assert found, f"{path} was not turned down: {part.turned_down}"
    return found[0]


# ---- the work budget of gqa_decode ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "small", "large"),
    [
        (LARGE, 10_752, 21_504),
        (WIDE, 14_080, 28_160),
        (NARROW, 21_248, 42_496),
        (NARROW_WIDE, 21_248, 42_496),
    ],
)
def test_one_request_on_40_cores(geometry: Geometry, small: int, large: int) -> None:
    found = {n: gqa_partition(geometry, (n,)) for n in (small - 1, small, large - 1, large)}
    assert found == {small - 1: 0, small: 256, large - 1: 256, large: 512}


@pytest.mark.parametrize(
    ("context", "partition"),
    [
        ((5375, 5375), 0),
        ((5376, 5376), 256),
        ((10_751, 10_751), 256),
        ((10_752, 10_752), 512),
        ((5375, 5632), 256),  # 20 and 22 full partitions
        ((5375, 5631), 0),  # tails do not add up to one
        ((1, 10_751), 0),
        ((1, 10_752), 256),  # the longest does not stand for all
        ((1, 21_504), 512),
        ((1279,) * 10, 0),
        ((1280,) * 10, 256),
        ((2559,) * 10, 256),
        ((2560,) * 10, 512),
        ((255,) * 128, 0),
        ((256,) * 64, 256),
        ((512,) * 64, 512),
    ],
)
def test_several_requests_on_40_cores(context: tuple[int, ...], partition: int) -> None:
    assert gqa_partition(LARGE, context) == partition


@pytest.mark.parametrize(
    ("cores", "geometry", "requests", "small", "large"),
    [
        (10, LARGE, 3, 1024, 2048),
        (10, WIDE, 4, 1024, 2048),
        (10, NARROW, 5, 1280, 2560),
        (20, LARGE, 5, 1280, 2560),
        (20, WIDE, 7, 1024, 2048),
        (20, NARROW_WIDE, 10, 1280, 2560),
    ],
)
def test_the_budget_grows_with_the_cores(
    cores: int, geometry: Geometry, requests: int, small: int, large: int
) -> None:
    gpu = Gpu(cores=cores, architecture="applegpu_g14s")
    found = [
        gqa_partition(geometry, (n,) * requests, gpu=gpu)
        for n in (small - 1, small, large - 1, large)
    ]
    assert found == [0, 256, 256, 512]


def test_the_work_and_its_budget_are_said() -> None:
    below, at = decode(context=(10_751,)), decode(context=(10_752,))
    assert at.work == 32 * 42 == 1344
    assert "make 1344 simdgroups for 32 query heads, at least 1320 (33 for each of 40" in at.why
    assert "make 1312 simdgroups for 32 query heads, fewer than 1320" in reason(below, "gqa_decode")


@pytest.mark.parametrize(("heads", "partition"), [((8, 1, 64), 512), ((9, 1, 64), 0)])
def test_groups_of_up_to_eight(heads: Geometry, partition: int) -> None:
    part = decode(heads, (200_000,))
    assert (part.partition if part.kind is GQA else 0) == partition
    if not partition:
        assert "has 9 query heads, more than 8" in reason(part, "gqa_decode")


def test_other_geometries_follow_the_rule_and_it_is_said() -> None:
    assert "budget: measured for other geometries" in plan((40, 8, 128), (40_000,)).text
    assert "budget:" not in plan(LARGE, (40_000,)).text


def test_a_gpu_of_unknown_size_gets_what_suits_any() -> None:
    unknown = Gpu()
    part = decode(context=(131_072,), gpu=unknown)
    assert (part.kind, part.partition) == (SPLIT, 512)
    assert "cores are not known" in reason(part, "gqa_decode")
    # 32 heads of 4 simdgroups a row: 1 row leaves 7 cores idle, 2 rows do not.
    assert decode(context=(131_072,) * 2, gpu=unknown).kind is UNIFIED
    assert decode(context=(1023,), gpu=unknown).kind is UNIFIED
    assert decode(context=(1024,), gpu=unknown).kind is SPLIT


# ---- the calibration of a 10-core M3 -------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "block_size", "context", "partition"),
    [
        (LARGE, 16, (512,) * 5, 0),  # by the budget
        (LARGE, 16, (512,) * 6, 0),
        (LARGE, 16, (703,) * 6, 0),
        (LARGE, 16, (704,) * 6, 256),
        (LARGE, 16, (512,) * 5 + (704,), 256),
        (LARGE, 16, (512,) * 7, 256),
        (LARGE, 16, (2048,) * 3, 512),
        (WIDE, 16, (1023,) * 4, 0),
        (WIDE, 16, (1024,) * 4, 256),
        (WIDE, 16, (4095,) * 4, 512),
        (WIDE, 16, (4096,) * 4, 256),
        (WIDE, 16, (1, 255, 256, 8192), 256),
        (NARROW_WIDE, 16, (4095,) * 5, 512),
        (NARROW_WIDE, 16, (4096,) * 5, 256),
        (NARROW_WIDE, 32, (8191,) * 5, 512),
        (NARROW_WIDE, 32, (8192,) * 5, 256),
        (NARROW_WIDE, 8, (8192,) * 5, 512),  # nobody measured blocks of 8
        (WIDE, 16, (16_384,), 512),  # one request
        (NARROW, 16, (8192,) * 5, 512),
    ],
)
def test_a_10_core_m3(
    geometry: Geometry, block_size: int, context: tuple[int, ...], partition: int
) -> None:
    assert gqa_partition(geometry, context, gpu=M3, block_size=block_size) == partition


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu(cores=10, architecture="applegpu_g16g"),
        Gpu(cores=10),
        Gpu(cores=20, architecture="applegpu_g15g"),
    ],
)
def test_nothing_but_a_10_core_m3_is_calibrated(gpu: Gpu) -> None:
    assert gqa_partition(WIDE, (8192,) * 4, gpu=gpu) == 512
    if gpu.cores == 10:
        assert gqa_partition(LARGE, (512,) * 6, gpu=gpu) == 256


def test_the_calibration_is_given_as_the_reason() -> None:
    assert "measured slower for 6 requests" in reason(
        decode(LARGE, (512,) * 6, gpu=M3), "gqa_decode"
    )
    assert "256 tokens measured faster than 512" in decode(WIDE, (4096,) * 4, gpu=M3).why


# ---- the two forms -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "kernel", "why"),
    [
        (LARGE, Kernel.GQA_DECODE, "reads a page once for each of the 4 query heads"),
        ((16, 2, 256), Kernel.GQA_DECODE, "reads a page once"),  # 8 * 256 floats
        ((64, 8, 264), Kernel.GQA_DECODE_HEADS, "outputs are 2112 floats, and registers hold 2048"),
        ((32, 32, 128), Kernel.GQA_DECODE_HEADS, "nothing is shared"),
    ],
)
def test_groups_share_pages_where_registers_hold_their_outputs(
    geometry: Geometry, kernel: Kernel, why: str
) -> None:
    part = decode(geometry, (100_000,))
    assert part.kernel is kernel
    other = "one simdgroup a query head" if kernel is Kernel.GQA_DECODE else "group-sharing"
    assert why in reason(part, f"gqa_decode, {other}")


def test_one_form_stands_in_for_the_other() -> None:
    only_heads = functools.partial(kernels, without=[Kernel.GQA_DECODE])
    part = decode(ability=only_heads)
    assert (part.kernel, part.kind, part.partition) == (Kernel.GQA_DECODE_HEADS, GQA, 256)
    assert reason(part, "gqa_decode, group-sharing, of 256") == "it is out of order"
    neither = functools.partial(kernels, without=[Kernel.GQA_DECODE, Kernel.GQA_DECODE_HEADS])
    assert decode(ability=neither).kind is SPLIT


def test_a_feature_that_a_kernel_lacks() -> None:
    part = decode(softcap=True)
    assert part.kind is SPLIT
    assert reason(part, "gqa_decode, group-sharing, of 256 tokens") == "it has no soft-cap"
    assert plan(softcap=True).launches[0].shape.softcap


# ---- split-KV and unified ------------------------------------------------------------------------


def test_split_where_the_grid_is_idle_and_rows_are_long() -> None:
    off = Overrides(disable_gqa_decode=True)
    # 16 heads of 4 simdgroups: 20 rows make 1280 simdgroups, 21 rows 1344, of 1320.
    assert decode(NARROW, (4096,) * 20, overrides=off).kind is SPLIT
    full = decode(NARROW, (4096,) * 21, overrides=off)
    assert full.kind is UNIFIED
    assert "1344 simdgroups fill the GPU without it: 1320 do" in reason(full, "split-KV")
    # Two full partitions of 256 tokens.
    assert decode(NARROW, (511,), overrides=off).kind is UNIFIED
    assert decode(NARROW, (512,), overrides=off).partition == 256
    assert "no row sees 2 full partitions of 256" in reason(
        decode(NARROW, (511,), overrides=off), "split-KV"
    )
    # 64 simdgroups a partition: 21 of them fill the GPU.
    assert decode(NARROW, (21 * 512 - 1,), overrides=off).partition == 256
    assert decode(NARROW, (21 * 512,), overrides=off).partition == 512


def test_a_window_hides_partitions() -> None:
    # The window shows 42 full partitions only if it begins at the edge of one.
    wide = 42 * 256
    assert gqa_partition(context=(20_480,), window=wide) == 256
    assert gqa_partition(context=(20_480,), window=wide - 1) == 0
    assert gqa_partition(context=(20_479,), window=wide) == 0
    narrow = decode(context=(100_000,), window=300)
    assert narrow.kind is UNIFIED
    assert "no row sees 2 full partitions" in reason(narrow, "split-KV")


# ---- limits --------------------------------------------------------------------------------------


def scratch(rows: int, geometry: Geometry, partitions: int) -> int:
    heads, _, dim = geometry
    return rows * heads * partitions * (dim + 2) * 4


def test_scratch_stays_below_its_cap() -> None:
    # A row of 32 heads, 256 partitions and 130 floats.
    rows = (512 * MIB) // scratch(1, LARGE, 256)
    assert rows == 126
    at, above = (decode(LARGE, (131_072,) * n) for n in (rows, rows + 1))
    assert (at.kind, above.kind) == (GQA, UNIFIED)
    assert at.scratch_bytes == scratch(126, LARGE, 256)
    assert (above.partition, above.scratch_bytes) == (0, 0)
    assert "MiB of scratch, of 512 MiB" in reason(above, "gqa_decode, group-sharing, of 512")


def test_past_the_cap_fewer_partitions_are_tried_first() -> None:
    # The M3 prefers 256 tokens here; at 512 partial results take half.
    part = decode(WIDE, (1,) * 63 + (131_072,), gpu=M3)
    assert (part.kind, part.partition) == (GQA, 512)
    assert part.why == "fewer partitions do fit"
    assert "MiB of scratch" in reason(part, "gqa_decode, group-sharing, of 256")
    assert scratch(64, WIDE, 256) <= part.scratch_bytes <= 512 * MIB < scratch(64, WIDE, 512)


def test_the_reducer_bounds_the_partitions() -> None:
    at, above = (decode(context=(n * 512,)) for n in (CAPACITY, CAPACITY + 1))
    assert (at.kind, at.num_partitions) == (GQA, CAPACITY)
    assert (above.kind, above.partition) == (UNIFIED, 0)
    said = reason(above, "gqa_decode, group-sharing, of 512")
    assert said == "the reducer cannot merge its 4097 partitions: 4097 are more than 4096"
    # 256 tokens make too many, 512 do not.
    few = functools.partial(kernels, capacity=50)
    part = decode(context=(20_000,), ability=few)
    assert (part.kind, part.partition, part.num_partitions) == (GQA, 512, 40)


def test_a_machine_with_less_threadgroup_memory() -> None:
    takes = functools.partial(kernels, threadgroup_bytes=16_384)
    smaller = dataclasses.replace(M4_MAX, threadgroup_memory=16_383)
    assert decode(ability=takes).kind is GQA
    with pytest.raises(NativeError, match="takes 16384 bytes of threadgroup memory, of 16383"):
        plan(gpu=smaller, ability=takes)
    fewer = dataclasses.replace(M4_MAX, threadgroup_threads=127)
    with pytest.raises(NativeError, match="takes 128 threads a threadgroup, of 127"):
        plan(gpu=fewer, context=(100,))


# ---- what is forced ------------------------------------------------------------------------------


def test_gqa_decode_switched_off() -> None:
    part = decode(overrides=Overrides(disable_gqa_decode=True))
    assert part.kind is SPLIT
    assert reason(part, "gqa_decode") == "PAMX_DISABLE_GQA_DECODE is set"


@pytest.mark.parametrize("cores", [None, 40])
@pytest.mark.parametrize("tokens", [128, 256, 1024])
def test_a_forced_partition_runs_whatever_the_rule(tokens: int, cores: int | None) -> None:
    forced = Overrides(force_partition=tokens)
    part = decode(context=(700,), gpu=Gpu(cores=cores), overrides=forced)
    assert (part.kind, part.partition, part.num_partitions) == (GQA, tokens, -(-700 // tokens))
    off = dataclasses.replace(forced, disable_gqa_decode=True)
    part = decode(context=(700,), gpu=Gpu(cores=cores), overrides=off)
    assert (part.kind, part.partition) == (SPLIT, tokens)


def test_a_forced_partition_that_cannot_run_is_an_error() -> None:
    with pytest.raises(
        NativeError, match=r"100 tokens are forced; they must be a multiple of.* 16"
    ):
        plan(overrides=Overrides(force_partition=100))
    with pytest.raises(
        NativeError, match=r"no kernel has them: not gqa_.*12500 are more than 4096"
    ):
        plan(context=(100_000,), overrides=Overrides(force_partition=8), block_size=8)
    with pytest.raises(NativeError, match=r"512 tokens are forced.* MiB of scratch"):
        plan(context=(131_072,) * 127, overrides=Overrides(force_partition=512))


def test_what_is_forced_is_for_decode_rows() -> None:
    found = plan(context=(5000,), queries=(5000,), overrides=Overrides(force_partition=512))
    assert found.prefill is not None
    assert found.prefill.partition == 0
    assert (
        "forced: partitions of 512 tokens, for decode rows, of which there are none" in found.text
    )


def test_the_environment_is_read() -> None:
    def asked(**env: str) -> dict[str, object] | str:
        code = (
            "import dataclasses, json\n"
            "from pamx.errors import NativeError\n"
            "from pamx.native.gpu_plan import overrides_here\n"
            "try: print(json.dumps(dataclasses.asdict(overrides_here())))\n"
            "except NativeError as error: print(json.dumps(str(error)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={k: v for k, v in os.environ.items() if not k.startswith("PAMX_")} | env,
            capture_output=True,
            check=True,
        )
        found: dict[str, object] | str = json.loads(done.stdout)
        return found

    assert asked() == dataclasses.asdict(Overrides())
    assert asked(
        PAMX_DISABLE_GQA_DECODE="1", PAMX_DISABLE_NAX="1", PAMX_FORCE_PARTITION="512"
    ) == dataclasses.asdict(Overrides(True, True, 512))
    for no in ("0", "", "false", "No", "OFF"):
        given = {"PAMX_DISABLE_GQA_DECODE": no, "PAMX_DISABLE_NAX": no, "PAMX_FORCE_PARTITION": ""}
        assert asked(**given) == asked()
    assert asked(PAMX_DISABLE_NAX="yes") == dataclasses.asdict(Overrides(disable_nax=True))
    for wrong in ("many", "-1", "256k", "99999999999"):
        assert f"PAMX_FORCE_PARTITION is '{wrong}'" in asked(PAMX_FORCE_PARTITION=wrong)


# ---- prefill -------------------------------------------------------------------------------------


def prefill(*args: object, **more: object) -> GpuPlanPart:
    part = plan(*args, **more).prefill  # type: ignore[arg-type]
    assert part is not None
    return part


def test_tensor_units_where_there_are_some() -> None:
    step: dict[str, object] = {"context": (600, 40), "queries": (512, 40)}
    part = prefill(gpu=M5, **step)
    assert (part.kind, part.rows) == (DispatchKind.NaxPrefill, 16 + 2)
    for gpu, overrides, why in [
        (M3, Overrides(), "this GPU has no tensor units"),
        (dataclasses.replace(M5, tensor_compiler=False), Overrides(), "cannot compile"),
        (M5, Overrides(disable_nax=True), "PAMX_DISABLE_NAX is set"),
    ]:
        part = prefill(gpu=gpu, overrides=overrides, **step)
        assert part.kind is DispatchKind.TiledPrefill
        assert why in reason(part, "NAX prefill")


@pytest.mark.parametrize(
    ("architecture", "has"),
    [
        ("applegpu_g16s", False),
        ("applegpu_g17g", True),
        ("applegpu_g17p", False),
        ("applegpu_g18p", True),
        ("applegpu_g", False),
        ("", False),
    ],
)
def test_tensor_units_by_architecture(architecture: str, has: bool) -> None:
    part = prefill(gpu=Gpu(10, architecture), context=(512,), queries=(512,))
    assert (part.kind is DispatchKind.NaxPrefill) == has


def test_tiles_must_be_a_quarter_full() -> None:
    below, at = (prefill(context=(9000,), queries=(n,)) for n in (7, 8))
    assert (below.kind, at.kind) == (SPLIT, DispatchKind.TiledPrefill)
    assert "tiles of 32 tokens would be 21% full, less than 1/4" in reason(below, "tiled prefill")
    assert below.rows == 7


def test_prefill_without_tiles_takes_token_by_token() -> None:
    lacks = functools.partial(kernels, without=[Kernel.PREFILL_TILED])
    part = prefill(context=(600,), queries=(512,), ability=lacks)
    assert (part.kind, part.rows) == (UNIFIED, 512)


def test_decode_rows_of_a_mixed_step_are_planned_apart() -> None:
    alone = decode(context=(21_504,))
    mixed = plan(context=(700, 21_504, 80_000), queries=(512, 1, 80_000))
    assert mixed.decode == alone
    assert mixed.prefill is not None
    assert mixed.prefill.kind is DispatchKind.TiledPrefill
    assert mixed.prefill == prefill(context=(700, 80_000), queries=(512, 80_000))
    assert [run.launch.function for run in mixed.launches] == [
        "gqa_decode",
        "split_kv_reduce",
        "prefill_tiled",
    ]
    assert mixed.launches[0].rows.tolist() == [[1, 512, 1]]
    # A long prompt does not make a short decode row a long one.
    assert decode(context=(500, 80_000), queries=(1, 80_000)).kind is UNIFIED


def test_both_parts_share_the_scratch() -> None:
    lacks = functools.partial(kernels, without=[Kernel.PREFILL_TILED])
    found = plan(context=(20_000, 20_000), queries=(1, 4), ability=lacks)
    assert found.decode is not None
    assert found.prefill is not None
    assert (found.decode.kind, found.prefill.kind) == (GQA, SPLIT)
    assert found.scratch_bytes >= found.decode.scratch_bytes + found.prefill.scratch_bytes
    places = [run.partial_out for run in found.launches] + [
        run.partial_stats for run in found.launches
    ]
    assert len(set(places)) == 4
    assert all(place is not None and place % 256 == 0 for place in places)


def test_rows_of_both_parts_that_take_the_unified_kernel_take_it_together() -> None:
    lacks = functools.partial(kernels, without=[Kernel.PREFILL_TILED])
    found = plan(context=(9, 100, 7), queries=(1, 3, 1), ability=lacks)
    assert [run.shape.kernel for run in found.launches] == [Kernel.PAGED_ATTENTION]
    run = found.launches[0]
    assert run.rows.tolist() == [[0, 0, 1], [2, 4, 1], [1, 1, 1], [1, 2, 1], [1, 3, 1]]
    assert run.launch.grid == (32, 5, 1)


# ---- MLA -----------------------------------------------------------------------------------------


def mla(context: Sequence[int], queries: Sequence[int], **more: object) -> GpuAttentionPlan:
    given_: dict[str, object] = {"gpu": M4_MAX, "ability": kernels, "overrides": Overrides()}
    return plan_gpu_attention(
        128,
        1,
        576,
        512,
        queries,
        context,
        mla=True,
        **given_ | more,  # type: ignore[arg-type]
    )


def test_a_latent_cache_has_kernels_of_its_own() -> None:
    found = mla((9000, 600), (1, 512))
    assert found.decode is not None
    assert found.prefill is not None
    assert (found.decode.kind, found.decode.kernel) == (DispatchKind.Mla, Kernel.MLA_DECODE)
    assert found.decode.partition == 512
    assert (found.prefill.kind, found.prefill.kernel) == (DispatchKind.Mla, Kernel.MLA_PREFILL)
    many = mla((9000,) * 3, (1,) * 3)  # 512 simdgroups a row
    assert many.decode is not None
    assert many.decode.partition == 0
    lacks = functools.partial(kernels, without=[Kernel.MLA_PREFILL])
    by_row = mla((600,), (512,), ability=lacks).prefill
    assert by_row is not None
    assert (by_row.kernel, by_row.rows) == (Kernel.MLA_DECODE, 512)


def test_no_kernel_at_all_is_an_error_with_each_reason() -> None:
    lacks = functools.partial(kernels, without=list(Kernel))
    with pytest.raises(NativeError, match="no kernel serves the decode rows: not gqa_decode") as e:
        plan(ability=lacks)
    assert str(e.value).count("out of order") >= 4
    with pytest.raises(NativeError, match="no kernel serves the prefill rows"):
        plan(context=(9,), queries=(9,), ability=lacks)
    with pytest.raises(NativeError, match="not MLA decode"):
        mla((9,), (1,), ability=lacks)


# ---- text and errors -----------------------------------------------------------------------------


def test_a_plan_explains_itself() -> None:
    text = plan(context=(20_000,)).text
    for said in [
        "geometry: 32 query heads, 8 KV heads, head size 128, blocks of 16.",
        "GPU: 40 cores, applegpu_g16s.",
        "decode rows: 1 sequence, the longest of 20000 tokens, in 1 row of work.",
        "kernel: gqa_decode, group-sharing, since the full partitions of 256 tokens make 2496",
        "partition: 256 tokens, at most 79 a row, merged by the reducer.",
        "those of 512 tokens make 1248",
        "not gqa_decode, one simdgroup a query head: it reads",
        "not split-KV: ",
        "not unified: ",
        "scratch: 1.3 MiB of at most 512.0 MiB.",
        "launches: gqa_decode, then split_kv_reduce.",
    ]:
        assert said in text, text
    assert all(line.endswith(".") for line in text.splitlines())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"geometry": (32, 7, 128)}, "not a multiple of 7 KV heads"),
        ({"context": (8,), "queries": (9,)}, "9 query tokens of 8"),
        ({"context": (8,), "queries": (0,)}, "0 query tokens of 8"),
        ({"context": (), "queries": ()}, "a step has sequences"),
        ({"block_size": 12}, "8, 16 or 32, not 12"),
        ({"window": -1}, "window must be at least 0"),
        ({"gpu": Gpu(cores=-1)}, "at least 0"),
    ],
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(NativeError, match=message):
        plan(**wrong)  # type: ignore[arg-type]


def test_an_ability_that_raises_is_heard() -> None:
    def broken(_: LaunchShape) -> Launch | str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plan(ability=broken)


# ---- properties ----------------------------------------------------------------------------------

GEOMETRIES = [LARGE, WIDE, NARROW, (9, 3, 64), (12, 1, 64), (4, 4, 512)]
SEQUENCES = st.lists(
    st.tuples(st.integers(1, 200_000), st.sampled_from([1, 1, 1, 2, 5, 33, 700])),
    min_size=1,
    max_size=60,
).map(lambda pairs: [(n, min(n, q)) for n, q in pairs])
FAST = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@FAST
@given(
    sequences=SEQUENCES,
    geometry=st.sampled_from(GEOMETRIES),
    cores=st.sampled_from([None, 7, 10, 40, 80]),
    window=st.sampled_from([None, 1, 128, 5000]),
    softcap=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_invariants(
    sequences: list[tuple[int, int]],
    geometry: Geometry,
    cores: int | None,
    window: int | None,
    softcap: bool,
    order: object,
) -> None:
    def planned(pairs: list[tuple[int, int]]) -> GpuAttentionPlan:
        context, queries = [n for n, _ in pairs], [q for _, q in pairs]
        gpu = Gpu(cores, "applegpu_g15g")
        return plan(geometry, context, queries, gpu=gpu, window=window, softcap=softcap)

    found = planned(sequences)
    heads, _, dim = geometry
    starts = np.concatenate([[0], np.cumsum([q for _, q in sequences])])
    assert 0 <= found.scratch_bytes <= 512 * MIB

    # Every query token is in one row of work, and rows stay within their sequence.
    seen = np.zeros(starts[-1], int)
    for run in found.launches:
        assert len(run.rows) == run.shape.rows
        if run.shape.kernel is Kernel.SPLIT_KV_REDUCE:
            continue
        for sequence, first, tokens in run.rows:
            assert starts[sequence] <= first
            assert first + tokens <= starts[sequence + 1]
            assert 1 <= tokens <= run.launch.tokens_a_row
            seen[first : first + tokens] += 1
    assert (seen == 1).all()

    # A split launch is followed by its reducer; partitions cover each row's context; partial
    # results of different launches lie apart.
    taken = []
    for i, run in enumerate(found.launches):
        if run.shape.kernel is Kernel.SPLIT_KV_REDUCE:
            continue
        if not run.shape.partition:
            assert run.partial_out is run.partial_stats is None
            continue
        reducer = found.launches[i + 1]
        assert reducer.shape.kernel is Kernel.SPLIT_KV_REDUCE
        assert (reducer.rows == run.rows).all()
        assert (reducer.partial_out, reducer.partial_stats) == (run.partial_out, run.partial_stats)
        covered = run.shape.partition * run.shape.num_partitions
        assert all(sequences[s][0] <= covered for s, _, _ in run.rows)
        cells = run.shape.rows * heads * run.shape.num_partitions
        assert run.partial_out is not None
        assert run.partial_stats is not None
        taken += [(run.partial_out, cells * dim * 4), (run.partial_stats, cells * 8)]
    for (place, size), (after, _) in zip(sorted(taken), sorted(taken)[1:], strict=False):
        assert place + size <= after
    assert all(place + size <= found.scratch_bytes for place, size in taken)

    # Order does not matter.
    shuffled = list(sequences)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    again = planned(shuffled)
    assert (again.decode, again.prefill) == (found.decode, found.prefill)
    assert again.scratch_bytes == found.scratch_bytes


@FAST
@given(
    sequences=SEQUENCES,
    geometry=st.sampled_from(GEOMETRIES),
    tokens=st.sampled_from([16, 64, 256, 512, 4096]),
)
def test_a_forced_partition_runs_or_is_refused(
    sequences: list[tuple[int, int]], geometry: Geometry, tokens: int
) -> None:
    context, queries = [n for n, _ in sequences], [q for _, q in sequences]
    forced = Overrides(force_partition=tokens)
    part = None
    with contextlib.suppress(NativeError):
        part = plan(geometry, context, queries, overrides=forced).decode
    assert part is None or part.partition == tokens


# ---- the library's own kernels -------------------------------------------------------------------


def served(kernel: Kernel) -> bool:
    """Whether this library has the kernel for a plain shape."""
    try:
        launch_of(
            LaunchShape(
                kernel,
                heads=32,
                kv_heads=8,
                k_dim=128,
                v_dim=128,
                block_size=16,
                partition=256 if kernel is not Kernel.PAGED_ATTENTION else 0,
                num_partitions=42,
                rows=1,
            )
        )
    except NativeError:
        return False
    return True


def test_the_librarys_own_kernels_are_asked() -> None:
    found = overrides_here()
    assert found == Overrides()
    if not served(Kernel.PAGED_ATTENTION):
        with pytest.raises(NativeError, match="not unified, since it is not written yet"):
            plan_gpu_attention(32, 8, 128, 128, [1], [10_752], gpu=M4_MAX)
        return
    planned = plan_gpu_attention(32, 8, 128, 128, [1], [10_752], gpu=M4_MAX)
    assert planned.launches[0].launch == launch_of(planned.launches[0].shape)
