"""The memory budget: what a process may use, what of it is spoken for, and what pages may take.

The pool is sized from it once, at start, and never grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import psutil

# Of the limit, what is left alone: other allocations of this process, and the error of estimates.
MARGIN_SHARE = 0.1
# Of the limit, what MLX may keep in freed buffers for reuse.
BUFFER_CACHE_SHARE = 0.05
# Activations and the kernels' scratch of one step, at most.
SCRATCH_BYTES = 512 << 20
# Without a wish of the user's, pages take no more than this part of what could be theirs: the
# machine has other programs.
UNASKED_SHARE = 0.5


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes, line by line.

    Attributes:
        limit: What this process may use: Metal's recommended working set, or the memory that is
            available (or that the cgroup leaves) and what the model holds of it already.
        weights: What MLX's arrays hold now: the model.
        scratch: Activations and scratch of a step.
        buffer_cache: What MLX may keep in freed buffers.
        margin: What is left alone.
    """

    limit: int
    weights: int
    scratch: int
    buffer_cache: int
    margin: int

    @property
    def pages(self) -> int:
        """What pages may take."""
        spoken_for = self.weights + self.scratch + self.buffer_cache + self.margin
        return max(0, self.limit - spoken_for)

    def explain(self) -> str:
        """The arithmetic in words."""
        return (
            f"{_gb(self.limit)} that may be used, less {_gb(self.weights)} of weights, "
            f"{_gb(self.scratch)} for a step, {_gb(self.buffer_cache)} of reusable buffers and "
            f"{_gb(self.margin)} of margin, leave {_gb(self.pages)} for pages"
        )


def measure_budget() -> MemoryBudget:
    """The budget of this process at this moment, with the model loaded."""
    weights = int(mx.get_active_memory())
    limit = _device_limit() or _available_bytes() + weights
    return MemoryBudget(
        limit=limit,
        weights=weights,
        scratch=min(SCRATCH_BYTES, limit // 10),
        buffer_cache=int(limit * BUFFER_CACHE_SHARE),
        margin=int(limit * MARGIN_SHARE),
    )


def _device_limit() -> int | None:
    """What Metal recommends that a process keeps resident; None on a CPU."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return None
    limit = mx.device_info().get("max_recommended_working_set_size")
    return int(limit) if limit else None


def _available_bytes() -> int:
    """Memory that this process can still take: the system's, or its cgroup's if that is less."""
    available = int(psutil.virtual_memory().available)
    limit, used = _read_int("memory.max"), _read_int("memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _read_int(name: str) -> int | None:
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
