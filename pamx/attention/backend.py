"""Which implementation of paged attention serves this process, and why."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from pamx.attention import reference
from pamx.attention.step import Step
from pamx.errors import NativeError
from pamx.kv.pool import LayerPool, Storage, plain_storage
from pamx.native import ops
from pamx.native.loader import library
from pamx.native.metal import metal_gpu


class Attend(Protocol):
    """Writes new K/V rows into the pool, then attends; lazy.

    Args:
        step: The step's sequences.
        pool: The layer's pages; its handles are replaced by those after the write.
        queries: [batch, heads, length, k_dim], batch or length 1 as the packing says.
        keys: [batch, kv_heads, length, k_dim] or None: attend without writing.
        values: [batch, kv_heads, length, v_dim] or None.

    Returns:
        [batch, heads, length, v_dim]
    """

    def __call__(
        self,
        step: Step,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array | None,
        values: mx.array | None,
        *,
        scale: float,
        softcap: float = 0.0,
        window: int | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array: ...


@dataclass(frozen=True)
class Backend:
    """An implementation of `Attend`.

    Attributes:
        name: "native-cpu", "native-metal" or "mlx".
        reason: One sentence: why this one.
        storage: Makes pools and copies blocks in them.
        in_place: Whether a step can be queued while an earlier one still runs without the pool
            being copied.
    """

    name: str
    reason: str
    attend: Attend
    storage: Storage
    in_place: bool


def _native(
    step: Step,
    pool: LayerPool,
    queries: mx.array,
    keys: mx.array | None,
    values: mx.array | None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    out, pool.keys, pool.values = ops.paged_attention(
        step.native,
        queries,
        keys,
        values,
        pool.keys,
        pool.values,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
    )
    return out


def reference_backend(reason: str) -> Backend:
    return Backend("mlx", reason, reference.attend, plain_storage(), in_place=False)


def native_backend() -> Backend:
    """The native library's CPU kernels.

    Raises:
        NativeError: the library cannot be used here.
    """
    reason = f"The native library's {library().cpu_isa} kernels serve MLX on the CPU."
    return Backend(
        "native-cpu", reason, _native, Storage(ops.empty, ops.copy_blocks), in_place=True
    )


def metal_backend() -> Backend:
    """The native library's kernels on the GPU of a Mac.

    Raises:
        NativeError: the library cannot be used here, or has no Metal.
    """
    reason = f"The native library's Metal kernels serve MLX on the {metal_gpu().name} GPU."
    return Backend(
        "native-metal", reason, _native, Storage(ops.empty, ops.copy_blocks), in_place=True
    )


@functools.cache
def _metal_verdict() -> str:
    """Why the Metal kernels are not to be used, a sentence; empty if they compute attention right.

    They have been proved without Apple's hardware, so a process tries them before it trusts them.
    """
    from pamx.attention import selftest

    try:
        result = selftest.run("native-metal")
    except NativeError as error:
        return error.message
    except RuntimeError as error:  # out of MLX's evaluation
        return f"The Metal kernels fail here: {error}."
    if result.passed:
        return ""
    return (
        f"The Metal kernels compute attention wrong here: {result.max_error:.1e} from float64; "
        "please report it."
    )


def choose_backend() -> Backend:
    """The native library where it can serve MLX's default device, else plain MLX operations."""
    try:
        if mx.default_device().type == mx.DeviceType.cpu:
            return native_backend()
        if not mx.metal.is_available():
            return reference_backend(
                "MLX runs on the GPU, and the native kernels are for CPUs and Apple's GPUs."
            )
        backend = metal_backend()
    except NativeError as error:
        return reference_backend(error.message)
    verdict = _metal_verdict()
    return reference_backend(verdict) if verdict else backend


def backend_named(name: str) -> Backend:
    """The backend called "native-cpu", "native-metal" or "mlx".

    Raises:
        NativeError: the native library cannot be used here.
        ValueError: there is no backend of that name.
    """
    if name == "native-cpu":
        return native_backend()
    if name == "native-metal":
        return metal_backend()
    if name == "mlx":
        return reference_backend("Plain MLX operations were asked for.")
    raise ValueError(f"there is no attention backend {name!r}")
