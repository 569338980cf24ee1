"""Figures against context: a panel a metric and batch, a line an arm."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from pamx.bench.charts.best_map import draw_map, map_height
from pamx.bench.charts.frame import MOST_BATCHES, drawn_metrics, note_below
from pamx.bench.charts.scales import axis_ends, heading_of, is_cut, is_far, reach_of, unit_of
from pamx.bench.charts.style import (
    SMALL,
    SMALL_TEXT,
    arm_labels,
    arm_name,
    colour_of,
    count_mark,
    dress,
    few_ticks,
    line_style,
)
from pamx.bench.metrics import Metric
from pamx.bench.record import Record
from pamx.bench.statistics import FEWEST
from pamx.bench.workload import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_context_figure(record: Record, cells: list[dict[str, Any]]) -> Figure:
    """A row of panels a metric, a column a batch, a line an arm; and the map of the best."""
    from matplotlib.figure import Figure

    batches = sorted({c["batch"] for c in cells})[:MOST_BATCHES]
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    metrics = [m for m in drawn_metrics(record) if any(m.name in c["figures"] for c in cells)]
    mapped = len([arm for arm in arms if arm != CONTROL]) > 1
    heights = [2.4] * len(metrics) + [map_height(batches)] * mapped
    size = max(6.4, 3.6 * len(batches) + 2.2), sum(heights) + 1.1
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(heights), len(batches), height_ratios=heights)
    for row, metric in enumerate(metrics):
        unit, scale = unit_of(cells, metric)
        far = is_far(cells, metric)
        for column, batch in enumerate(batches):
            axes = figure.add_subplot(grid[row, column])
            mine = [c for c in cells if c["batch"] == batch and metric.name in c["figures"]]
            if mine:
                _lines(axes, mine, arms, (metric, scale, far), label=column == len(batches) - 1)
            if row == 0:
                axes.set_title(f"batch {batch:,}")
            if column == 0:
                axes.set_ylabel(heading_of(metric, unit) + (", log scale" if far else ""))
            if row == len(metrics) - 1:
                axes.set_xlabel("context, tokens")
            dress(axes)
    if mapped:
        draw_map(figure.add_subplot(grid[-1, :]), record, cells, arms)
    note_below(figure, record, cells, metrics)
    return figure


def _lines(
    axes: Axes,
    cells: list[dict[str, Any]],
    arms: list[str],
    how: tuple[Metric, float, bool],
    *,
    label: bool,
) -> None:
    """One line an arm with its intervals, the arms a little beside each other.

    Args:
        how: The metric, what its values are multiplied by, and whether the axis is logarithmic.
    """
    metric, scale, far = how
    contexts = sorted({c["context"] for c in cells})
    ends = axis_ends(cells, metric, far)
    axes.set_yscale("log" if far else "linear")
    last: dict[int, float] = {}
    for number, (arm, beside) in enumerate(zip(arms, _dodge(contexts, len(arms)), strict=True)):
        mine = sorted((c for c in cells if c["arm"] == arm), key=lambda c: int(c["context"]))
        if not mine:
            continue
        figures = [c["figures"][metric.name] for c in mine]
        x = [math.log2(c["context"]) + beside for c in mine]
        y = [f["typical"] * scale for f in figures]
        reach = reach_of(figures, scale, ends)
        style = line_style(number, arm)
        for at, height, figure in zip(x, y, figures, strict=True):
            if figure["samples"] < FEWEST:
                axes.annotate(count_mark(figure), (at, height), (4, 4), **SMALL_TEXT)
        axes.errorbar(x, y, reach, label=arm_name(arm), clip_on=False, zorder=3, **style)
        for at, figure in zip(x, figures, strict=True):
            if is_cut(figure, ends):
                end = [at], [ends[1] * scale]
                axes.plot(*end, marker="^", color=style["color"], mfc="none", clip_on=False)
        last[number] = y[-1]
    axes.set_ylim(ends[0] * scale, ends[1] * scale)
    if far:
        few_ticks(axes.yaxis)
    axes.set_xticks([math.log2(c) for c in contexts], [f"{c:,}" for c in contexts])
    if label:
        _direct_labels(axes, arms, arm_labels(cells, arms), last)


def _dodge(contexts: list[int], count: int) -> list[float]:
    """How far beside its context, in doublings, each of `count` arms is drawn: never half way."""
    gaps = [math.log2(b / a) for a, b in itertools.pairwise(contexts)]
    step = min([0.05, *(gap / (2 * count) for gap in gaps)])
    return [step * (number - (count - 1) / 2) for number in range(count)]


def _direct_labels(axes: Axes, arms: list[str], labels: list[str], last: dict[int, float]) -> None:
    """Each arm's name beside the end of its line, moved apart where lines end together."""
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    wanted = {n: float(to_axes((axes.get_xlim()[1], y))[1]) for n, y in last.items()}
    gap = 0.095
    places: dict[int, float] = {}
    for number in sorted(wanted, key=lambda n: wanted[n]):
        floor = max(places.values(), default=-1.0) + gap
        places[number] = max(wanted[number], floor)
    over = max(0.0, max(places.values(), default=0.0) - 1.0)
    for number, place in places.items():
        axes.text(
            1.03,
            place - over,
            labels[number],
            transform=axes.transAxes,
            color=colour_of(number, arms[number]),
            fontsize=SMALL,
            va="center",
        )
