"""Counts and byte counts for people, alike everywhere; 1 MB is a million bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_text(count: float) -> str:
    """`count` bytes in decimal units, as disks are sold and `df -H` counts: "93.4 MB"."""
    unit, digits = _form(count)
    return f"{count / 1000**unit:,.{digits}f} {_UNITS[unit]}"


def need_and_left(need: int, left: int) -> tuple[str, str]:
    """What is needed, rounded up, and what is left of it, rounded down, in one unit.

    They have as many digits as it takes to tell them apart, so that a refusal never says that as
    much is left as is needed.
    """
    unit, digits = _form(max(need, left))
    while digits < 3 * unit and _whole(need, unit, digits) == _whole(left, unit, digits):
        digits += 1
    up, down = _whole(need, unit, digits, math.ceil), _whole(left, unit, digits, math.floor)
    return (
        f"{up / 10**digits:,.{digits}f} {_UNITS[unit]}",
        f"{down / 10**digits:,.{digits}f} {_UNITS[unit]}",
    )


def counted(count: int, noun: str) -> str:
    """`count` with its noun, whose plural ends in s: "1 row", "1,024 tokens"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def three_digits(value: float) -> str:
    """Three significant digits, all of a larger whole number, two of one below 0.1."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.2g}"


def _form(count: float) -> tuple[int, int]:
    """Unit and decimals: three significant digits, or all of a larger whole number."""
    if count < 1000:
        return 0, 0
    unit, value = 1, count / 1000
    while value >= 999.5 and unit < len(_UNITS) - 1:
        unit, value = unit + 1, value / 1000
    return unit, 0 if value >= 99.95 else 1 if value >= 9.995 else 2


def _whole(
    count: int, unit: int, digits: int, to_whole: Callable[[float], int] = math.floor
) -> int:
    """`count` in the last of so many decimals of a unit."""
    return to_whole(count * 10**digits / 1000**unit)
