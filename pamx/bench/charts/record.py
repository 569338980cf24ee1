"""All charts of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamx.bench.charts.by_arm import by_arm_figure
from pamx.bench.charts.by_context import by_context_figure
from pamx.bench.charts.replay import replay_figure
from pamx.bench.charts.style import INK, plain_text
from pamx.bench.record import Record
from pamx.bench.words import machine, subject
from pamx.bench.workload import CONTROL
from pamx.errors import PamxError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def record_figure(record: Record) -> Figure:
    """All charts of a record.

    Raises:
        PamxError: it has no figures to draw.
    """
    cells = _drawn(record)
    if not cells:
        raise PamxError("There is no valid figure to draw.", "See the report for the reasons.")
    if record["kind"] == "replay":
        figure = replay_figure([c for c in cells if c["arm"] != CONTROL])
    elif len({c["context"] for c in cells}) == 1:
        figure = by_arm_figure(record, cells)
    else:
        figure = by_context_figure(record, cells)
    heading = f"{subject(record)}, on {machine(record)}"
    figure.suptitle(plain_text(heading), fontsize=11, color=INK)
    return figure


def _drawn(record: Record) -> list[dict[str, Any]]:
    """Valid cells of arms, and controls last; nothing of what the machine does by itself."""
    cells = [c for c in record["cells"] if c["valid"] and c["kind"] != "machine"]
    arms = [c for c in cells if c["control_of"] is None]
    return arms + [c | {"arm": CONTROL} for c in cells if c["control_of"] is not None and arms]
