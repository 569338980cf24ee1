"""Plots of a record: TTFT and throughput against context, and which arm is best where.

matplotlib is an optional dependency, `pamx[plots]`.
"""

from __future__ import annotations

import html
import importlib.util
import io
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamx.bench.compare import Comparison
from pamx.bench.definitions import title
from pamx.bench.measure import timings
from pamx.bench.metrics import BANDWIDTH, CALL, OUTPUT, TPOT, TTFT
from pamx.bench.record import Record, write_whole
from pamx.bench.statistics import TOO_FEW
from pamx.bench.words import Table, definitions, headed_table, notes
from pamx.errors import PamxError, RequestError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (4.2, 3.2)  # inches
_MOST_BATCHES = 6
_MARKERS = "os^vDPX*"


def check_available() -> None:
    """Raises PamxError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PamxError(
            "--plot needs matplotlib, which is not installed.", "pip install 'pamx[plots]'"
        )


def draw(record: Record, path: Path) -> None:
    """Writes a .png, .svg, or an .html page that needs no other file.

    Raises:
        PamxError: matplotlib is missing, or the file cannot be written.
        RequestError: the record has no figures to draw.
    """
    check_available()
    _save(make_figure(record), path, lambda svg: page(record, svg))


def _save(figure: Figure, path: Path, paged: Callable[[str], str]) -> None:
    """Writes a figure in the format that the ending of `path` says.

    Args:
        paged: An HTML page around an SVG.
    """
    import matplotlib as mpl

    ending = path.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    # The same record gives the same file: no date, no random ids.
    with mpl.rc_context({"svg.hashsalt": "pamx", "svg.fonttype": "path"}):
        plain = "svg" if ending == "html" else ending
        metadata = {"Date": None} if plain == "svg" else {}
        figure.savefig(stream, format=plain, dpi=150, metadata=metadata)
    data = stream.getvalue()
    write_whole(path, paged(data.decode()) if ending == "html" else data)


def make_figure(record: Record) -> Figure:
    """Columns of panels, one for each batch, and a map where there are arms to choose from."""
    from matplotlib.figure import Figure

    cells = _cells(record)
    if not cells:
        raise RequestError("There is no valid figure to draw.", "See the report for the reasons.")
    if record["kind"] == "replay":
        return _replay_figure(cells)
    batches = sorted({c["batch"] for c in cells})[:_MOST_BATCHES]
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    rows = _rows(record)
    mapped = len(arms) > 1
    count = len(rows) + mapped
    figure = Figure(
        figsize=(_PANEL[0] * len(batches) + 0.8, _PANEL[1] * count), layout="constrained"
    )
    grid = figure.add_gridspec(count, len(batches))
    for column, batch in enumerate(batches):
        for row, (metric, heading, scale) in enumerate(rows):
            axes = figure.add_subplot(grid[row, column])
            _lines(axes, [c for c in cells if c["batch"] == batch], arms, metric, scale)
            axes.set_title(f"{heading}, batch {batch}", fontsize=10)
            if row == 0 and column == 0:
                axes.legend(fontsize=8)
    if mapped:
        decisive, _, _ = rows[-1]
        _map(figure.add_subplot(grid[-1, :]), record, cells, decisive)
    return figure


def _replay_figure(cells: list[dict[str, Any]]) -> Figure:
    """How TTFT and E2E are distributed, and TTFT over the time of arrival."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_PANEL[0] * 3, _PANEL[1]), layout="constrained")
    first, second, over_time = figure.subplots(1, 3)
    for number, cell in enumerate(cells):
        requests = timings(cell["samples"][0])
        for axes, values in (
            (first, sorted(r.ttft for r in requests)),
            (second, sorted(r.e2e for r in requests)),
        ):
            shares = [(i + 1) / len(values) for i in range(len(values))]
            axes.step(values, shares, where="post", color=f"C{number}", label=cell["arm"])
        x = [r.submitted for r in requests]
        over_time.plot(x, [r.ttft for r in requests], ".", color=f"C{number}")
    for axes, label, heading in (
        (first, "s", "Share of requests by TTFT"),
        (second, "s", "Share of requests by E2E"),
        (over_time, "arrival, s", "TTFT, s"),
    ):
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel(label, fontsize=9)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    first.legend(fontsize=8)
    return figure


def _rows(record: Record) -> list[tuple[str, str, float]]:
    """Metric, title, and what its values are multiplied by, of each row of panels."""
    if record["kind"] == "kernel":
        return [(CALL.name, f"{CALL.title}, ms", 1e3), (BANDWIDTH.name, "bandwidth, GB/s", 1e-9)]
    return [
        (TTFT.name, f"{TTFT.title}, s", 1.0),
        (TPOT.name, f"{TPOT.title}, ms", 1e3),
        (OUTPUT.name, OUTPUT.title, 1.0),
    ]


def _cells(record: Record) -> list[dict[str, Any]]:
    machine = ("machine",)
    return [
        c
        for c in record["cells"]
        if c["valid"] and c["control_of"] is None and c["kind"] not in machine
    ]


def _lines(
    axes: Axes, cells: list[dict[str, Any]], arms: list[str], metric: str, scale: float
) -> None:
    """One line an arm with its intervals, the arms a little beside each other."""
    contexts = sorted({c["context"] for c in cells})
    for number, (arm, beside) in enumerate(zip(arms, _dodge(contexts, len(arms)), strict=True)):
        points = sorted(
            (c["context"], c["figures"][metric])
            for c in cells
            if c["arm"] == arm and metric in c["figures"]
        )
        if not points:
            continue
        x = [math.log2(context) + beside for context, _ in points]
        y = [f["typical"] * scale for _, f in points]
        below = [v - _or(f["low"], f) * scale for v, (_, f) in zip(y, points, strict=True)]
        above = [_or(f["high"], f) * scale - v for v, (_, f) in zip(y, points, strict=True)]
        axes.errorbar(
            x,
            y,
            (below, above),
            label=arm,
            color=f"C{number}",
            marker=_MARKERS[number % len(_MARKERS)],
            ms=5,
            capsize=3,
            lw=1.2,
            elinewidth=0.8,
        )
    values = [c["figures"][metric]["typical"] for c in cells if metric in c["figures"]]
    highest = max(values, default=1.0)
    # An interval of few samples may be wide; it must not flatten the figures.
    axes.set_ylim(0, min(axes.get_ylim()[1], 1.6 * highest * scale))
    axes.set_xlabel("context, tokens", fontsize=9)
    axes.set_xticks([math.log2(c) for c in contexts], [f"{c:,}" for c in contexts], fontsize=8)
    if len(contexts) == 1:
        axes.set_xlim(math.log2(contexts[0]) - 0.5, math.log2(contexts[0]) + 0.5)
    axes.grid(alpha=0.3)


def _dodge(contexts: list[int], count: int) -> list[float]:
    """How far beside its context, in doublings, each of `count` arms is drawn: never half way."""
    gaps = [math.log2(b / a) for a, b in itertools.pairwise(contexts)]
    step = min([0.08, *(gap / (2 * count) for gap in gaps)])
    return [step * (number - (count - 1) / 2) for number in range(count)]


def _or(bound: float | None, figure: dict[str, Any]) -> float:
    return float(figure["typical"] if bound is None else bound)


def _map(axes: Axes, record: Record, cells: list[dict[str, Any]], metric: str) -> None:
    """Context by batch: the arm with the best figure, or that none was found to be best."""
    from matplotlib.colors import to_rgba

    contexts = sorted({c["context"] for c in cells})
    batches = sorted({c["batch"] for c in cells})
    arms = list(dict.fromkeys(c["arm"] for c in cells))
    colours = [[to_rgba("white")] * len(contexts) for _ in batches]
    for y, batch in enumerate(batches):
        for x, context in enumerate(contexts):
            found = [
                c
                for c in cells
                if (c["context"], c["batch"]) == (context, batch) and metric in c["figures"]
            ]
            if not found:
                continue
            best = max(found, key=lambda c: c["figures"][metric]["typical"])
            arm = best["arm"]
            lead = _lead(arm, _against_base(record, best["workload"], metric))
            colours[y][x] = to_rgba(f"C{arms.index(arm)}", 0.5) if lead else to_rgba("0.85")
            said = f"{arm}\n{lead}" if lead else _no_lead(record, best["workload"], metric)
            axes.text(x, y, said, ha="center", va="center", fontsize=8)
    axes.imshow(colours, aspect="auto")
    axes.set_xticks(range(len(contexts)), [f"{c:,}" for c in contexts], fontsize=8)
    axes.set_yticks(range(len(batches)), [str(b) for b in batches], fontsize=8)
    axes.set_xlabel("context, tokens", fontsize=9)
    axes.set_ylabel("batch", fontsize=9)
    axes.set_title(f"Best {title(metric)}", fontsize=10)


def _against_base(record: Record, workload: str, metric: str) -> dict[str, dict[str, Any]]:
    """Comparisons of a workload's arms, by arm."""
    compared = "call" if metric == "bandwidth" else metric
    return {
        c["arm"]: c
        for c in record["comparisons"]
        if c["workload"] == workload and c["metric"] == compared and not c["control"]
    }


def _lead(arm: str, ratios: dict[str, dict[str, Any]]) -> str:
    """How far the best arm leads, in words; "" if that may be chance."""
    if arm in ratios:
        mine = ratios[arm]
        return f"{mine['ratio']:.2f}x {mine['base']}" if mine["verdict"] == "faster" else ""
    slower = bool(ratios) and all(c["verdict"] == "slower" for c in ratios.values())
    return "all others are slower" if slower else ""


def _no_lead(record: Record, workload: str, metric: str) -> str:
    verdicts = {c["verdict"] for c in _against_base(record, workload, metric).values()}
    return TOO_FEW if TOO_FEW in verdicts or not verdicts else "no difference"


def draw_comparison(found: Comparison, path: Path) -> None:
    """Two records side by side: a point with its interval for each ratio, a panel a figure.

    Raises:
        PamxError, RequestError: as `draw`.
    """
    check_available()
    ratios = [c for c in found.ratios if c["ratio"] is not None]
    if not ratios:
        raise RequestError("There is no ratio to draw.", "Both runs have too few samples.")
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(c["metric"] for c in ratios))
    rows = list(dict.fromkeys((c["workload"], c["arm"]) for c in ratios))
    size = 2.6 * len(metrics) + 2, 0.35 * len(rows) + 1.2
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for c in ratios:
            if c["metric"] != metric:
                continue
            reach = [[c["ratio"] - c["low"]], [c["high"] - c["ratio"]]]
            colour = {"faster": "C2", "slower": "C3"}.get(c["verdict"], "0.5")
            place = rows.index((c["workload"], c["arm"]))
            axes.errorbar([c["ratio"]], [place], xerr=reach, fmt="o", color=colour, capsize=3)
        axes.axvline(1, color="0.3", lw=0.8)
        axes.set_title(title(metric), fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(rows)), [f"{w}, {arm}" for w, arm in rows], fontsize=8)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    first, second = found.names
    figure.supxlabel(f"speed of {second} relative to {first}: above 1 is faster", fontsize=9)
    _save(figure, path, lambda svg: _page(svg, "", [found.table()], found.notes(definitions=True)))


def page(record: Record, svg: str) -> str:
    """A page with the plot, the tables and the notes inside it."""
    tables = headed_table(record)
    lines = notes(record) + definitions(record, tables)
    return _page(svg, str(record["provenance"].get("command", "")), tables, lines)


def _page(svg: str, command: str, tables: Sequence[Table], lines: Sequence[str]) -> str:
    parts = [svg[svg.index("<svg") :]]
    for table in tables:
        head = "".join(f"<th>{html.escape(c.title)}</th>" for c in table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n"
            for row in table.rows
        )
        parts.append(f"<h2>{html.escape(table.title)}</h2>\n<table><tr>{head}</tr>\n{body}</table>")
    items = "".join(f"<li>{html.escape(line)}</li>\n" for line in lines)
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>pamx bench</title>\n"
        "<style>body{font:14px sans-serif;margin:2em}svg{max-width:100%;height:auto}"
        "table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right;"
        "border-bottom:1px solid #ddd}</style>\n"
        f"<h1>pamx bench</h1>\n<pre>{html.escape(command)}</pre>\n"
        + "\n".join(parts)
        + f"\n<ul>{items}</ul>\n</html>\n"
    )
