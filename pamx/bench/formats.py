"""A record as text for other programs: CSV, JSONL, JSON, Markdown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from pamx.bench.record import Record
from pamx.bench.rows import flat_rows
from pamx.bench.words import headed_table, notes

FORMATS = ("md", "csv", "json", "jsonl")


def as_text(record: Record, form: str, *, definitions: bool = True) -> str:
    """The record in one of FORMATS, with a line break at its end.

    Args:
        definitions: Whether Markdown has them under its tables.
    """
    match form:
        case "json":
            return json.dumps(record, indent=1, allow_nan=False) + "\n"
        case "jsonl":
            return "".join(json.dumps(row, allow_nan=False) + "\n" for row in flat_rows(record))
        case "csv":
            return _csv(flat_rows(record))
        case "md":
            return _markdown(record, definitions)
    raise ValueError(f"there is no format {form!r}")


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _markdown(record: Record, definitions: bool) -> str:
    parts = []
    for table in headed_table(record):
        header = [column.title for column in table.columns]
        rows: list[list[str]] = [[_escaped(c) for c in row] for row in (header, *table.rows)]
        rows.insert(1, ["---"] * len(header))
        text = "".join("| " + " | ".join(row) + " |\n" for row in rows)
        parts.append(f"**{_escaped(table.title)}**\n\n{text}")
    lines = [f"- {_escaped(line)}\n" for line in notes(record, definitions=definitions)]
    return "\n".join([*parts, "".join(lines)])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
