"""What this process holds of the memory, and what the system and its container still give it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import psutil

# Address space that is mapped without being filled when a model begins to run: stacks of threads,
# the C library's arenas (64 MiB each) and OpenBLAS's buffers.
_MAPPED_LATER = 160 << 20


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
    """Memory that this process can still take: the system's, its cgroup's or what its address
    space has room for, whichever is least."""
    rooms = [found[1] for found in (cgroup_room(), address_room()) if found is not None]
    return max(0, min([int(psutil.virtual_memory().available), *rooms]))


def limited_by() -> str:
    """What sets `available_bytes`, in words."""
    cgroup, address = cgroup_room(), address_room()
    others = [int(psutil.virtual_memory().available), *([cgroup[1]] if cgroup else [])]
    if address is not None and address[1] < min(others):
        return "address space that `ulimit -v` leaves"
    return "memory available now" + (", within this container" if cgroup else "")


def address_room() -> tuple[int, int] | None:
    """The limit of this process's address space, and what of it is left for arrays; None: none.

    macOS has such a limit and does not enforce it.
    """
    if sys.platform != "linux":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit > 1 << 60:
        return None
    taken = int(psutil.Process().memory_info().vms)
    return limit, max(0, limit - taken - _MAPPED_LATER)


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
