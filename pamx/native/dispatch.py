"""Which attention kernels ran: what this thread asked for last, and counters since start.

MLX is lazy: a call is planned when it is queued and runs later, on another thread. So the last
dispatch is what the last call queued by this thread will run, and the counters of native kernels
count what did run. Plain MLX operations are counted when they are queued: nobody sees them run.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from enum import IntEnum

from pamx.errors import NativeError
from pamx.native.loader import check, library, loaded
from pamx.native.partitions import STEP


class DispatchKind(IntEnum):
    """What served a call; the numbers are pamx_dispatch_kind's."""

    GqaDecode = 0
    SplitKv = 1
    Unified = 2
    TiledPrefill = 3
    NaxPrefill = 4
    Mla = 5
    Cpu = 6
    Reference = 7


@dataclass(frozen=True)
class Dispatch:
    """What served the decode rows or the prefill rows of a call.

    Attributes:
        kind: The kernel's kind.
        partition: Tokens a partition; 0: not split.
    """

    kind: DispatchKind
    partition: int


class _Thread(threading.local):
    recording = False
    reference = False  # the last call went to plain MLX operations


_thread = _Thread()
_lock = threading.Lock()
_references = 0


def set_dispatch_diagnostics(on: bool) -> bool:
    """Has this thread remember its last call from now on, or not; forgets what it remembered.

    Returns:
        Whether it remembered before.
    """
    before = _thread.recording
    _thread.recording, _thread.reference = on, False
    with contextlib.suppress(NativeError):  # then all goes to plain MLX operations
        library().lib.pamx_set_dispatch_diagnostics(on)
    return before


def last_dispatches() -> tuple[Dispatch, ...]:
    """What the last call that this thread queued runs: its decode rows first, then its prefill
    rows where they take another kernel; empty if there was none, or diagnostics are off."""
    if native := loaded():
        kinds, partitions = native.ffi.new("int32_t[2]"), native.ffi.new("int32_t[2]")
        count = native.lib.pamx_last_dispatch(kinds, partitions)
        if count:
            return tuple(Dispatch(DispatchKind(kinds[i]), partitions[i]) for i in range(count))
    return (Dispatch(DispatchKind.Reference, 0),) if _thread.reference else ()


def last_dispatch() -> DispatchKind | None:
    """The kind that serves the last call's decode rows, or all its rows if it has none."""
    found = last_dispatches()
    return found[0].kind if found else None


def last_partition_size() -> int | None:
    """Tokens a partition of the same call and rows; 0: not split; None: there was no call."""
    found = last_dispatches()
    return found[0].partition if found else None


def dispatch_counts() -> dict[DispatchKind, int]:
    """Calls since start, in all threads, of each kind."""
    counts = dict.fromkeys(DispatchKind, 0)
    if native := loaded():
        for kind in DispatchKind:
            counts[kind] = int(native.lib.pamx_dispatch_count(kind))
    counts[DispatchKind.Reference] += _references
    return counts


def force_partition(tokens: int | None) -> None:
    """Forces the partition of the calls that this thread queues from now on.

    On a CPU it is every row's, on a GPU the decode rows'. A call that cannot have it raises
    NativeError. Calls that are queued already keep theirs.

    Args:
        tokens: As `pamx.native.partitions` says; None: by rule again, or PAMX_FORCE_PARTITION's.

    Raises:
        NativeError: the library cannot be used here, or there cannot be such a partition.
    """
    native = library()
    if tokens is not None and tokens < 1:
        raise NativeError(
            f"A partition cannot have {tokens} tokens.", f"Give a multiple of {STEP}."
        )
    check(native, native.lib.pamx_force_partition(tokens or 0))


def record_reference() -> None:
    """Records a call that is queued as plain MLX operations.

    Raises:
        NativeError: a partition is forced, which they do not have.
    """
    global _references
    native = loaded()
    if native is not None:
        overrides = native.ffi.new("pamx_overrides*")
        check(native, native.lib.pamx_overrides_here(overrides))
        forced = int(overrides.force_partition)
    else:
        forced = os.environ.get("PAMX_FORCE_PARTITION", "0") not in ("", "0")
    if forced:
        raise NativeError(
            "A partition is forced, and plain MLX operations, which compute this attention, have "
            "none.",
            "Unset PAMX_FORCE_PARTITION, or run where pamx's native library serves.",
        )
    with _lock:
        _references += 1
    if _thread.recording:
        _thread.reference = True
        if native is not None:
            native.lib.pamx_clear_last_dispatch()
