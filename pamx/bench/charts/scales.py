"""Units and ends of axes: what is drawn where, and what is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pamx.bench.metrics import Metric

# Arms further apart than this on one workload share a logarithmic axis.
_FAR = 5.0
# An interval that reaches beyond so many times the largest figure is cut off, and marked.
_BEYOND = 2.0


def unit_of(cells: Sequence[dict[str, Any]], metric: Metric) -> tuple[str, float]:
    """In which unit a metric is drawn, and what its values are multiplied by."""
    if metric.unit == "bytes/s":
        return "GB/s", 1e-9
    if metric.unit != "s":
        return "", 1.0
    largest = max(_typical(c, metric) for c in cells if metric.name in c["figures"])
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if largest >= scale:
            return unit, 1 / scale
    return "µs", 1e6


def _typical(cell: dict[str, Any], metric: Metric) -> float:
    return float(cell["figures"][metric.name]["typical"])


def heading_of(metric: Metric, unit: str) -> str:
    return f"{metric.title}, {unit}" if unit else metric.title


def is_far(cells: Sequence[dict[str, Any]], metric: Metric) -> bool:
    """Whether arms lie so far apart on a workload that a common linear axis would hide them."""
    by_workload: dict[str, list[float]] = {}
    for cell in cells:
        if metric.name in cell["figures"]:
            by_workload.setdefault(cell["workload"], []).append(_typical(cell, metric))
    return any(max(v) > _FAR * min(v) for v in by_workload.values())


def axis_ends(cells: Sequence[dict[str, Any]], metric: Metric, far: bool) -> tuple[float, float]:
    """The axis's ends: all figures and intervals lie inside, but for absurdly long ones."""
    figures = [c["figures"][metric.name] for c in cells]
    top = max(f["typical"] for f in figures)
    bottom = min(f["typical"] for f in figures)
    high = max(min(f["high"] or f["typical"], _BEYOND * top) for f in figures)
    low = min(max(f["low"] or f["typical"], bottom / _BEYOND) for f in figures)
    return (low / 1.3, high * 1.3) if far else (0.0, 1.12 * high)


def is_cut(figure: dict[str, Any], ends: tuple[float, float]) -> bool:
    """Whether an interval goes on where the axis ends."""
    return figure["high"] is not None and figure["high"] > ends[1]


def reach_of(
    figures: Sequence[dict[str, Any]], scale: float, ends: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """How far intervals reach below and above their figures, inside of an axis."""
    below = [f["typical"] - max(f["low"] or f["typical"], ends[0]) for f in figures]
    above = [min(f["high"] or f["typical"], ends[1]) - f["typical"] for f in figures]
    return [scale * v for v in below], [scale * v for v in above]
