"""How many tokens the pool may hold: a fixed share of the memory that is free at start."""

from __future__ import annotations

from pathlib import Path

import psutil

# Of the memory that is available once the weights are loaded, the part that pages may take. The
# other half is for activations, for MLX's buffer cache and for the user's other programs.
POOL_SHARE = 0.5


def available_bytes() -> int:
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


def context_that_fits(token_bytes: int, available: int) -> int:
    """Tokens of `token_bytes` bytes each that fit the pool's share of `available` bytes."""
    return int(available * POOL_SHARE) // token_bytes
