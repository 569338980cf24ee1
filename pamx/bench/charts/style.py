"""How all charts look: colours, names, axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pamx.bench.plain import visible
from pamx.bench.statistics import FEWEST
from pamx.bench.words import OTHER_ANSWERS, answers_mark
from pamx.bench.workload import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Text, axes and grids; a page replaces it by the colour of its own text.
INK = "#222222"
# M. Okabe and K. Ito's colours without those that are faint on white: told apart by everyone.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "os^vDPX*"
NEUTRAL = "#888888"
SMALL, _NORMAL = 8, 9
SMALL_TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL - 1, "color": INK}
_LONGEST_NAME = 30


def plain_text(text: str, most: int = 200) -> str:
    """Text that matplotlib shows as it is, and not as mathematics."""
    text = visible(text)
    return (text if len(text) <= most else f"{text[: most - 1]}…").replace("$", r"\$")


def arm_name(arm: str) -> str:
    return plain_text(arm, _LONGEST_NAME)


def colour_of(number: int, arm: str) -> str:
    return NEUTRAL if arm == CONTROL else COLOURS[number % len(COLOURS)]


def line_style(number: int, arm: str) -> dict[str, Any]:
    """A control is thin and grey: it shows how far equal arms lie apart."""
    control = arm == CONTROL
    return {
        "color": colour_of(number, arm),
        "marker": MARKERS[number % len(MARKERS)],
        "ms": 3 if control else 5,
        "capsize": 3,
        "lw": 0.6 if control else 1.2,
        "elinewidth": 0.6 if control else 1.0,
    }


def dress(axes: Axes) -> None:
    """One ink, a light grid, no box."""
    axes.set_facecolor("none")
    axes.grid(color=NEUTRAL, alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=SMALL, which="both")
    for place, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(place in ("left", "bottom"))
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
        text.set_fontsize(_NORMAL)


def few_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def arm_labels(cells: Sequence[dict[str, Any]], arms: Sequence[str]) -> list[str]:
    """Arms' names, marked where their outputs are not those of the first."""
    return [marked_name(arm, [c["outputs"] for c in cells if c["arm"] == arm]) for arm in arms]


def marked_name(arm: str, outputs: Sequence[dict[str, Any] | None]) -> str:
    marks = [mark for found in outputs if (mark := answers_mark(found))]
    # That which computes something else says more than a rounding.
    mark = min(marks, key=lambda m: m != OTHER_ANSWERS, default="")
    return f"{arm_name(arm)} ({mark})" if mark else arm_name(arm)


def count_mark(figure: dict[str, Any]) -> str:
    """Of how few samples a figure is, that has no interval for it."""
    return f"n={figure['samples']}" if figure["samples"] < FEWEST else ""
