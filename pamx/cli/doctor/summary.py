"""What all rows together say: how many of each kind, and whether pamx works here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pamx.cli.doctor.row import Row


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """How many rows there are of each status."""
    found = Counter(row.status for row in rows)
    return {status: found[status] for status in ("ok", "warn", "fail", "skip")}


def verdict(rows: Sequence[Row]) -> str:
    """Whether pamx works on this machine, in a sentence."""
    failed = [row.id for row in rows if row.status == "fail"]
    warned = [row.id for row in rows if row.status == "warn"]
    if failed:
        return f"pamx does not work here as it should: see {', '.join(failed)}."
    if warned:
        return f"pamx works here; {', '.join(warned)} could be better."
    return "pamx works here."


def closing(rows: Sequence[Row]) -> str:
    """The last line of the report, such as "3 checks: 2 ok, 1 skipped. pamx works here."."""
    found = counts(rows)
    warnings = "warning" if found["warn"] == 1 else "warnings"
    words = {"ok": "ok", "warn": warnings, "fail": "failed", "skip": "skipped"}
    parts = [f"{found[status]} {word}" for status, word in words.items() if found[status]]
    return f"{len(rows)} checks: {', '.join(parts)}. {verdict(rows)}"
