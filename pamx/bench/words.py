"""A record in words: the tables and sentences that people read, before any layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pamx.bench.record import Record
from pamx.bench.statistics import TOO_FEW


@dataclass(frozen=True)
class Column:
    """`rank`: columns of a higher one are the first to go where there is no room."""

    title: str
    rank: int = 0
    right: bool = True


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[Column]
    rows: list[list[str]] = field(default_factory=list)


NONE = "-"
_PARTS = ("p50", "p99")


def headed_table(record: Record) -> list[Table]:
    """The figures, and the comparisons if there are any."""
    tables = [_figures(record)]
    if record["comparisons"]:
        tables.append(_comparisons(record))
    return [table for table in tables if table.rows]


def _figures(record: Record) -> Table:
    if record["kind"] == "kernel":
        return _calls(record)
    if record["kind"] == "replay":
        return _replays(record)
    columns = [
        Column("context"),
        Column("batch"),
        Column("arm", right=False),
        Column("TTFT"),
        Column("TPOT"),
        Column("out tok/s"),
        Column("in tok/s", 2),
        Column("tok/s/user", 4),
        Column("E2E", 3),
        Column("gap p50", 5),
        Column("gap p99", 3),
        Column("memory", 4),
        Column("pages", 5),
        Column("partition", 1),
        Column("kernel", 6, right=False),
        Column("outputs", 2, right=False),
    ]
    limited = any(cell.get("goodput") is not None for cell in record["cells"])
    if limited:
        columns.insert(6, Column("goodput", 1))
    table = Table(_title(record), columns)
    for cell in record["cells"]:
        if cell["control_of"] is not None:
            continue
        figures, gaps, ran = cell["figures"], cell["requests"].get("itl"), cell["dispatch"] or {}
        goodput = [rate(cell.get("goodput"))] if limited else []
        table.rows.append(
            [
                f"{cell['context']:,}",
                str(cell["batch"]),
                cell["arm"] + ("" if cell["valid"] else " (invalid)"),
                spread(figures.get("ttft"), duration),
                spread(figures.get("tpot"), duration),
                spread(figures.get("output_throughput"), rate),
                *goodput,
                spread(figures.get("prompt_throughput"), rate),
                spread(figures.get("user_speed"), rate),
                spread(figures.get("e2e"), duration),
                duration(gaps and gaps["p50"]),
                duration(gaps and gaps["p99"]),
                size(cell["peak_memory_bytes"]),
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                str(ran.get("partition") or NONE),
                str(ran.get("kernel") or NONE),
                outputs(cell["outputs"]),
            ]
        )
    return table


def _calls(record: Record) -> Table:
    columns = [
        Column("context"),
        Column("batch"),
        Column("arm", right=False),
        Column("call"),
        Column("bandwidth"),
        Column("of copy", 1),
        Column("of read"),
        Column("KV bytes", 3),
        Column("partition", 2),
        Column("kernel", 4, right=False),
    ]
    table = Table(_title(record), columns)
    for cell in record["cells"]:
        if cell["control_of"] is not None:
            continue
        ran = cell["dispatch"] or {}
        table.rows.append(
            [
                f"{cell['context']:,}",
                str(cell["batch"]),
                cell["arm"] + ("" if cell["valid"] else " (invalid)"),
                spread(cell["figures"].get("call"), duration),
                spread(cell["figures"].get("bandwidth"), bandwidth),
                share(cell.get("share_of_copy")),
                share(cell.get("share_of_read")),
                size(cell.get("pool_bytes")),
                str(ran.get("partition") or NONE),
                str(ran.get("kernel") or NONE),
            ]
        )
    return table


def _replays(record: Record) -> Table:
    columns = [
        Column("requests"),
        Column("arm", right=False),
        Column("offered/s", 1),
        Column("goodput"),
        Column("out tok/s"),
        *(Column(f"{m} {p}", 0 if p == "p50" else 1) for m in ("TTFT", "TPOT") for p in _PARTS),
        *(Column(f"{m} {p}", 2) for m in ("E2E", "gap") for p in _PARTS),
        Column("preempted", 3),
        Column("pages", 4),
        Column("partition", 3),
        Column("kernel", 5, right=False),
    ]
    table = Table(_title(record), columns)
    for cell in record["cells"]:
        done, ran = cell["replay"], cell["dispatch"] or {}
        summaries = [cell["requests"].get(name) for name in ("ttft", "tpot", "e2e", "itl")]
        table.rows.append(
            [
                f"{done['requests']:,}",
                cell["arm"] + ("" if cell["valid"] else " (invalid)"),
                rate(done["offered_per_s"]),
                NONE if cell["goodput"] is None else f"{rate(cell['goodput'])}/s",
                spread(cell["figures"].get("output_throughput"), rate),
                *(duration(s and s[p]) for s in summaries for p in _PARTS),
                str(NONE if done["preemptions"] is None else done["preemptions"]),
                NONE if cell["pages"] is None else f"{cell['pages']:,}",
                str(ran.get("partition") or NONE),
                str(ran.get("kernel") or NONE),
            ]
        )
    return table


def _title(record: Record) -> str:
    if heads := record["provenance"].get("heads"):
        query, kv, dim = heads
        return f"Attention alone: {query} query heads on {kv} KV heads of {dim}"
    model = record["provenance"].get("model") or {}
    settings = [str(model.get("name", "")), str(model.get("compute", ""))]
    return ", ".join(word for word in settings if word) or record["kind"]


def _comparisons(record: Record) -> Table:
    metrics = list(dict.fromkeys(c["metric"] for c in record["comparisons"]))
    titles = {
        "ttft": "TTFT",
        "tpot": "TPOT",
        "e2e": "E2E",
        "output_throughput": "out tok/s",
        "prompt_throughput": "in tok/s",
        "call": "call",
    }
    ranks = {"ttft": 0, "tpot": 1, "output_throughput": 2, "call": 0}
    base = record["comparisons"][0]["base"]
    columns = [Column("context x batch"), Column("arm", right=False)]
    columns += [Column(titles[m], ranks.get(m, 3), right=False) for m in metrics]
    table = Table(f"Speed relative to {base} (above 1x is faster)", columns)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for comparison in record["comparisons"]:
        key = comparison["workload"], comparison["arm"]
        rows.setdefault(key, {})[comparison["metric"]] = comparison_words(comparison)
    for (workload, arm), found in rows.items():
        table.rows.append([workload, arm, *(found.get(m, NONE) for m in metrics)])
    return table


def comparison_words(comparison: dict[str, Any]) -> str:
    """Such as "1.12x (1.08-1.15) faster"."""
    if comparison["ratio"] is None or comparison["verdict"] == TOO_FEW:
        return str(comparison["verdict"])
    interval = f"{comparison['low']:.2f}-{comparison['high']:.2f}"
    return f"{comparison['ratio']:.2f}x ({interval}) {comparison['verdict']}"


# ---- sentences ----------------------------------------------------------------------------------


def notes(record: Record, *, definitions: bool = False) -> list[str]:
    """What must be said beside the tables: what is invalid, what differs, warnings, definitions."""
    found = []
    if not record["complete"]:
        found.append("Interrupted: these are the workloads that were finished.")
    for cell in record["cells"]:
        where = f"{cell['workload']}, {cell['arm']}"
        if not cell["valid"]:
            found.append(f"{where}: invalid, because {cell['why_invalid']}")
        if (cell["outputs"] or {}).get("same") is False:
            found.append(f"{where}: {difference(cell['outputs'])}")
    found += record["warnings"]
    if definitions:
        found += [f"{name}: {text}" for name, text in record["definitions"].items()]
    return found


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
