"""From measured cells to the parts of a record: figures, comparisons, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pamx.bench.definitions import title
from pamx.bench.measure import MOST_ROUNDS, Cell, drifting, narrow, timings
from pamx.bench.metrics import COMPARED, OF_CALLS, OF_REQUESTS, Metric
from pamx.bench.slo import goodput
from pamx.bench.statistics import (
    FASTER,
    FEWEST,
    SLOWER,
    Ratio,
    equality_margin,
    paired_ratio,
    summarise,
    typical,
    verdict,
)
from pamx.bench.timing import RequestTiming
from pamx.bench.workload import Workload
from pamx.sizes import counted


def cell_record(cell: Cell, workload: Workload, limits: Mapping[str, float]) -> dict[str, Any]:
    """An arm's cell: its figures are of its own samples, and none of its control's.

    Args:
        cell: What was measured.
        limits: For goodput, in seconds; empty for none.
    """
    samples = cell.samples
    valid = not cell.invalid and bool(samples)
    return {
        "workload": workload.id,
        "context": workload.context,
        "batch": workload.batch,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "arm": cell.arm.id,
        "kind": cell.arm.kind,
        "settings": cell.arm.settings,
        "control_of": cell.arm.control_of,
        "valid": valid,
        "why_invalid": cell.invalid or ("" if valid else "it was not measured."),
        "failed": cell.failed,
        "dispatch": cell.told.get("dispatch"),
        "outputs": cell.outputs,
        "samples_with_other_outputs": cell.other_outputs,
        "pages": cell.told.get("pages"),
        "pool_bytes": cell.told.get("pool_bytes"),
        "peak_memory_bytes": _peak([cell.told, *samples]),
        "peak_memory_of": cell.told.get("peak_memory_of"),
        "figures": figures(samples) if valid else {},
        "requests": request_summaries([timings(s) for s in samples]) if valid else {},
        "goodput": _goodput(samples, limits) if valid and limits else None,
        "samples": cell.samples,
    }


def figures(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By metric: the typical figure of a sample, its interval, the number of samples."""
    found = {}
    for metric in (*OF_REQUESTS, *OF_CALLS):
        values = [s["figures"][metric.name] for s in samples if metric.name in s["figures"]]
        if not values:
            continue
        middle = typical(values)
        assert middle is not None
        found[metric.name] = {
            "typical": middle.value,
            "low": middle.low if middle.bounded else None,
            "high": middle.high if middle.bounded else None,
            "samples": len(values),
        }
    return found


def request_summaries(samples: Sequence[Sequence[RequestTiming]]) -> dict[str, Any]:
    """Percentiles over all requests of all samples, and over all gaps."""
    requests = [r for sample in samples for r in sample]
    pooled = {
        "ttft": [r.ttft for r in requests],
        "tpot": [r.tpot for r in requests if r.tpot is not None],
        "e2e": [r.e2e for r in requests],
        "itl": [gap for r in requests for gap in r.gaps],
    }
    return {name: asdict(summarise(values)) for name, values in pooled.items() if values}


def _goodput(samples: Sequence[dict[str, Any]], limits: Mapping[str, float]) -> float:
    rates = [goodput(timings(s), limits) for s in samples]
    return sum(rates) / len(rates)


def _peak(samples: Sequence[dict[str, Any]]) -> int | None:
    peaks = [p for s in samples if (p := s.get("peak_memory_bytes")) is not None]
    return max(peaks, default=None)


def comparison_records(
    cells: Sequence[Cell],
    workload: Workload,
    precision: float,
    metrics: Sequence[Metric] = COMPARED,
) -> list[dict[str, Any]]:
    """Every valid arm against the first valid one.

    Args:
        precision: That the run was asked for, which says what counts as no difference.
    """
    valid = [c for c in cells if not c.invalid and c.arm.kind != "machine"]
    found = []
    for base, other in zip(valid[:1] * len(valid), valid[1:], strict=False):
        for metric in metrics:
            values = base.figures(metric.name), other.figures(metric.name)
            if not all(values):
                continue
            ratio = paired_ratio(*values, smaller_is_better=metric.smaller_is_better)
            assert ratio is not None
            found.append(
                {
                    "workload": workload.id,
                    "arm": other.arm.id,
                    "base": base.arm.id,
                    "control": other.arm.control_of is not None,
                    "metric": metric.name,
                    **ratio_fields(ratio, equality_margin(precision)),
                }
            )
    return found


def ratio_fields(found: Ratio, margin: float) -> dict[str, Any]:
    """A comparison's figures and its verdict."""
    return {
        "ratio": found.ratio,
        "low": found.low if found.bounded else None,
        "high": found.high if found.bounded else None,
        "pairs": found.pairs,
        "margin": margin,
        "verdict": verdict(found, margin),
    }


def imprecise(
    cells: Sequence[Cell],
    workload: Workload,
    precision: float,
    decisive: Sequence[Metric],
    most_rounds: int = MOST_ROUNDS,
) -> list[str]:
    """A sentence if the measurement ended before its intervals were narrow enough, and why."""
    able = [c for c in cells if c.arm.kind != "machine" and not c.invalid]
    wide = [m.title for m in decisive if not narrow(able, (m,), precision)]
    if not wide:
        return []
    if (count := min(len(c.samples) for c in able)) < FEWEST:
        return [
            f"{workload.id}: {counted(count, 'sample')} of each arm fitted into the time, and a "
            f"verdict needs {FEWEST}: a longer --time brings them."
        ]
    what = f"within {precision:.1%} ({', '.join(wide)})"
    if count >= 2 * most_rounds:
        return [
            f"{workload.id}: intervals were not {what} after {count} samples of each arm, the most "
            "that are taken whatever the time: a quieter machine, or a --precision that it allows."
        ]
    return [
        f"{workload.id}: the time was over before intervals were {what}: a longer --time narrows "
        "them."
    ]


def measurement_warnings(
    cells: Sequence[Cell],
    comparisons: Sequence[dict[str, Any]],
    workload: Workload,
    drifts: str = "e2e",
) -> list[str]:
    """Sentences about a workload that a reader must know before the figures."""
    found = []
    if (change := drifting(cells[0], drifts)) is not None:
        found.append(
            f"{workload.id}: {cells[0].arm.id} became {abs(change):.0%} "
            f"{'slower' if change > 0 else 'faster'} in the course of the measurement."
        )
    for comparison in comparisons:
        if comparison["control"] and comparison["verdict"] in (FASTER, SLOWER):
            found.append(
                f"{workload.id}: two equal arms differ in {title(comparison['metric'])} "
                f"({comparison['ratio']:.2f}x): do not trust its other verdicts."
            )
    for cell in cells:
        if cell.other_outputs:
            found.append(
                f"{workload.id}: {cell.arm.id} gave other tokens than at first in "
                f"{cell.other_outputs} of {len(cell.samples)} samples."
            )
    return found
