"""Two records side by side: what they have in common, and whether it differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pamx.bench.definitions import title
from pamx.bench.measure import Cell
from pamx.bench.metrics import CALL, COMPARED, Metric, slug
from pamx.bench.record import Record
from pamx.bench.statistics import independent_ratio, verdict
from pamx.bench.words import Table, comparison_table
from pamx.bench.workload import Arm
from pamx.errors import RequestError

# What makes two runs answer different questions if it differs.
_FACTS = ("model", "library", "machine", "versions")


@dataclass(frozen=True)
class Comparison:
    """Two records side by side.

    Attributes:
        names: What they are called.
        ratios: Of `compare_records`.
        differences: Of `different_facts`.
    """

    names: tuple[str, str]
    ratios: list[dict[str, Any]]
    differences: list[str]

    def table(self) -> Table:
        first, second = self.names
        return comparison_table(
            self.ratios, f"Speed of {second} relative to {first} (above 1x is faster)"
        )

    def notes(self, *, definitions: bool) -> list[str]:
        return self.differences + ([_MEANING] if definitions else [])

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one a workload, arm and figure; a figure has the name of its column there."""
        return [found | {"metric": slug(title(found["metric"]))} for found in self.ratios]

    def as_json(self) -> dict[str, Any]:
        return {"comparisons": self.ratios, "differences": self.differences}


_MEANING = (
    f"{title('ratio')}: Of an arm in the second run to itself in the first: exp of the difference "
    "of the 20 % trimmed means of the logarithms of samples, with a 99 % symmetric studentised "
    "bootstrap interval; samples of two runs are not paired."
)


def compare_records(a: Record, b: Record) -> list[dict[str, Any]]:
    """For each workload, arm and metric that both have: B's speed relative to A's.

    Nothing pairs samples of two runs, so the intervals are wider than within one run, and what
    the machine did in between is in the ratio.

    Raises:
        RequestError: they are of different kinds, or have nothing in common.
    """
    if a["kind"] != b["kind"]:
        raise RequestError(
            f"The first is a {a['kind']}, the second a {b['kind']}: they have no figures in common."
        )
    metrics: tuple[Metric, ...] = (CALL,) if a["kind"] == "kernel" else COMPARED
    others = {_key(c): c for c in b["cells"] if c["valid"]}
    found = []
    for cell in a["cells"]:
        other = others.get(_key(cell))
        if other is None or not cell["valid"] or cell["control_of"] is not None:
            continue
        for metric in metrics:
            values = _figures(cell, metric.name), _figures(other, metric.name)
            if not all(values):
                continue
            ratio = independent_ratio(*values, smaller_is_better=metric.smaller_is_better)
            found.append(
                {
                    "workload": cell["workload"],
                    "arm": cell["arm"],
                    "metric": metric.name,
                    "ratio": None if ratio is None else ratio.ratio,
                    "low": None if ratio is None else ratio.low,
                    "high": None if ratio is None else ratio.high,
                    "verdict": verdict(ratio),
                }
            )
    if not found:
        raise RequestError(
            "The two have no workload and arm in common that both measured.",
            "Measure both with the same --context, --batch, --output-tokens and arms.",
        )
    return found


def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["workload"], cell["output_tokens"], cell["arm"]


def _figures(cell: dict[str, Any], metric: str) -> list[float]:
    held = Cell(Arm(cell["arm"], cell["kind"]), samples=cell["samples"])
    return held.figures(metric)


def different_facts(a: Record, b: Record) -> list[str]:
    """Sentences: in what, beyond chance, the two runs differ."""
    found = []
    for fact in _FACTS:
        mine, theirs = a["provenance"].get(fact) or {}, b["provenance"].get(fact) or {}
        names = [k for k in mine | theirs if mine.get(k) != theirs.get(k)]
        for name in names:
            found.append(
                f"{fact} {name}: {_short(mine.get(name))}, then {_short(theirs.get(name))}."
            )
    return found


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
