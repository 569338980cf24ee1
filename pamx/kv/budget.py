"""The memory budget: what a process may use, what of it is spoken for, and what pages may take.

The pool is sized from it once, at start, and never grows. `pamx doctor --model` prints the same
budget before a byte of weights is read, so what it says and what the engine refuses are one sum.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import psutil

# Of the limit, what is left alone: other allocations of this process, and the error of estimates.
MARGIN_SHARE = 0.1
# Of the limit, what MLX may keep in freed buffers for reuse.
BUFFER_CACHE_SHARE = 0.05
# Without a wish of the user's, pages take no more than this part of what could be theirs: the
# machine has other programs.
UNASKED_SHARE = 0.5


@dataclass(frozen=True)
class Footprint:
    """Bytes that a model holds when it runs, pages apart.

    Attributes:
        weights: All matrices and vectors, in the form in which they are used.
        activations: Results of a step's operations that live at the same time, at most.
        scratch: The kernels' working memory.
    """

    weights: int
    activations: int
    scratch: int

    @property
    def step(self) -> int:
        """What a step takes besides weights and pages."""
        return self.activations + self.scratch


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes, line by line.

    Attributes:
        limit: What this process may hold: Metal's recommended working set; or the memory that is
            available, or that the cgroup leaves, and what the process holds of it already.
        baseline: Python, MLX and the tokenizer; 0 under Metal's limit, which counts only what the
            GPU uses.
        weights: The model.
        step: Activations and scratch of a step.
        buffer_cache: What MLX may keep in freed buffers.
        margin: What is left alone.
    """

    limit: int
    baseline: int
    weights: int
    step: int
    buffer_cache: int
    margin: int

    @property
    def pages(self) -> int:
        """What pages may take."""
        return max(0, self.limit - self.spoken_for)

    @property
    def spoken_for(self) -> int:
        """Everything but pages."""
        return self.baseline + self.weights + self.step + self.buffer_cache + self.margin

    def explain(self) -> str:
        """The arithmetic in words."""
        return (
            f"{_gb(self.limit)} that may be used, less {_gb(self.baseline)} of this "
            f"process, {_gb(self.weights)} of weights, {_gb(self.step)} for a step, "
            f"{_gb(self.buffer_cache)} of reusable buffers and {_gb(self.margin)} of margin, leave "
            f"{_gb(self.pages)} for pages"
        )


@dataclass(frozen=True)
class Memory:
    """What this process may hold and what it holds without the model, in bytes."""

    limit: int
    baseline: int

    @property
    def buffer_cache(self) -> int:
        """What MLX may keep in freed buffers."""
        return int(self.limit * BUFFER_CACHE_SHARE)

    def budget(self, model: Footprint) -> MemoryBudget:
        """The budget with a model."""
        return MemoryBudget(
            limit=self.limit,
            baseline=self.baseline,
            weights=model.weights,
            step=model.step,
            buffer_cache=self.buffer_cache,
            margin=int(self.limit * MARGIN_SHARE),
        )


def measure_memory() -> Memory:
    """What there is at this moment; arrays that MLX holds now count as the model's."""
    if limit := device_limit():
        return Memory(limit, 0)
    give_back_free_memory()
    held = own_bytes()
    baseline = max(0, held - int(mx.get_active_memory()))
    return Memory(available_bytes() + held, baseline)


def own_bytes() -> int:
    """Resident memory of this process that is its own: what it maps from files is not, because
    the system counts that as available."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10
    except (OSError, StopIteration):
        return int(psutil.Process().memory_full_info().uss)


def give_back_free_memory() -> None:
    """Returns what the C library keeps of freed memory to the system, where it can."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def device_limit() -> int | None:
    """What Metal recommends that a process keeps resident; None on a CPU."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return None
    limit = mx.device_info().get("max_recommended_working_set_size")
    return int(limit) if limit else None


def available_bytes() -> int:
    """Memory that this process can still take: the system's, or its cgroup's if that is less."""
    available = int(psutil.virtual_memory().available)
    room = [limit - used for limit, used in _cgroups()]
    return max(0, min([available, *room]))


def cgroup_limit() -> int | None:
    """Bytes that the cgroup of this process may use, or None for no limit."""
    return min((limit for limit, _ in _cgroups()), default=None)


def _cgroups(root: Path = Path("/sys/fs/cgroup")) -> list[tuple[int, int]]:
    """Limit and use of each cgroup that binds this process.

    v2: `memory.max` of its own and of those above it; v1: `memory.limit_in_bytes`, where "no
    limit" is a number near 2^63. Of the use, file pages that the kernel can drop do not count
    (`inactive_file` in memory.stat).
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = [line.split(":", 2)[2] for line in entries if line.startswith("0::")]
    folder = root / own[0].lstrip("/") if own else root
    found = []
    for place in [folder, *folder.parents]:
        limit, used = _number(place / "memory.max"), _number(place / "memory.current")
        if limit is not None:
            found.append((limit, (used or 0) - _inactive_file(place)))
        if place == root:
            break
    old = root / "memory"
    limit = _number(old / "memory.limit_in_bytes")
    if limit is not None and limit < 1 << 60:
        used = _number(old / "memory.usage_in_bytes") or 0
        found.append((limit, used - _inactive_file(old)))
    return found


def _inactive_file(place: Path) -> int:
    try:
        lines = (place / "memory.stat").read_text().splitlines()
        pairs = dict(line.split() for line in lines)
        return int(pairs.get("total_inactive_file", pairs.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
