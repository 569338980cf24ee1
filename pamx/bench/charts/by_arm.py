"""Figures of one context: a panel a metric and batch, a point an arm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamx.bench.charts.best_map import draw_map, map_height
from pamx.bench.charts.frame import MOST_BATCHES, drawn_metrics, note_below
from pamx.bench.charts.scales import axis_ends, heading_of, is_cut, is_far, reach_of, unit_of
from pamx.bench.charts.style import (
    INK,
    SMALL,
    arm_labels,
    count_mark,
    dress,
    few_ticks,
    line_style,
    plain_text,
)
from pamx.bench.metrics import Metric
from pamx.bench.record import Record
from pamx.bench.words import metric_spread
from pamx.bench.workload import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def by_arm_figure(record: Record, cells: list[dict[str, Any]]) -> Figure:
    """One context: a panel a metric and batch, in it a point an arm, with its figure beside it."""
    from matplotlib.figure import Figure

    batches = sorted({c["batch"] for c in cells})[:MOST_BATCHES]
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    metrics = [m for m in drawn_metrics(record) if any(m.name in c["figures"] for c in cells)]
    mapped = len([arm for arm in arms if arm != CONTROL]) > 1 and len(batches) > 1
    height = 0.42 * len(arms) + 0.75
    heights = [height] * len(batches) + [map_height(batches)] * mapped
    figure = Figure(figsize=(3.1 * len(metrics) + 1.8, sum(heights) + 1.0), layout="constrained")
    grid = figure.add_gridspec(len(heights), len(metrics), height_ratios=heights)
    context = cells[0]["context"]
    for row, batch in enumerate(batches):
        for column, metric in enumerate(metrics):
            far = is_far(cells, metric)
            axes = figure.add_subplot(grid[row, column])
            mine = [c for c in cells if c["batch"] == batch and metric.name in c["figures"]]
            unit, scale = unit_of(cells, metric)
            if mine:
                _points(axes, mine, arms, (metric, scale, far))
            axes.set_ylim(len(arms) - 0.5, -0.7)
            axes.set_yticks(range(len(arms)), arm_labels(mine, arms) if column == 0 else [])
            if row == 0:
                axes.set_title(heading_of(metric, unit) + (", log scale" if far else ""))
            if column == 0:
                axes.set_ylabel(f"{context:,} x {batch:,}")
            dress(axes)
            axes.grid(visible=False, axis="y")
    if mapped:
        draw_map(figure.add_subplot(grid[-1, :]), record, cells, arms)
    note_below(figure, record, cells, metrics)
    return figure


def _points(
    axes: Axes, cells: list[dict[str, Any]], arms: list[str], how: tuple[Metric, float, bool]
) -> None:
    """As `_lines`: a point an arm."""
    metric, scale, far = how
    ends = axis_ends(cells, metric, far)
    axes.set_xscale("log" if far else "linear")
    for cell in cells:
        figure, number = cell["figures"][metric.name], arms.index(cell["arm"])
        reach = reach_of([figure], scale, ends)
        x = figure["typical"] * scale
        style = line_style(number, cell["arm"])
        axes.errorbar([x], [number], xerr=reach, zorder=3, clip_on=False, **style)
        if is_cut(figure, ends):
            end = [ends[1] * scale], [number]
            axes.plot(*end, marker=">", color=style["color"], mfc="none", clip_on=False)
        axes.annotate(
            plain_text(
                ", ".join(w for w in (metric_spread(metric, figure), count_mark(figure)) if w)
            ),
            (x, number),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL,
            color=INK,
        )
    # Room for the words at a point near an end.
    low, high = (ends[0] / 1.5, ends[1] * 1.5) if far else (ends[0], ends[1] * 1.3)
    axes.set_xlim(low * scale, high * scale)
    if far:
        few_ticks(axes.xaxis)
