"""What both kinds of panels have in common: their metrics, and the note below them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pamx.bench.charts.style import INK, SMALL, plain_text
from pamx.bench.metrics import BANDWIDTH, CALL, OUTPUT, TPOT, TTFT, Metric
from pamx.bench.record import Record
from pamx.bench.words import load_of_others, missing
from pamx.bench.workload import CONTROL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BATCHES = 6
_CHARACTERS_AN_INCH = 13  # of small text


def drawn_metrics(record: Record) -> tuple[Metric, ...]:
    return (CALL, BANDWIDTH) if record["kind"] == "kernel" else (TTFT, TPOT, OUTPUT)


def note_below(
    figure: Figure, record: Record, cells: Sequence[dict[str, Any]], metrics: Sequence[Metric]
) -> None:
    """What points and bars are, what disturbed them, and what is not there."""
    said = "Points: typical figures of a sample."
    if any(c["figures"].get(m.name, {}).get("low") is not None for c in cells for m in metrics):
        said += " Bars: their 95 % intervals."
    else:
        said += " No intervals: fewer than 6 samples."
    if any(line.get_markerfacecolor() == "none" for axes in figure.axes for line in axes.lines):
        said += " Open triangles: an interval goes on there."
    if any(c["arm"] == CONTROL for c in cells):
        said += " Control: the first arm once more; equal arms lie so far apart."
    if busy := load_of_others(record, {c["workload"] for c in cells}):
        said += f"\n{busy[0].upper()}{busy[1:]} meanwhile."
    if not record["complete"]:
        said += f"\nNot complete: {plain_text(missing(record))}."
    width = int(_CHARACTERS_AN_INCH * figure.get_figwidth())
    said = "\n".join(textwrap.fill(line, width) for line in said.splitlines())
    figure.supxlabel(said, fontsize=SMALL, color=INK)
