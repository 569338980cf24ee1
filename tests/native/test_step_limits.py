"""Steps that no model has: both planners refuse them in words, and neither counts past 64 bits."""

from __future__ import annotations

from typing import Any

import pytest

from pamx.errors import NativeError
from pamx.native.gpu_plan import Gpu, Overrides, plan_gpu_attention
from pamx.native.launch import Launch, LaunchShape, launch_of
from pamx.native.loader import library
from pamx.native.plan import plan_cpu_attention
from pamx.native.step_limits import LONGEST_CONTEXT, MOST_HEADS, MOST_QUERY_TOKENS

LARGE = (32, 8, 128, 128)


def gpu(geometry: tuple[Any, ...], queries: list[Any], context: list[Any], **more: Any) -> Any:
    options = {"gpu": Gpu(40), "overrides": Overrides()} | more
    return plan_gpu_attention(*geometry, queries, context, **options)


def cpu(geometry: tuple[Any, ...], queries: list[Any], context: list[Any], **more: Any) -> Any:
    return plan_cpu_attention(*geometry, queries, context, **{"threads": 2} | more)


@pytest.mark.parametrize("plan", [gpu, cpu])
@pytest.mark.parametrize(
    ("geometry", "queries", "context", "said"),
    [
        (LARGE, [1], [2**31 - 1], "has 2147483647 tokens; the longest"),
        (LARGE, [2], [2**30 + 1], "has 1073741825 tokens; the longest"),
        (LARGE, [2**24 + 1], [2**30], "16777217 query tokens up to sequence 0"),
        (LARGE, [2**23, 2**23, 1], [2**30] * 3, "16777217 query tokens up to sequence 2"),
        ((2**30, 2**27, 128, 256), [1] * 8, [9] * 8, "1073741824 query heads cannot be planned"),
        ((2**16 + 1, 1, 128, 128), [1], [9], "65537 query heads cannot be planned"),
    ],
)
def test_larger_steps_are_refused(
    plan: Any, geometry: tuple[int, ...], queries: list[int], context: list[int], said: str
) -> None:
    with pytest.raises(NativeError, match=said):
        plan(geometry, queries, context)


def test_the_longest_context_is_planned() -> None:
    assert gpu(LARGE, [1], [2**30]).decode.rows == 1
    found = cpu(LARGE, [1], [2**30])
    assert found.work == 2**30 * 32 * 256
    assert found.items == 1  # cut by partition, its partial results would pass their limit


def test_what_a_cpu_cannot_count_is_refused() -> None:
    with pytest.raises(NativeError, match="query rows; the most that can be planned for a CPU"):
        cpu(LARGE, [2**24], [2**24])
    with pytest.raises(NativeError, match="too much work to be planned"):
        cpu((32, 8, 512, 512), [2**21], [2**30])
    with pytest.raises(NativeError, match="threads must be at most 1024, not 1025"):
        cpu(LARGE, [1], [9], threads=1025)
    assert 0 < cpu((2**16, 2**16, 512, 512), [1], [2**30]).work < 2**60


@pytest.mark.parametrize("plan", [gpu, cpu])
def test_the_bounds_that_python_names_are_the_library_s(plan: Any) -> None:
    plan((MOST_HEADS, 1, 8, 8), [1], [9])
    plan((8, 8, 8, 8), [1], [LONGEST_CONTEXT])
    plan((1, 1, 8, 8), [MOST_QUERY_TOKENS // 2] * 2, [MOST_QUERY_TOKENS // 2] * 2)
    for geometry, queries, contexts in (
        ((MOST_HEADS + 1, 1, 8, 8), [1], [9]),
        ((8, 8, 8, 8), [1], [LONGEST_CONTEXT + 1]),
        ((1, 1, 8, 8), [MOST_QUERY_TOKENS, 1], [MOST_QUERY_TOKENS, 1]),
    ):
        with pytest.raises(NativeError, match="planned"):
            plan(geometry, queries, contexts)


def any_shape(shape: LaunchShape) -> Launch:
    grid = (shape.heads, shape.rows, max(1, shape.num_partitions))
    return Launch("a.metal", "a", "", {}, 1, grid, (32, 1, 1), 0)


def test_scratch_that_64_bits_cannot_count_is_over_the_cap() -> None:
    # 2**16 heads of 2**16 elements, 2**10 rows of 2**27 partitions: 2**71 bytes.
    geometry, contexts = (2**16, 2**16, 128, 2**16), [2**30] * 2**10
    forced = Overrides(force_partition=8)
    with pytest.raises(NativeError, match=r"would take at least [0-9]+ MiB of scratch"):
        gpu(geometry, [1] * 2**10, contexts, ability=any_shape, overrides=forced, block_size=8)
    found = gpu(geometry, [1] * 2**10, contexts, ability=any_shape)
    assert 0 <= found.scratch_bytes <= 512 << 20


@pytest.mark.parametrize("partition", [2**31 - 16, 2**30])
def test_a_forced_partition_longer_than_any_context(partition: int) -> None:
    found = gpu(LARGE, [1], [9], ability=any_shape, overrides=Overrides(force_partition=partition))
    assert (found.decode.partition, found.decode.num_partitions) == (partition, 1)


@pytest.mark.parametrize("plan", [gpu, cpu])
@pytest.mark.parametrize(
    ("geometry", "queries", "context", "said"),
    [
        (LARGE, [1], [2**32 + 1], r"context_lens\[0\] must be from -2147483647 to 2147483647"),
        (LARGE, [2**32 + 1], [9], r"query_lens\[0\] must be from"),
        (LARGE, [2**31 - 1] * 2, [2**31 - 1] * 2, "The sum of query_lens must be from"),
        (LARGE, [1.5], [9], r"query_lens\[0\] must be a whole number, not 1.5"),
        (LARGE, [1], ["9"], r"context_lens\[0\] must be a whole number, not '9'"),
        ((2**32 + 32, 8, 128, 128), [1], [9], "heads must be from"),
        ((32, 8, 128.0, 128), [1], [9], "k_dim must be a whole number, not 128.0"),
        (LARGE, [1, 1], [9], "2 query_lens and 1 context_lens"),
    ],
)
def test_what_is_no_int32_is_not_cut_off(
    plan: Any, geometry: tuple[Any, ...], queries: list[Any], context: list[Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        plan(geometry, queries, context)


def test_other_arguments_are_not_cut_off() -> None:
    with pytest.raises(ValueError, match="window must be from"):
        gpu(LARGE, [1], [9], window=2**32 + 1)
    with pytest.raises(ValueError, match="cores must be from"):
        gpu(LARGE, [1], [9], gpu=Gpu(2**32 + 1))
    with pytest.raises(ValueError, match="force_partition must be from"):
        gpu(LARGE, [1], [9], overrides=Overrides(force_partition=2**32 + 16))
    with pytest.raises(ValueError, match="l2_bytes must be from"):
        cpu(LARGE, [1], [9], l2_bytes=2**64)
    with pytest.raises(ValueError, match="rows must be from"):
        launch_of(LaunchShape(kernel=0, rows=2**32))  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"dtype": "float64"}, {"pool_dtype": "int8"}])
def test_an_unknown_dtype_is_named(more: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(more.values()))}.*float32, float16"):
        gpu(LARGE, [1], [9], **more)


def test_accessors_of_null_are_empty() -> None:
    native = library()
    ffi, lib = native.ffi, native.lib
    assert ffi.string(lib.pamx_gpu_plan_text(ffi.NULL)) == b""
    assert lib.pamx_gpu_plan_scratch(ffi.NULL) == 0
    assert lib.pamx_gpu_plan_launches(ffi.NULL) == 0
    assert lib.pamx_memory_data(ffi.NULL) == ffi.NULL
    assert lib.pamx_memory_bytes(ffi.NULL) == 0
