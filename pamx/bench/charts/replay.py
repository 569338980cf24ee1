"""A replay: how TTFT and E2E are distributed, and TTFT over the time of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamx.bench.charts.style import COLOURS, INK, MARKERS, SMALL, arm_name, dress
from pamx.bench.measure import timings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def replay_figure(cells: list[dict[str, Any]]) -> Figure:
    """How TTFT and E2E are distributed, and TTFT over the time of arrival."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    first, second, over_time = figure.subplots(1, 3)
    for number, cell in enumerate(cells):
        requests = timings(cell["samples"][0])
        colour = COLOURS[number % len(COLOURS)]
        for axes, values in (
            (first, sorted(r.ttft for r in requests)),
            (second, sorted(r.e2e for r in requests)),
        ):
            shares = [100 * i / len(values) for i in range(len(values) + 1)]
            axes.step([0, *values], shares, where="post", color=colour, label=arm_name(cell["arm"]))
        marker = MARKERS[number % len(MARKERS)]
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
        dress(axes)
    first.legend(fontsize=SMALL, labelcolor=INK, frameon=False, loc="lower right")
    return figure
