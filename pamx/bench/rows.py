"""Cells as flat rows of columns with units in their names: what CSV, JSONL and Markdown hold."""

from __future__ import annotations

from typing import Any

from pamx.bench.metrics import OF_CALLS, OF_REQUESTS

_UNITS = {"s": "s", "tokens/s": "tokens_per_s", "bytes/s": "bytes_per_s"}
_PERCENTILES = ("p50", "p90", "p99")


def flat_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a cell, all with the same columns; what a cell lacks is None."""
    rows = [_row(cell) for cell in record["cells"]]
    used = {name for row in rows for name in row}
    columns = [name for name in _columns() if name in used]
    ratios = _ratios(record)
    for row, cell in zip(rows, record["cells"], strict=True):
        for metric, found in ratios.get((cell["workload"], cell["arm"]), {}).items():
            for part in ("ratio", "low", "high", "verdict"):
                row[f"{metric}_{part}_vs_base"] = found[part]
    columns += sorted({name for row in rows for name in row} - set(columns))
    return [{name: row.get(name) for name in columns} for row in rows]


def _ratios(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for comparison in record["comparisons"]:
        key = comparison["workload"], comparison["arm"]
        found.setdefault(key, {})[comparison["metric"]] = comparison
    return found


def _columns() -> list[str]:
    named = ["workload", "context", "batch", "prompt_tokens", "output_tokens", "arm"]
    named += ["valid", "why_invalid", "kernel", "partition", "outputs_same", "samples"]
    for metric in (*OF_REQUESTS, *OF_CALLS):
        unit = _UNITS[metric.unit]
        named += [
            f"{metric.name}_{unit}",
            f"{metric.name}_low_{unit}",
            f"{metric.name}_high_{unit}",
        ]
    named += [f"{name}_{p}_s" for name in ("ttft", "tpot", "itl", "e2e") for p in _PERCENTILES]
    return [*named, "goodput_per_s", "peak_memory_bytes", "pages", "share_of_copy", "share_of_read"]


def _row(cell: dict[str, Any]) -> dict[str, Any]:
    ran = cell["dispatch"] or {}
    row = {
        name: cell[name]
        for name in (
            *("workload", "context", "batch", "prompt_tokens", "output_tokens", "arm", "valid"),
            *("why_invalid", "peak_memory_bytes", "pages"),
        )
    }
    row |= {"kernel": ran.get("kernel"), "partition": ran.get("partition")}
    row["outputs_same"] = (cell["outputs"] or {}).get("same")
    row["samples"] = len(cell["samples"])
    for metric in (*OF_REQUESTS, *OF_CALLS):
        found, unit = cell["figures"].get(metric.name), _UNITS[metric.unit]
        if found is not None:
            row[f"{metric.name}_{unit}"] = found["typical"]
            row[f"{metric.name}_low_{unit}"] = found["low"]
            row[f"{metric.name}_high_{unit}"] = found["high"]
    for name, summary in cell["requests"].items():
        row |= {f"{name}_{p}_s": summary[p] for p in _PERCENTILES}
    if cell.get("goodput") is not None:
        row["goodput_per_s"] = cell["goodput"]
    for name in ("share_of_copy", "share_of_read"):
        if cell.get(name) is not None:
            row[name] = cell[name]
    return row
