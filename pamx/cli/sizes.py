"""Counts and byte counts for people, alike in every command."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`count` bytes in decimal units, as disks are sold and `df -H` counts: "93.4 MB"."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{_three_digits(count)} {unit}"
    return f"{_three_digits(count / 1000)} TB"


def counted(count: int, noun: str) -> str:
    """`count` with its noun, whose plural ends in s: "1 row", "1,024 tokens"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _three_digits(value: float) -> str:
    """Three significant digits, or all of a larger whole number."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
