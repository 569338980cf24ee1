"""The map of context by batch: which arm is best where, or which ones may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pamx.bench.best import Best, best
from pamx.bench.charts.style import COLOURS, INK, NEUTRAL, SMALL, dress, marked_name
from pamx.bench.definitions import title
from pamx.bench.metrics import CALL, OUTPUT
from pamx.bench.record import Record
from pamx.bench.statistics import FASTER, TOO_FEW, equality_margin
from pamx.bench.words import ratio_spread
from pamx.bench.workload import CONTROL

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def map_height(batches: list[int]) -> float:
    return 0.8 * len(batches) + 0.6


def draw_map(axes: Axes, record: Record, cells: list[dict[str, Any]], arms: list[str]) -> None:
    """Context by batch: the arm with the best figure, or which ones may be."""
    from matplotlib.colors import to_rgba

    metric = CALL if record["kind"] == "kernel" else OUTPUT
    margin = equality_margin(record["plan"].get("precision", 0.0))
    contexts = sorted({c["context"] for c in cells})
    batches = sorted({c["batch"] for c in cells})
    colours = [[to_rgba(NEUTRAL, 0.0)] * len(contexts) for _ in batches]
    for y, batch in enumerate(batches):
        for x, context in enumerate(contexts):
            here = [c for c in cells if (c["context"], c["batch"]) == (context, batch)]
            found = best([c for c in here if c["arm"] != CONTROL], metric, margin)
            if found is None:
                continue
            alone = found.found == FASTER
            colour = COLOURS[arms.index(found.arm) % len(COLOURS)] if alone else NEUTRAL
            colours[y][x] = to_rgba(colour, 0.35 if alone else 0.15)
            words = best_words(found, {c["arm"]: c["outputs"] for c in here})
            axes.text(x, y, words, ha="center", va="center", fontsize=SMALL, color=INK)
    axes.imshow(colours, aspect="auto")
    axes.set_xticks(range(len(contexts)), [f"{c:,}" for c in contexts])
    axes.set_yticks(range(len(batches)), [f"{b:,}" for b in batches])
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("batch")
    axes.set_title(f"Best arm by {title(metric.name)}")
    dress(axes)
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
    names = [marked_name(arm, [(outputs or {}).get(arm)]) for arm in (found.arm, *found.rivals)]
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
