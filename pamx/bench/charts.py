"""The charts of a record: figures against context, or by arm where there is one context, and which
arm is best where. Needs matplotlib.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pamx.bench.best import Best, best
from pamx.bench.compare import Comparison
from pamx.bench.definitions import title
from pamx.bench.measure import timings
from pamx.bench.metrics import BANDWIDTH, BY_NAME, CALL, OUTPUT, TPOT, TTFT, Metric
from pamx.bench.plain import visible
from pamx.bench.record import Record
from pamx.bench.statistics import (
    FASTER,
    FEWEST,
    FEWEST_WITH_RATIO,
    SLOWER,
    TOO_FEW,
    equality_margin,
)
from pamx.bench.words import (
    IN_TABLES,
    OTHER_ANSWERS,
    answers_mark,
    comparison_words,
    load_of_others,
    machine,
    metric_spread,
    missing,
    ratio_spread,
    subject,
)
from pamx.bench.workload import CONTROL
from pamx.errors import PamxError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Text, axes and grids; a page replaces it by the colour of its own text.
INK = "#222222"
# M. Okabe and K. Ito's colours without those that are faint on white: told apart by everyone.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = "os^vDPX*"
_NEUTRAL = "#888888"
_MOST_BATCHES = 6
_LONGEST_NAME = 30
# Arms further apart than this on one workload share a logarithmic axis.
_FAR = 5.0
# An interval that reaches beyond so many times the largest figure is cut off, and marked.
_BEYOND = 2.0
_SMALL, _NORMAL = 8, 9
_CHARACTERS_AN_INCH = 13  # of small text
_SMALL_TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": _SMALL - 1, "color": INK}


def record_figure(record: Record) -> Figure:
    """All charts of a record.

    Raises:
        PamxError: it has no figures to draw.
    """
    cells = _drawn(record)
    if not cells:
        raise PamxError("There is no valid figure to draw.", "See the report for the reasons.")
    if record["kind"] == "replay":
        figure = _replay_figure([c for c in cells if c["arm"] != CONTROL])
    elif len({c["context"] for c in cells}) == 1:
        figure = _by_arm(record, cells)
    else:
        figure = _by_context(record, cells)
    heading = f"{subject(record)}, on {machine(record)}"
    figure.suptitle(_plain(heading), fontsize=11, color=INK)
    return figure


def _drawn(record: Record) -> list[dict[str, Any]]:
    """Valid cells of arms, and controls last; nothing of what the machine does by itself."""
    cells = [c for c in record["cells"] if c["valid"] and c["kind"] != "machine"]
    arms = [c for c in cells if c["control_of"] is None]
    return arms + [c | {"arm": CONTROL} for c in cells if c["control_of"] is not None and arms]


def _labels(cells: Sequence[dict[str, Any]], arms: Sequence[str]) -> list[str]:
    """Arms' names, marked where their outputs are not those of the first."""
    return [_marked(arm, [c["outputs"] for c in cells if c["arm"] == arm]) for arm in arms]


def _marked(arm: str, outputs: Sequence[dict[str, Any] | None]) -> str:
    marks = [mark for found in outputs if (mark := answers_mark(found))]
    # That which computes something else says more than a rounding.
    mark = min(marks, key=lambda m: m != OTHER_ANSWERS, default="")
    return f"{_name(arm)} ({mark})" if mark else _name(arm)


def _metrics(record: Record) -> tuple[Metric, ...]:
    return (CALL, BANDWIDTH) if record["kind"] == "kernel" else (TTFT, TPOT, OUTPUT)


def _plain(text: str, most: int = 200) -> str:
    """Text that matplotlib shows as it is, and not as mathematics."""
    text = visible(text)
    return (text if len(text) <= most else f"{text[: most - 1]}…").replace("$", r"\$")


def _name(arm: str) -> str:
    return _plain(arm, _LONGEST_NAME)


def _colour(number: int, arm: str) -> str:
    return _NEUTRAL if arm == CONTROL else _COLOURS[number % len(_COLOURS)]


def _style(number: int, arm: str) -> dict[str, Any]:
    """A control is thin and grey: it shows how far equal arms lie apart."""
    control = arm == CONTROL
    return {
        "color": _colour(number, arm),
        "marker": _MARKERS[number % len(_MARKERS)],
        "ms": 3 if control else 5,
        "capsize": 3,
        "lw": 0.6 if control else 1.2,
        "elinewidth": 0.6 if control else 1.0,
    }


def _dressed(axes: Axes) -> None:
    """One ink, a light grid, no box."""
    axes.set_facecolor("none")
    axes.grid(color=_NEUTRAL, alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=_SMALL, which="both")
    for place, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(place in ("left", "bottom"))
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
        text.set_fontsize(_NORMAL)


def _count(figure: dict[str, Any]) -> str:
    """Of how few samples a figure is, that has no interval for it."""
    return f"n={figure['samples']}" if figure["samples"] < FEWEST else ""


def _note(
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
        said += f"\nNot complete: {_plain(missing(record))}."
    width = int(_CHARACTERS_AN_INCH * figure.get_figwidth())
    said = "\n".join(textwrap.fill(line, width) for line in said.splitlines())
    figure.supxlabel(said, fontsize=_SMALL, color=INK)


# ---- scales --------------------------------------------------------------------------------------


def _unit(cells: Sequence[dict[str, Any]], metric: Metric) -> tuple[str, float]:
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


def _headed(metric: Metric, unit: str) -> str:
    return f"{metric.title}, {unit}" if unit else metric.title


def _is_far(cells: Sequence[dict[str, Any]], metric: Metric) -> bool:
    """Whether arms lie so far apart on a workload that a common linear axis would hide them."""
    by_workload: dict[str, list[float]] = {}
    for cell in cells:
        if metric.name in cell["figures"]:
            by_workload.setdefault(cell["workload"], []).append(_typical(cell, metric))
    return any(max(v) > _FAR * min(v) for v in by_workload.values())


def _ends(cells: Sequence[dict[str, Any]], metric: Metric, far: bool) -> tuple[float, float]:
    """The axis's ends: all figures and intervals lie inside, but for absurdly long ones."""
    figures = [c["figures"][metric.name] for c in cells]
    top = max(f["typical"] for f in figures)
    bottom = min(f["typical"] for f in figures)
    high = max(min(f["high"] or f["typical"], _BEYOND * top) for f in figures)
    low = min(max(f["low"] or f["typical"], bottom / _BEYOND) for f in figures)
    return (low / 1.3, high * 1.3) if far else (0.0, 1.12 * high)


def _cut(figure: dict[str, Any], ends: tuple[float, float]) -> bool:
    """Whether an interval goes on where the axis ends."""
    return figure["high"] is not None and figure["high"] > ends[1]


def _reach(
    figures: Sequence[dict[str, Any]], scale: float, ends: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """How far intervals reach below and above their figures, inside of an axis."""
    below = [f["typical"] - max(f["low"] or f["typical"], ends[0]) for f in figures]
    above = [min(f["high"] or f["typical"], ends[1]) - f["typical"] for f in figures]
    return [scale * v for v in below], [scale * v for v in above]


# ---- against context -----------------------------------------------------------------------------


def _by_context(record: Record, cells: list[dict[str, Any]]) -> Figure:
    """A row of panels a metric, a column a batch, a line an arm; and the map of the best."""
    from matplotlib.figure import Figure

    batches = sorted({c["batch"] for c in cells})[:_MOST_BATCHES]
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    metrics = [m for m in _metrics(record) if any(m.name in c["figures"] for c in cells)]
    mapped = len([arm for arm in arms if arm != CONTROL]) > 1
    heights = [2.4] * len(metrics) + [_map_height(batches)] * mapped
    size = max(6.4, 3.6 * len(batches) + 2.2), sum(heights) + 1.1
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(heights), len(batches), height_ratios=heights)
    for row, metric in enumerate(metrics):
        unit, scale = _unit(cells, metric)
        far = _is_far(cells, metric)
        for column, batch in enumerate(batches):
            axes = figure.add_subplot(grid[row, column])
            mine = [c for c in cells if c["batch"] == batch and metric.name in c["figures"]]
            if mine:
                _lines(axes, mine, arms, (metric, scale, far), label=column == len(batches) - 1)
            if row == 0:
                axes.set_title(f"batch {batch:,}")
            if column == 0:
                axes.set_ylabel(_headed(metric, unit) + (", log scale" if far else ""))
            if row == len(metrics) - 1:
                axes.set_xlabel("context, tokens")
            _dressed(axes)
    if mapped:
        _map(figure.add_subplot(grid[-1, :]), record, cells, arms)
    _note(figure, record, cells, metrics)
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
    ends = _ends(cells, metric, far)
    axes.set_yscale("log" if far else "linear")
    last: dict[int, float] = {}
    for number, (arm, beside) in enumerate(zip(arms, _dodge(contexts, len(arms)), strict=True)):
        mine = sorted((c for c in cells if c["arm"] == arm), key=lambda c: int(c["context"]))
        if not mine:
            continue
        figures = [c["figures"][metric.name] for c in mine]
        x = [math.log2(c["context"]) + beside for c in mine]
        y = [f["typical"] * scale for f in figures]
        reach = _reach(figures, scale, ends)
        style = _style(number, arm)
        for at, height, figure in zip(x, y, figures, strict=True):
            if figure["samples"] < FEWEST:
                axes.annotate(_count(figure), (at, height), (4, 4), **_SMALL_TEXT)
        axes.errorbar(x, y, reach, label=_name(arm), clip_on=False, zorder=3, **style)
        for at, figure in zip(x, figures, strict=True):
            if _cut(figure, ends):
                end = [at], [ends[1] * scale]
                axes.plot(*end, marker="^", color=style["color"], mfc="none", clip_on=False)
        last[number] = y[-1]
    axes.set_ylim(ends[0] * scale, ends[1] * scale)
    if far:
        _few_ticks(axes.yaxis)
    axes.set_xticks([math.log2(c) for c in contexts], [f"{c:,}" for c in contexts])
    if label:
        _direct_labels(axes, arms, _labels(cells, arms), last)


def _few_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


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
            color=_colour(number, arms[number]),
            fontsize=_SMALL,
            va="center",
        )


# ---- by arm --------------------------------------------------------------------------------------


def _by_arm(record: Record, cells: list[dict[str, Any]]) -> Figure:
    """One context: a panel a metric and batch, in it a point an arm, with its figure beside it."""
    from matplotlib.figure import Figure

    batches = sorted({c["batch"] for c in cells})[:_MOST_BATCHES]
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    metrics = [m for m in _metrics(record) if any(m.name in c["figures"] for c in cells)]
    mapped = len([arm for arm in arms if arm != CONTROL]) > 1 and len(batches) > 1
    height = 0.42 * len(arms) + 0.75
    heights = [height] * len(batches) + [_map_height(batches)] * mapped
    figure = Figure(figsize=(3.1 * len(metrics) + 1.8, sum(heights) + 1.0), layout="constrained")
    grid = figure.add_gridspec(len(heights), len(metrics), height_ratios=heights)
    context = cells[0]["context"]
    for row, batch in enumerate(batches):
        for column, metric in enumerate(metrics):
            far = _is_far(cells, metric)
            axes = figure.add_subplot(grid[row, column])
            mine = [c for c in cells if c["batch"] == batch and metric.name in c["figures"]]
            unit, scale = _unit(cells, metric)
            if mine:
                _points(axes, mine, arms, (metric, scale, far))
            axes.set_ylim(len(arms) - 0.5, -0.7)
            axes.set_yticks(range(len(arms)), _labels(mine, arms) if column == 0 else [])
            if row == 0:
                axes.set_title(_headed(metric, unit) + (", log scale" if far else ""))
            if column == 0:
                axes.set_ylabel(f"{context:,} x {batch:,}")
            _dressed(axes)
            axes.grid(visible=False, axis="y")
    if mapped:
        _map(figure.add_subplot(grid[-1, :]), record, cells, arms)
    _note(figure, record, cells, metrics)
    return figure


def _points(
    axes: Axes, cells: list[dict[str, Any]], arms: list[str], how: tuple[Metric, float, bool]
) -> None:
    """As `_lines`: a point an arm."""
    metric, scale, far = how
    ends = _ends(cells, metric, far)
    axes.set_xscale("log" if far else "linear")
    for cell in cells:
        figure, number = cell["figures"][metric.name], arms.index(cell["arm"])
        reach = _reach([figure], scale, ends)
        x = figure["typical"] * scale
        style = _style(number, cell["arm"])
        axes.errorbar([x], [number], xerr=reach, zorder=3, clip_on=False, **style)
        if _cut(figure, ends):
            end = [ends[1] * scale], [number]
            axes.plot(*end, marker=">", color=style["color"], mfc="none", clip_on=False)
        axes.annotate(
            _plain(", ".join(w for w in (metric_spread(metric, figure), _count(figure)) if w)),
            (x, number),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=_SMALL,
            color=INK,
        )
    # Room for the words at a point near an end.
    low, high = (ends[0] / 1.5, ends[1] * 1.5) if far else (ends[0], ends[1] * 1.3)
    axes.set_xlim(low * scale, high * scale)
    if far:
        _few_ticks(axes.xaxis)


# ---- the best ------------------------------------------------------------------------------------


def _map_height(batches: list[int]) -> float:
    return 0.8 * len(batches) + 0.6


def _map(axes: Axes, record: Record, cells: list[dict[str, Any]], arms: list[str]) -> None:
    """Context by batch: the arm with the best figure, or which ones may be."""
    from matplotlib.colors import to_rgba

    metric = CALL if record["kind"] == "kernel" else OUTPUT
    margin = equality_margin(record["plan"].get("precision", 0.0))
    contexts = sorted({c["context"] for c in cells})
    batches = sorted({c["batch"] for c in cells})
    colours = [[to_rgba(_NEUTRAL, 0.0)] * len(contexts) for _ in batches]
    for y, batch in enumerate(batches):
        for x, context in enumerate(contexts):
            here = [c for c in cells if (c["context"], c["batch"]) == (context, batch)]
            found = best([c for c in here if c["arm"] != CONTROL], metric, margin)
            if found is None:
                continue
            alone = found.found == FASTER
            colour = _COLOURS[arms.index(found.arm) % len(_COLOURS)] if alone else _NEUTRAL
            colours[y][x] = to_rgba(colour, 0.35 if alone else 0.15)
            words = best_words(found, {c["arm"]: c["outputs"] for c in here})
            axes.text(x, y, words, ha="center", va="center", fontsize=_SMALL, color=INK)
    axes.imshow(colours, aspect="auto")
    axes.set_xticks(range(len(contexts)), [f"{c:,}" for c in contexts])
    axes.set_yticks(range(len(batches)), [f"{b:,}" for b in batches])
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("batch")
    axes.set_title(f"Best arm by {title(metric.name)}")
    _dressed(axes)
    axes.grid(visible=False)
    for number in range(1, len(contexts)):
        axes.axvline(number - 0.5, color=INK, lw=0.5)
    for number in range(1, len(batches)):
        axes.axhline(number - 0.5, color=INK, lw=0.5)


def best_words(found: Best, outputs: Mapping[str, dict[str, Any] | None] | None = None) -> str:
    """What a field of the map says.

    Args:
        found: Of `best`.
        outputs: By arm, those of its cell.
    """
    names = [_marked(arm, [(outputs or {}).get(arm)]) for arm in (found.arm, *found.rivals)]
    if found.found == FASTER:
        if (lead := found.lead) is None:
            return names[0]
        ends = (lead.low, lead.high) if lead.bounded else (None, None)
        spread = ratio_spread({"ratio": lead.ratio, "low": ends[0], "high": ends[1]})
        return f"{names[0]}\n{spread} faster\nthan the next"
    if found.found == TOO_FEW:
        return found.found
    shown = "\n".join(names[:3] + [f"and {len(names) - 3} more"] * (len(names) > 3))
    return f"no arm is faster for sure\n({found.found}):\n{shown}"


# ---- replays and comparisons ---------------------------------------------------------------------


def _replay_figure(cells: list[dict[str, Any]]) -> Figure:
    """How TTFT and E2E are distributed, and TTFT over the time of arrival."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    first, second, over_time = figure.subplots(1, 3)
    for number, cell in enumerate(cells):
        requests = timings(cell["samples"][0])
        colour = _COLOURS[number % len(_COLOURS)]
        for axes, values in (
            (first, sorted(r.ttft for r in requests)),
            (second, sorted(r.e2e for r in requests)),
        ):
            shares = [100 * i / len(values) for i in range(len(values) + 1)]
            axes.step([0, *values], shares, where="post", color=colour, label=_name(cell["arm"]))
        marker = _MARKERS[number % len(_MARKERS)]
        x, y = [r.submitted for r in requests], [r.ttft for r in requests]
        over_time.plot(x, y, marker, ms=4, color=colour, clip_on=False)
    for axes, label, heading in (
        (first, "s", "Requests with a TTFT up to, %"),
        (second, "s", "Requests with an E2E up to, %"),
        (over_time, "arrival, s", "TTFT, s"),
    ):
        axes.set_title(heading)
        axes.set_xlabel(label)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        _dressed(axes)
    first.legend(fontsize=_SMALL, labelcolor=INK, frameon=False, loc="lower right")
    return figure


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
        _dressed(axes)
        axes.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(rows)), [f"{_plain(w)}, {_name(arm)}" for w, arm in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.7)
    heading = textwrap.fill(found.heading(), int(12 * size[0]))
    figure.suptitle(heading, fontsize=11, color=INK)
    runs = zip("AB", found.names, found.runs, strict=True)
    said = "\n".join(_plain(f"{letter}: {name}: {run}") for letter, name, run in runs)
    figure.supxlabel(f"{said}\nBars: 99 % intervals.", fontsize=_SMALL, color=INK)
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
        colour, marker = {FASTER: (_COLOURS[0], ">"), SLOWER: (_COLOURS[1], "<")}.get(
            c["verdict"], (_NEUTRAL, "o")
        )
        axes.errorbar([c["ratio"]], [place], xerr=bar, fmt=marker, color=colour, capsize=3, ms=5)
        axes.annotate(
            comparison_words(c),
            (1, place),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=_SMALL - 1,
            color=INK,
        )
    axes.axvline(1, color=_NEUTRAL, lw=0.8, ls="--", zorder=0)
    axes.set_xlim(1 / reach, reach)
    _few_ticks(axes.xaxis)
