"""Which arm is best on a workload, and whether that may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pamx.bench.metrics import Metric
from pamx.bench.statistics import FASTER, SAME, TOO_FEW, UNKNOWN, Ratio, paired_ratio, verdict


@dataclass(frozen=True)
class Best:
    """The arm with the best typical figure.

    Attributes:
        arm: Its name.
        found: "faster" than every other; else whether it and the `rivals` differ by nothing, or
            nobody can tell, or there are too few samples.
        rivals: The arms that were not found to be slower.
        lead: Over the one that comes next; None if there is no other arm.
    """

    arm: str
    found: str
    rivals: list[str]
    lead: Ratio | None


def best(cells: Sequence[dict[str, Any]], metric: Metric, margin: float) -> Best | None:
    """Compares the best arm with each of the others, in pairs of samples.

    Args:
        cells: Valid cells of one workload.
        metric: By which.
        margin: Of `equality_margin`.

    Returns:
        None if no cell has the figure.
    """
    able = [c for c in cells if metric.name in c["figures"]]
    able.sort(key=lambda c: c["figures"][metric.name]["typical"])
    if not metric.smaller_is_better:
        able.reverse()
    if not able:
        return None
    first, *others = able
    ratios = {c["arm"]: _ratio(c, first, metric) for c in others}
    verdicts = {
        arm: TOO_FEW if ratio is None else verdict(ratio, margin) for arm, ratio in ratios.items()
    }
    rivals = [arm for arm, said in verdicts.items() if said != FASTER]
    said = {verdicts[arm] for arm in rivals} or {FASTER}
    found = next(
        word for word in (TOO_FEW, UNKNOWN, SAME, FASTER) if word in said or word == FASTER
    )
    return Best(first["arm"], found, rivals, next(iter(ratios.values()), None))


def _ratio(other: dict[str, Any], first: dict[str, Any], metric: Metric) -> Ratio | None:
    """How much faster `first` is than `other`, over the samples that both have."""
    mine, theirs = _values(first, metric), _values(other, metric)
    both = sorted(mine.keys() & theirs.keys())
    return paired_ratio(
        [theirs[key] for key in both],
        [mine[key] for key in both],
        smaller_is_better=metric.smaller_is_better,
    )


def _values(cell: dict[str, Any], metric: Metric) -> dict[tuple[int, int], float]:
    return {
        (s["block"], s["half"]): s["figures"][metric.name]
        for s in cell["samples"]
        if metric.name in s["figures"]
    }
