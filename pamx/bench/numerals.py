"""Numbers for people: three significant digits, thousands separated, decimal units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pamx.sizes import bytes_text, three_digits

NONE = "-"
# Further than this on both sides, an interval is told by its ends: it is lopsided then.
_WIDEST_HALF = 0.20


def duration(seconds: float | None) -> str:
    """Three significant digits, in s, ms or µs."""
    if seconds is None:
        return NONE
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale * 0.9995:
            return f"{three_digits(seconds / scale)} {unit}"
    return f"{three_digits(seconds / 1e-6)} µs"


def rate(value: float | None) -> str:
    return NONE if value is None else three_digits(value)


def per_second(value: float | None) -> str:
    return NONE if value is None else f"{three_digits(value)}/s"


def times(value: float, digits: int = 2) -> str:
    """A ratio: "1.08x", or of three digits where that is shorter."""
    return f"{value:.{digits}f}x" if 0.1 <= value < 10 else f"{three_digits(value)}x"


def bandwidth(value: float | None) -> str:
    return NONE if value is None else f"{three_digits(value / 1e9)} GB/s"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def size(count: float | None) -> str:
    return NONE if count is None else bytes_text(count)


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
