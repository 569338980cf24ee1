"""Byte counts for people."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`count` bytes in the largest binary unit that leaves at least 1, as "257 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit != "GiB" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
