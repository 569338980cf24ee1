"""The most memory that a program had during one sample, whatever earlier samples left in it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from pamx.kv.limits import give_back_free_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Pages come and go between two readings: how far a peak that was just reset may lie above what is
# resident, in bytes.
_SLACK = 8 << 20

OF_PROCESS = "resident memory of the process"
OF_MLX = "memory that MLX held: the system does not let a process reset its own peak"


def release() -> None:
    """Gives back what is no longer used: Python's cycles, MLX's freed buffers, the C library's."""
    import mlx.core as mx

    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    give_back_free_memory()


def watch(status: Path = _STATUS, clear: Path = _CLEAR) -> Callable[[], tuple[int, str]]:
    """Begins anew: what is called at the end tells the peak in bytes, and what it counts.

    On Linux that is resident memory, files that are mapped included (proc(5): writing 5 to
    clear_refs resets VmHWM). Where the system has no such thing, or a sandbox forbids it, it is
    what MLX allocated, which has the pages but not the kernels' own packed weights.
    """
    import mlx.core as mx

    release()
    mx.reset_peak_memory()
    of_process = _reset(status, clear)

    def peak() -> tuple[int, str]:
        if of_process and (found := _field(status, "VmHWM")) is not None:
            return found, OF_PROCESS
        return int(mx.get_peak_memory()), OF_MLX

    return peak


def _reset(status: Path, clear: Path) -> bool:
    """Whether the process's own peak could be forgotten."""
    try:
        clear.write_text("5")
    except OSError:
        return False
    peak, now = _field(status, "VmHWM"), _field(status, "VmRSS")
    return peak is not None and now is not None and peak <= now + _SLACK


def _field(status: Path, name: str) -> int | None:
    """Bytes, of a line of /proc/self/status."""
    try:
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
