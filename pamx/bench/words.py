"""A record in words: the tables and sentences that people read, before any layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pamx.bench.definitions import title
from pamx.bench.metrics import CALL, COMPARED, DECISIVE, E2E, OUTPUT, PROMPT, TPOT, TTFT, USER
from pamx.bench.record import Record
from pamx.bench.statistics import SAME, TOO_FEW


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: Of its definition.
        part: Which of several columns with that definition it is.
        group: Columns of one group stay beside each other in a narrow table where they can; those
            of group 0 identify a row and are in every part of it.
        right: Whether its cells end at the same place.
    """

    key: str
    part: str = ""
    group: int = 0
    right: bool = True

    @property
    def title(self) -> str:
        return f"{title(self.key)} {self.part}".rstrip()


@dataclass(frozen=True)
class Table:
    """`about`: keys of definitions, besides those of the columns, that explain its cells."""

    title: str
    columns: list[Column]
    rows: list[list[str]] = field(default_factory=list)
    about: tuple[str, ...] = ()


NONE = "-"
_PARTS = ("p50", "p99")
_WHICH = [Column("workload"), Column("arm", right=False)]


def headed_table(record: Record) -> list[Table]:
    """The figures, and the comparisons if there are any that say something."""
    tables = [_figures(record)]
    if any(c["verdict"] != TOO_FEW for c in record["comparisons"]):
        tables.append(_comparisons(record))
    return [table for table in tables if table.rows]


def _figures(record: Record) -> Table:
    if record["kind"] == "kernel":
        return _calls(record)
    if record["kind"] == "replay":
        return _replays(record)
    limited = any(cell.get("goodput") is not None for cell in record["cells"])
    columns = [
        *_WHICH,
        *(Column(metric.name, group=1) for metric in (TTFT, TPOT, E2E)),
        *(Column(metric.name, group=2) for metric in (OUTPUT, PROMPT, USER)),
        *([Column("goodput", group=2)] if limited else []),
        *(Column("itl", part, group=3) for part in _PARTS),
        Column("peak_memory", group=3),
        Column("pages", group=3),
        *_ran(4),
        Column("outputs", group=4, right=False),
    ]
    table = Table(_title(record), columns, about=("typical", "percentiles", "inside"))
    for cell in _shown(record):
        figures, gaps = cell["figures"], cell["requests"].get("itl")
        table.rows.append(
            [
                cell["workload"],
                _arm(cell),
                *(spread(figures.get(m.name), duration) for m in (TTFT, TPOT, E2E)),
                *(spread(figures.get(m.name), rate) for m in (OUTPUT, PROMPT, USER)),
                *([rate(cell.get("goodput"))] if limited else []),
                *(duration(gaps and gaps[part]) for part in _PARTS),
                size(cell["peak_memory_bytes"]),
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                *_dispatched(cell),
                outputs(cell["outputs"]),
            ]
        )
    return table


def _calls(record: Record) -> Table:
    columns = [
        *_WHICH,
        Column("call", group=1),
        Column("bandwidth", group=1),
        Column("share_of_read", group=1),
        Column("kv_bytes", group=2),
        *_ran(2),
    ]
    table = Table(_title(record), columns, about=("typical",))
    for cell in _shown(record):
        table.rows.append(
            [
                cell["workload"],
                _arm(cell),
                spread(cell["figures"].get("call"), duration),
                spread(cell["figures"].get("bandwidth"), bandwidth),
                share(cell.get("share_of_read")),
                size(cell.get("pool_bytes")),
                *_dispatched(cell),
            ]
        )
    return table


def _replays(record: Record) -> Table:
    columns = [
        Column("requests"),
        Column("arm", right=False),
        Column("offered", group=1),
        Column("goodput", group=1),
        Column(OUTPUT.name, group=1),
        *(Column(name, part, group=2) for name in ("ttft", "tpot") for part in _PARTS),
        *(Column(name, part, group=3) for name in ("e2e", "itl") for part in _PARTS),
        Column("preempted", group=4),
        Column("pages", group=4),
        *_ran(4),
    ]
    table = Table(_title(record), columns, about=("percentiles", "inside"))
    for cell in _shown(record):
        done = cell["replay"]
        summaries = [cell["requests"].get(name) for name in ("ttft", "tpot", "e2e", "itl")]
        table.rows.append(
            [
                f"{done['requests']:,}",
                _arm(cell),
                rate(done["offered_per_s"]),
                NONE if cell["goodput"] is None else f"{rate(cell['goodput'])}/s",
                spread(cell["figures"].get("output_throughput"), rate),
                *(duration(s and s[p]) for s in summaries for p in _PARTS),
                str(NONE if done["preemptions"] is None else done["preemptions"]),
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                *_dispatched(cell),
            ]
        )
    return table


def _shown(record: Record) -> list[dict[str, Any]]:
    return [cell for cell in record["cells"] if cell["control_of"] is None]


def _arm(cell: dict[str, Any]) -> str:
    return str(cell["arm"]) + ("" if cell["valid"] else " (invalid)")


def _ran(group: int) -> list[Column]:
    return [Column("partition", group=group), Column("kernel", group=group, right=False)]


def _dispatched(cell: dict[str, Any]) -> list[str]:
    ran = cell["dispatch"] or {}
    return [str(ran.get("partition") or NONE), str(ran.get("kernel") or NONE)]


def _title(record: Record) -> str:
    if heads := record["provenance"].get("heads"):
        query, kv, dim = heads
        return f"Attention alone: {query} query heads on {kv} KV heads of {dim}"
    model = record["provenance"].get("model") or {}
    settings = [str(model.get("name", "")), str(model.get("compute", ""))]
    return ", ".join(word for word in settings if word) or record["kind"]


def _comparisons(record: Record) -> Table:
    base = record["comparisons"][0]["base"]
    heading = f"Speed relative to {base} (above 1x is faster)"
    return comparison_table(record["comparisons"], heading)


def comparison_table(comparisons: list[dict[str, Any]], heading: str) -> Table:
    """One row a workload and arm, one column a metric."""
    compared = {c["metric"] for c in comparisons}
    metrics = [m for m in (*DECISIVE, *COMPARED, CALL) if m.name in compared]
    names = list(dict.fromkeys(m.name for m in metrics))
    columns = [Column(n, group=i + 1, right=False) for i, n in enumerate(names)]
    table = Table(heading, [*_WHICH, *columns], about=("ratio",))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for comparison in comparisons:
        key = comparison["workload"], comparison["arm"]
        rows.setdefault(key, {})[comparison["metric"]] = comparison_words(comparison)
    for (workload, arm), found in rows.items():
        table.rows.append([workload, arm, *(found.get(name, NONE) for name in names)])
    return table


def comparison_words(comparison: dict[str, Any]) -> str:
    """Such as "1.12x (1.08-1.15) faster", or "no difference (0.97-1.04)"."""
    if comparison["ratio"] is None or comparison["verdict"] == TOO_FEW:
        return str(comparison["verdict"])
    interval = f"{comparison['low']:.2f}-{comparison['high']:.2f}"
    if comparison["verdict"] == SAME:
        return f"no difference ({interval})"
    return f"{comparison['ratio']:.2f}x ({interval}) {comparison['verdict']}"


# ---- sentences ----------------------------------------------------------------------------------


def notes(record: Record) -> list[str]:
    """What must be said beside the tables: what is invalid, what differs, warnings."""
    found = []
    if not record["complete"]:
        found.append(f"Not complete: {missing(record)}.")
    for cell in record["cells"]:
        where = f"{cell['workload']}, {cell['arm']}"
        if not cell["valid"]:
            found.append(f"{where}: invalid, because {cell['why_invalid']}")
        if (cell["outputs"] or {}).get("same") is False:
            found.append(f"{where}: {difference(cell['outputs'])}")
    return found + list(record["warnings"])


def missing(record: Record) -> str:
    """What a record that is not complete lacks, in words."""
    measured = {cell["workload"] for cell in record["cells"]}
    ids = [f"{w['context']}x{w['batch']}" for w in record["plan"].get("workloads", [])]
    left = [name for name in ids if name not in measured]
    if not left:
        return "it was interrupted"
    return f"{', '.join(left)} {'was' if len(left) == 1 else 'were'} not measured"


def definitions(record: Record, tables: Sequence[Table]) -> list[str]:
    """What the columns of these tables mean, under the names that they have there."""
    keys = [column.key for table in tables for column in table.columns]
    keys += [key for table in tables for key in table.about]
    known = record["definitions"]
    return [f"{title(key)}: {known[key]}" for key in dict.fromkeys(keys) if key in known]


def difference(outputs: dict[str, Any]) -> str:
    return (
        f"other tokens than {outputs['compared_with']} in {outputs['requests_that_differ']} "
        f"requests; first in request {outputs['request']} at token {outputs['place']} "
        f"({outputs['base_token']} there, {outputs['arm_token']} here)."
    )


def outputs(found: dict[str, Any] | None) -> str:
    """A cell's outputs in a word or two."""
    if found is None:
        return NONE
    if found["same"] is None:
        return "not told"
    return "same" if found["same"] else f"differ at {found['place']}"


# ---- numbers ------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """Three significant digits, in s, ms or µs."""
    if seconds is None:
        return NONE
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale * 0.9995:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-6)} µs"


def rate(value: float | None) -> str:
    return NONE if value is None else _three(value)


def bandwidth(value: float | None) -> str:
    return NONE if value is None else f"{_three(value / 1e9)} GB/s"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def size(count: float | None) -> str:
    if count is None:
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{_three(count / scale)} {unit}"
    return f"{_three(count / 1e3)} kB"


def _three(value: float) -> str:
    """Three significant digits, or all digits of larger whole numbers."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def spread(figure: dict[str, Any] | None, write: Any) -> str:
    """A figure with half the width of its interval in per cent: "12.3 ms ±2%"."""
    if figure is None:
        return NONE
    text: str = write(figure["typical"])
    if figure["low"] is None:
        return text
    half = (figure["high"] - figure["low"]) / 2 / figure["typical"]
    return f"{text} ±{half:.0%}" if half < 9.995 else f"{text} ±?"
