"""What a kernel may not do when it runs is an error that names it, or shows in some order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metal import softmetal

SOURCE = Path(__file__).parent / "kernels" / "wrong.metal"


@pytest.fixture(scope="module")
def program() -> softmetal.Program:
    return softmetal.compile(SOURCE)


def run(
    program: softmetal.Program, kernel: str, threads: int = 32, groups: int = 1, **options: object
) -> np.ndarray:
    out = np.zeros(threads, np.float32)
    buffers = {0: out, **options.pop("buffers", {})}  # type: ignore[dict-item]
    program.run(kernel, (groups, 1, 1), (threads, 1, 1), buffers, **options)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    ("kernel", "threads", "reason"),
    [
        ("writes_past_end", 32, r"writes byte 128 of buffer\(0\) 'out', which has 128"),
        ("writes_before_start", 32, r"writes byte -[14] of buffer\(0\) 'out', which has 128"),
        ("writes_far_away", 32, r"writes byte 4000\d\d\d of buffer\(0\) 'out', which has 128"),
        ("writes_to_const", 32, r"writes to buffer\(0\) 'in', which the kernel takes as const"),
        ("divides_by_zero", 32, "divides an integer by zero"),
        ("diverges_at_sum", 32, "divergent simdgroup 0: lane 0 is at simd_sum"),
        ("diverges_between_operations", 32, "lane 0 is at simd_sum .*, lane 16 is at simd_max"),
        ("diverges_at_matrix", 32, "lane 0 is at simdgroup_store .*, lane 31 has returned"),
        ("shuffles_from_nobody", 32, "reads lane 32 of 32"),
        ("diverges_at_matrix", 16, "simdgroup_store at .* in a simdgroup of 16 threads"),
        ("barrier_for_some", 64, "simdgroup 0 is at threadgroup_barrier .*, simdgroup 1 has ret"),
        ("barriers_crossed", 64, r"at threadgroup_barrier \(.*:\d+\), simdgroup 1 is at threadg"),
        ("threadgroup_memory_past_end", 32, "writes byte 128 of threadgroup variable 'staged'"),
        ("threadgroup_memory_exceeded", 32, "exceeds 32 KiB: 36000 bytes with 'b'"),
    ],
)
@pytest.mark.parametrize("order", [0, 1, 5])
def test_it_is_an_error_in_every_order(
    program: softmetal.Program, kernel: str, threads: int, reason: str, order: int
) -> None:
    with pytest.raises(softmetal.MetalError, match=reason):
        run(program, kernel, threads, order=order)


@pytest.mark.parametrize(
    ("kernel", "order", "reason"),
    [
        ("reads_past_end", 0, r"reads byte 128 of buffer\(1\) 'in', which has 128"),
        ("reads_before_start", 1, r"reads byte -4 of buffer\(1\) 'in', which has 128"),
    ],
)
def test_a_read_out_of_bounds_is_an_error_on_the_guarded_side(
    program: softmetal.Program, kernel: str, order: int, reason: str
) -> None:
    source = {1: np.zeros(32, np.float32)}
    with pytest.raises(softmetal.MetalError, match=reason):
        run(program, kernel, buffers=source, order=order)
    assert np.isnan(run(program, kernel, buffers=source, order=1 - order)).any()


@pytest.mark.parametrize(
    ("kernel", "threads", "groups", "right"),
    [
        ("barrier_missing", 64, 1, np.arange(64)[::-1]),
        ("simdgroup_barrier_missing", 32, 1, np.arange(32)[::-1]),
        ("leftovers_in_maximum", 128, 1, np.full(128, 127)),
        ("races_between_threadgroups", 32, 2, np.array([1.0, 2.0] + [0.0] * 30)),
    ],
)
def test_a_race_shows_in_some_order(
    program: softmetal.Program, kernel: str, threads: int, groups: int, right: np.ndarray
) -> None:
    answers = [run(program, kernel, threads, groups, order=o) for o in range(4)]
    assert not all(np.array_equal(a, right) for a in answers)


@pytest.mark.parametrize(
    ("kernel", "threads", "groups", "right"),
    [
        ("lanes_in_order", 32, 1, np.maximum(np.arange(32) - 1, 0)),
        ("simdgroups_in_order", 64, 1, np.arange(64) % 32),
        ("races_between_threadgroups", 32, 2, np.array([1.0, 2.0] + [0.0] * 30)),
    ],
)
def test_what_relies_on_an_order_is_right_in_that_order_alone(
    program: softmetal.Program, kernel: str, threads: int, groups: int, right: np.ndarray
) -> None:
    np.testing.assert_array_equal(run(program, kernel, threads, groups, order=0), right)
    assert not np.array_equal(run(program, kernel, threads, groups, order=1), right)
    random = [run(program, kernel, threads, groups, order=o) for o in range(2, 12)]
    assert not all(np.array_equal(x, right) for x in random)


def test_the_line_of_a_fault_is_named(program: softmetal.Program) -> None:
    line = SOURCE.read_text().split("\n").index("  out[i + 1] = 1.0f;") + 1
    with pytest.raises(softmetal.MetalError, match=rf"\(wrong.metal:{line}\)"):
        run(program, "writes_past_end")


def test_memory_is_usable_after_a_fault(program: softmetal.Program) -> None:
    for _ in range(3):
        with pytest.raises(softmetal.MetalError):
            run(program, "writes_past_end")
    out = run(program, "races_between_threadgroups", groups=2)
    assert out[1] == 2


def test_an_argument_in_threadgroup_memory_has_the_length_it_was_given(
    program: softmetal.Program,
) -> None:
    assert run(program, "argument_past_end", threadgroup_bytes=128).all()
    with pytest.raises(softmetal.MetalError, match="writes byte 64 of threadgroup variable 'stage"):
        run(program, "argument_past_end", threadgroup_bytes={0: 64})
    with pytest.raises(softmetal.MetalError, match=r"threadgroup\(0\) 'staged' has no length"):
        run(program, "argument_past_end")
    with pytest.raises(softmetal.MetalError, match="exceeds 32 KiB"):
        run(program, "argument_past_end", threadgroup_bytes=32769)


@pytest.mark.parametrize(
    ("constants", "buffers", "reason"),
    [
        ({0: True}, {}, "function constant 1 'scale' is not set"),
        ({1: 2.0}, {}, "function constant 0 'has_scale' is not set"),
        ({0: False, 1: 1.0}, {}, r"buffer\(1\) 'p' is not bound"),
        ({0: False, 1: 1.0}, {1: np.zeros(4, np.uint8)}, "'p' is 4 bytes, the kernel needs 32"),
        ({0: True, 1: 1.0}, {1: np.zeros(8, np.uint32)}, r"buffer\(2\) 'bias' is not bound"),
    ],
)
def test_a_launch_that_lacks_something_is_refused(
    program: softmetal.Program, constants: dict, buffers: dict, reason: str
) -> None:
    with pytest.raises(softmetal.MetalError, match=f"^needs_constants: .*{reason}"):
        run(program, "needs_constants", constants=constants, buffers=buffers)


def test_constants_reach_the_kernel_and_those_computed_from_them(
    program: softmetal.Program,
) -> None:
    params = np.array([32] + [0] * 7, np.uint32)
    bias = np.full(32, 5, np.float32)
    for constants, right in (
        ({0: False, 1: 3.0}, 1.0),
        ({0: True, 1: 3.0}, 14.0),
        ({0: True, 1: 0.5}, 5.5),
    ):
        out = np.ones(32, np.float32)
        buffers = {0: out, 1: params, 2: bias}
        program.run("needs_constants", (1, 1, 1), (32, 1, 1), buffers, constants)
        assert (out == right).all()


def test_a_buffer_that_a_constant_leaves_out_cannot_be_read(program: softmetal.Program) -> None:
    bias = {1: np.ones(32, np.float32)}
    assert run(program, "reads_absent_buffer", buffers=bias, constants={0: True, 1: 1.0}).all()
    with pytest.raises(softmetal.MetalError, match="reads a buffer that its function constant"):
        run(program, "reads_absent_buffer", buffers=bias, constants={0: False, 1: 1.0})


@pytest.mark.parametrize(
    ("grid", "threadgroup", "reason"),
    [
        ((1, 1, 1), (1025, 1, 1), "more than 1024 threads"),
        ((1, 1, 1), (32, 33, 1), "more than 1024 threads"),
        ((1, 1, 1), (32, 0, 1), "no threads"),
        ((0, 1, 1), (32, 1, 1), "no threadgroups"),
    ],
)
def test_impossible_sizes_are_refused(
    program: softmetal.Program, grid: tuple, threadgroup: tuple, reason: str
) -> None:
    with pytest.raises(softmetal.MetalError, match=reason):
        program.run("writes_past_end", grid, threadgroup, {0: np.zeros(4, np.float32)})


def test_arrays_that_cannot_be_buffers_are_refused(program: softmetal.Program) -> None:
    whole = np.zeros(64, np.float32)
    source = np.zeros(32, np.float32)
    source.flags.writeable = False
    shape = ((1, 1, 1), (32, 1, 1))
    with pytest.raises(softmetal.MetalError, match="is not contiguous"):
        program.run("writes_past_end", *shape, {0: whole[::2]})
    with pytest.raises(softmetal.MetalError, match="overlaps 'out'"):
        program.run("reads_past_end", *shape, {0: whole[:33], 1: whole[32:]})
    with pytest.raises(softmetal.MetalError, match="its array is read-only"):
        program.run("writes_past_end", *shape, {0: source})
    with pytest.raises(softmetal.MetalError, match="no kernel 'nothing'"):
        program.run("nothing", *shape, {})
