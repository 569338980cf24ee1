"""What this process holds of the memory, and what the system and its container still give it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import psutil


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


def available_bytes() -> int:
    """Memory that this process can still take: the system's, or its cgroup's if that is less."""
    available = int(psutil.virtual_memory().available)
    found = cgroup_room()
    return available if found is None else max(0, min(available, found[1]))


def cgroup_room() -> tuple[int, int] | None:
    """The limit of the cgroup that binds this process most, and what is left of it; None: none."""
    found = [(limit, max(0, limit - used)) for limit, used in _cgroups()]
    return min(found, key=lambda pair: pair[1], default=None)


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
