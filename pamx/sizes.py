"""Counts and byte counts for people, alike everywhere; 1 kB is 1,000 bytes, 1 MB a million."""

from __future__ import annotations

import math
from collections.abc import Callable

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_text(count: float) -> str:
    """`count` bytes in decimal units, as disks are sold and `df -H` counts: "93.4 MB"."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in _UNITS[1:]:
        count /= 1000
        if count < 999.5 or unit == _UNITS[-1]:
            break
    return f"{three_digits(count)} {unit}"


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


def need_and_left(need: int, left: int) -> tuple[str, str]:
    """What is needed, rounded up, and what is left of it, rounded down, in one unit.

    They have as many digits as it takes to tell them apart, so that a refusal never says that as
    much is left as is needed.
    """
    unit = _unit(max(need, left))
    for digits in range(1 if unit > 2 else 0, 3 * unit + 1):
        if _scaled(need, unit, digits, round) != _scaled(left, unit, digits, round):
            break
    return _text(need, unit, digits, math.ceil), _text(left, unit, digits, math.floor)


def _unit(count: float) -> int:
    unit = 0
    while unit < len(_UNITS) - 1 and round(count, 1 if unit > 2 else 0) >= 1000:
        count, unit = count / 1000, unit + 1
    return unit


def _scaled(count: float, unit: int, digits: int, to_whole: Callable[[float], int]) -> int:
    # One division of whole numbers, so that 0.1 GB is not rounded up to more.
    return to_whole(count * 10**digits / 1000**unit)


def _text(count: float, unit: int, digits: int, to_whole: Callable[[float], int]) -> str:
    number = _scaled(count, unit, digits, to_whole)
    return f"{number / 10**digits:,.{digits}f} {_UNITS[unit]}"
