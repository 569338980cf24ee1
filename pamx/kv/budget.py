"""The memory budget: what a process may use, what of it is spoken for, and what pages may take.

The pool is sized from it once, at start, and never grows. `pamx doctor --model` prints the same
budget before a byte of weights is read, so what it says and what the engine refuses are one sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from pamx.kv.limits import available_bytes, give_back_free_memory, own_bytes
from pamx.sizes import bytes_text

# Of the limit, what is left alone: other allocations of this process, and the error of estimates.
MARGIN_SHARE = 0.1
# Of the limit, what MLX may keep in freed buffers for reuse.
BUFFER_CACHE_SHARE = 0.05
# Without a wish of the user's, pages take no more than this part of what could be theirs: the
# machine has other programs.
UNASKED_SHARE = 0.5

# Of the limit, what advice leaves besides: what other programs take changes from one moment to the
# next, and whoever follows the advice should not be refused for that.
SPARE_SHARE = 0.05
TO_SPARE = f"{SPARE_SHARE:.0%} of the memory to spare".replace("%", " %")


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

    @property
    def spare(self) -> int:
        """What advice leaves of it."""
        return int(self.limit * SPARE_SHARE)

    @property
    def lasting(self) -> int:
        """What pages may take a moment later too, if a little less is free then."""
        return max(0, self.pages - self.spare)

    def explain(self) -> str:
        """The arithmetic in words: a clause."""
        return (
            f"{bytes_text(self.limit)} may be used, of which this process takes "
            f"{bytes_text(self.baseline)}, weights {bytes_text(self.weights)}, a step "
            f"{bytes_text(self.step)} and reusable buffers {bytes_text(self.buffer_cache)}, and "
            f"{bytes_text(self.margin)} are kept free"
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


def measure_rest() -> MemoryBudget:
    """The budget for pages beside a loaded model: what this process holds is spoken for."""
    limit = device_limit()
    held = int(mx.get_active_memory()) if limit else own_bytes()
    return Memory(limit or available_bytes() + held, held).budget(Footprint(0, 0, 0))


def device_limit() -> int | None:
    """What Metal recommends that a process keeps resident; None on a CPU."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return None
    limit = mx.device_info().get("max_recommended_working_set_size")
    return int(limit) if limit else None
