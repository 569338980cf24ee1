"""Byte counts for people, in decimal units: 1 kB is 1,000 bytes, 1 MB a million."""

from __future__ import annotations

import math
from collections.abc import Callable

_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_text(count: float) -> str:
    """`count` bytes in the largest unit that leaves at least 1, as "257 MB" or "1.5 GB"."""
    unit = _unit(count)
    digits = 1 if unit > 2 or (unit == 2 and count < 9.95e6) else 0
    return _text(count, unit, digits, round)


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
