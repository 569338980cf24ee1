"""A record as text for other programs: CSV, JSONL, JSON, Markdown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from pamx.bench.compare import Comparison
from pamx.bench.record import Record
from pamx.bench.rows import flat_rows
from pamx.bench.words import Table, headed_table, notes
from pamx.bench.words import definitions as definitions_of

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
            return as_jsonl(flat_rows(record))
        case "csv":
            return as_csv(flat_rows(record))
        case "md":
            tables = headed_table(record)
            explained = definitions_of(record, tables) if definitions else []
            return as_markdown([], tables, notes(record), explained)
    raise ValueError(f"there is no format {form!r}")


def comparison_as_text(found: Comparison, form: str, *, definitions: bool = True) -> str:
    """Two records side by side, likewise."""
    match form:
        case "json":
            return json.dumps(found.as_json(), indent=1, allow_nan=False) + "\n"
        case "jsonl":
            return as_jsonl(found.rows())
        case "csv":
            return as_csv(found.rows())
        case "md":
            explained = found.definitions() if definitions else []
            return as_markdown(found.heads(), [found.table()], found.notes(), explained)
    raise ValueError(f"there is no format {form!r}")


def as_csv(rows: list[dict[str, Any]]) -> str:
    """Rows that have the same columns, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def as_markdown(
    heads: list[str], tables: list[Table], notes: list[str], definitions: list[str]
) -> str:
    """Tables, with lines before and after them."""
    parts = [_listed(heads)] if heads else []
    for table in tables:
        header = [column.title for column in table.columns]
        rows: list[list[str]] = [[_escaped(c) for c in row] for row in (header, *table.rows)]
        rows.insert(1, [":---" if not column.right else "---:" for column in table.columns])
        text = "".join("| " + " | ".join(row) + " |\n" for row in rows)
        parts.append(f"**{_escaped(table.title)}**\n\n{text}")
    if notes:
        parts.append(_listed(notes))
    if definitions:
        parts.append(f"**Definitions**\n\n{_listed(definitions)}")
    return "\n".join(parts)


def _listed(lines: list[str]) -> str:
    return "".join(f"- {_escaped(line)}\n" for line in lines)


# What Markdown would take for markup, in a command of --against for instance.
_MARKUP = str.maketrans({**{c: f"\\{c}" for c in "\\`*_[]<>|"}, "\n": " "})


def _escaped(text: str) -> str:
    return text.translate(_MARKUP)
