"""Durations for people."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """`seconds` in the unit that suits them: "35 ms", "2.4 s", "5 min", "3 h 20 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
