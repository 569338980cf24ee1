"""The most memory that this process had between two moments."""

from __future__ import annotations

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin() -> None:
    """Forgets the peak so far."""
    import mlx.core as mx

    mx.reset_peak_memory()
    try:
        _CLEAR.write_text("5")  # proc(5): resets VmHWM
    except OSError:
        return


def peak() -> tuple[int, str]:
    """Bytes since `begin`, and what was counted."""
    import mlx.core as mx

    try:
        lines = _STATUS.read_text().splitlines()
        (found,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return found * 1024, "resident memory of the process"
    except (OSError, ValueError):
        return int(mx.get_peak_memory()), "memory that MLX held"
