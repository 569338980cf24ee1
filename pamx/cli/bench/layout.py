"""A record laid out for a terminal: columns that do not fit are left out, and that is said."""

from __future__ import annotations

import io
import textwrap

from pamx.bench.record import Record
from pamx.bench.words import Table, headed_table, notes

WIDE = 100_000  # columns: a pipe gets everything
_GAP = 2


def laid_out(record: Record, width: int, *, styled: bool = False, definitions: bool = True) -> str:
    """Tables, then notes, in lines of at most `width` characters where that is possible."""
    parts, hidden = [], set[str]()
    for table in headed_table(record):
        kept = fitting(table, width)
        hidden |= {c.title for i, c in enumerate(table.columns) if i not in kept}
        parts.append(drawn(table, width, styled))
    lines = notes(record)
    if hidden:
        lines.append(f"Without room here: {', '.join(sorted(hidden))}; a pipe or a file has all.")
    if definitions:
        lines += [f"{name}: {text}" for name, text in record["definitions"].items()]
    wrapped = [
        line
        for text in lines
        for line in textwrap.wrap(text, max(20, min(width, 100)), subsequent_indent="  ")
    ]
    return "\n".join([*parts, *wrapped, ""])


def fitting(table: Table, width: int) -> list[int]:
    """Places of the columns that fit, those of the lowest rank first."""
    widths = [
        max(len(column.title), *(len(row[i]) for row in table.rows))
        for i, column in enumerate(table.columns)
    ]
    kept: list[int] = []
    room = width
    for i in sorted(range(len(widths)), key=lambda i: (table.columns[i].rank, i)):
        needed = widths[i] + (_GAP if kept else 0)
        # What identifies a row stays, whatever the width: rich folds it.
        if needed > room and table.columns[i].rank > 0:
            continue
        room -= needed
        kept.append(i)
    return sorted(kept)


def drawn(table: Table, width: int, styled: bool) -> str:
    """A table in lines, without the columns for which there is no room."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    kept = fitting(table, width)
    drawing = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for i in kept:
        column = table.columns[i]
        justify = "right" if column.right else "left"
        drawing.add_column(Text(column.title), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        drawing.add_row(*(Text(row[i]) for i in kept))
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=styled, no_color=not styled, highlight=False, width=width
    )
    console.print(Text(table.title, style="bold"))
    console.print(drawing)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
