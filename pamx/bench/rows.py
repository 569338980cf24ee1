"""Cells as flat rows of columns with units in their names: what CSV, JSONL and Markdown hold."""

from __future__ import annotations

from typing import Any

from pamx.bench.definitions import title
from pamx.bench.metrics import BY_NAME, slug
from pamx.bench.plain import visible
from pamx.bench.statistics import FEWEST_WITH_RATIO
from pamx.bench.workload import CONTROL

_RATIO = ("ratio", "low", "high", "verdict")
_PERCENTILES = ("p50", "p90", "p99", "max")
_MEMORY = f"{slug(title('peak_memory'))}_bytes"
_OF_READ = slug(title("share_of_read"))


def flat_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a cell, all with the same columns; what a cell lacks is None."""
    rows = [_row(cell) for cell in record["cells"]]
    used = {name for row in rows for name in row}
    columns = [name for name in _columns() if name in used]
    ratios = _ratios(record)
    for row, cell in zip(rows, record["cells"], strict=True):
        for metric, found in ratios.get((cell["workload"], cell["arm"]), {}).items():
            told = found["pairs"] >= FEWEST_WITH_RATIO
            row |= {
                _of_base(metric, part): found[part] if told or part == "verdict" else None
                for part in _RATIO
            }
    used = {name for row in rows for name in row}
    columns += [n for n in (_of_base(m, p) for m in BY_NAME for p in _RATIO) if n in used]
    return [{name: _plain(row.get(name)) for name in columns} for row in rows]


def _of_base(metric: str, part: str) -> str:
    return f"{slug(title(metric))}_{part}_vs_base"


def _plain(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _ratios(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for comparison in record["comparisons"]:
        key = comparison["workload"], comparison["arm"]
        found.setdefault(key, {})[comparison["metric"]] = comparison
    return found


def _columns() -> list[str]:
    named = ["workload", "context", "batch", "prompt_tokens", "output_tokens", "arm"]
    named += ["valid", "why_invalid", "kernel", "partition", "outputs_same", "samples"]
    for metric in BY_NAME.values():
        named += [metric.column(part) for part in ("", "low", "high")]
    named += [_percentile(name, p) for name in ("ttft", "tpot", "itl", "e2e") for p in _PERCENTILES]
    return [*named, "goodput_per_s", _MEMORY, "pages", _OF_READ]


def _percentile(name: str, part: str) -> str:
    return f"{slug(title(name))}_{part}_s"


def _row(cell: dict[str, Any]) -> dict[str, Any]:
    ran = cell["dispatch"] or {}
    row = {
        name: cell[name]
        for name in (
            *("workload", "context", "batch", "prompt_tokens", "output_tokens", "arm", "valid"),
            *("why_invalid", "pages"),
        )
    }
    if cell["control_of"] is not None:
        row["arm"] = CONTROL  # as in the tables
    row[_MEMORY] = cell["peak_memory_bytes"]
    row |= {"kernel": ran.get("kernel"), "partition": ran.get("partition")}
    row["outputs_same"] = (cell["outputs"] or {}).get("same")
    row["samples"] = len(cell["samples"])
    for metric in BY_NAME.values():
        if (figure := cell["figures"].get(metric.name)) is not None:
            row[metric.column()] = figure["typical"]
            row |= {metric.column(part): figure[part] for part in ("low", "high")}
    for name, summary in cell["requests"].items():
        row |= {_percentile(name, p): summary[p] for p in _PERCENTILES}
    if cell.get("goodput") is not None:
        row["goodput_per_s"] = cell["goodput"]
    if cell.get("share_of_read") is not None:
        row[_OF_READ] = cell["share_of_read"]
    return row
