"""Two records side by side: their ratios with intervals."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pamx.bench.charts.style import (
    COLOURS,
    INK,
    NEUTRAL,
    SMALL,
    arm_name,
    dress,
    few_ticks,
    plain_text,
)
from pamx.bench.compare import Comparison
from pamx.bench.definitions import title
from pamx.bench.metrics import BY_NAME
from pamx.bench.statistics import FASTER, FEWEST_WITH_RATIO, SLOWER
from pamx.bench.words import IN_TABLES, comparison_words
from pamx.errors import PamxError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def comparison_figure(found: Comparison) -> Figure:
    """Two records side by side: a point with its interval for each ratio, a panel a figure.

    Raises:
        PamxError: there is no ratio to draw.
    """
    ratios = [
        c
        for c in found.ratios
        if c["ratio"] is not None
        and c["samples"] >= FEWEST_WITH_RATIO
        and BY_NAME[c["metric"]] in IN_TABLES
    ]
    if not ratios:
        raise PamxError("There is no ratio to draw.", "A ratio needs two samples in each run.")
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(c["metric"] for c in ratios))
    rows = list(dict.fromkeys((c["workload"], c["arm"]) for c in ratios))
    size = 3.3 * len(metrics) + 2, 0.45 * len(rows) + 1.9
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        mine = [c for c in ratios if c["metric"] == metric]
        _ratios(axes, mine, [rows.index((c["workload"], c["arm"])) for c in mine])
        axes.set_title(title(metric))
        dress(axes)
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(rows)), [f"{plain_text(w)}, {arm_name(arm)}" for w, arm in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.7)
    heading = textwrap.fill(found.heading(), int(12 * size[0]))
    figure.suptitle(heading, fontsize=11, color=INK)
    runs = zip("AB", found.names, found.runs, strict=True)
    said = "\n".join(plain_text(f"{letter}: {name}: {run}") for letter, name, run in runs)
    figure.supxlabel(f"{said}\nBars: 99 % intervals.", fontsize=SMALL, color=INK)
    return figure


def _ratios(axes: Axes, ratios: list[dict[str, Any]], places: list[int]) -> None:
    """On a logarithmic axis, where twice and half are as far from 1."""
    axes.set_xscale("log")
    ends = [
        v
        for c in ratios
        for v in (
            c["ratio"],
            max(c["low"] or 1, c["ratio"] / 4),
            min(c["high"] or 1, 4 * c["ratio"]),
        )
    ]
    reach = max(1.1, *ends, *(1 / v for v in ends)) ** 1.25
    for c, place in zip(ratios, places, strict=True):
        low, high = (c["low"] or c["ratio"], c["high"] or c["ratio"])
        bar = [[c["ratio"] - max(low, 1 / reach)], [min(high, reach) - c["ratio"]]]
        colour, marker = {FASTER: (COLOURS[0], ">"), SLOWER: (COLOURS[1], "<")}.get(
            c["verdict"], (NEUTRAL, "o")
        )
        axes.errorbar([c["ratio"]], [place], xerr=bar, fmt=marker, color=colour, capsize=3, ms=5)
        axes.annotate(
            comparison_words(c),
            (1, place),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL - 1,
            color=INK,
        )
    axes.axvline(1, color=NEUTRAL, lw=0.8, ls="--", zorder=0)
    axes.set_xlim(1 / reach, reach)
    few_ticks(axes.xaxis)
