"""Numbers for people: three significant digits, thousands separated, decimal units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NONE = "-"
# Further than this on both sides, an interval is told by its ends: it is lopsided then.
_WIDEST_HALF = 0.20


def counted(count: int, noun: str) -> str:
    """Such as "1 sample" or "1,024 samples"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float | None) -> str:
    """Three significant digits, in s, ms or µs."""
    if seconds is None:
        return NONE
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale * 0.9995:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-6)} µs"


def rate(value: float | None) -> str:
    return NONE if value is None else _three(value)


def per_second(value: float | None) -> str:
    return NONE if value is None else f"{_three(value)}/s"


def times(value: float, digits: int = 2) -> str:
    """A ratio: "1.08x", or of three digits where that is shorter."""
    return f"{value:.{digits}f}x" if 0.1 <= value < 10 else f"{_three(value)}x"


def bandwidth(value: float | None) -> str:
    return NONE if value is None else f"{_three(value / 1e9)} GB/s"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def size(count: float | None) -> str:
    if count is None:
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{_three(count / scale)} {unit}"
    return f"{_three(count / 1e3)} kB"


def _three(value: float) -> str:
    """Three significant digits, or all digits of larger whole numbers; two of small ones."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.2g}"


def spread(figure: dict[str, Any] | None, write: Callable[[float], str]) -> str:
    """A figure with its interval: "12.3 ms ±2%", or "12.3 ms (9.1-16.7)" if that is wide."""
    if figure is None:
        return NONE
    text, low, high = write(figure["typical"]), figure["low"], figure["high"]
    if low is None:
        return text
    half = (high - low) / 2 / figure["typical"]
    if half <= _WIDEST_HALF:
        return f"{text} ±{half:.0%}" if half >= 0.00995 else f"{text} ±{half:.1%}"
    ends = [write(low), write(high)]
    if len(units := {end.partition(" ")[2] for end in (text, *ends)}) == 1:
        ends = [end.removesuffix(f" {next(iter(units))}") for end in ends]
    return f"{text} ({'-'.join(ends)})"
