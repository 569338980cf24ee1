"""A record laid out for people: tables that are too wide come in parts, one below the other."""

from __future__ import annotations

import io
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pamx.bench.record import Record
from pamx.bench.words import Table, definitions, headed_table, notes

PIPED = 100  # columns of a table that no terminal limits
_GAP = 2
_NARROWEST = 14  # columns that a name is folded to, at least


def table_width() -> int:
    """Columns of stdout: of the terminal, or what COLUMNS says, or PIPED."""
    return shutil.get_terminal_size((PIPED, 24)).columns


def laid_out(record: Record, width: int, *, styled: bool = False, explained: bool = True) -> str:
    """Tables, then notes, in lines of at most `width` characters where that is possible.

    Args:
        explained: Whether definitions of the columns follow.
    """
    tables = headed_table(record)
    return report(
        [],
        tables,
        notes(record),
        definitions(record, tables) if explained else [],
        width,
        styled=styled,
    )


def report(
    heads: Sequence[str],
    tables: Sequence[Table],
    notes: Sequence[str],
    definitions: Sequence[str],
    width: int,
    *,
    styled: bool,
) -> str:
    """Tables with sentences before and after them, and what their columns mean."""
    parts = ["\n".join([*sentences(heads, width), ""])] if heads else []
    parts += [drawn(table, width, styled) for table in tables]
    if notes:
        parts.append("\n".join([*sentences(notes, width), ""]))
    if definitions:
        heading = "\x1b[2mDefinitions\x1b[0m" if styled else "Definitions"
        parts.append("\n".join([heading, *sentences(definitions, width), ""]))
    return "\n".join(parts)


def sentences(lines: Sequence[str], width: int) -> list[str]:
    """Wrapped, with the second line of each indented."""
    width = max(20, width)
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ")]


def drawn(table: Table, width: int, styled: bool) -> str:
    """A table in lines of at most `width` characters where that is possible."""
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=styled, no_color=not styled, highlight=False, width=width
    )
    console.print(Text(table.title, style="bold"))
    for number, part in enumerate(_best(table, width).parts):
        if number:
            console.print()
        console.print(_part(table, part))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


@dataclass(frozen=True)
class _Layout:
    """Parts of a table, each with the columns that it shows, and how wide each of these is."""

    parts: list[dict[int, int]]
    lines: int


def _best(table: Table, width: int) -> _Layout:
    """The layout of fewest lines; of equal ones, that with names folded least."""
    names = [i for i, c in enumerate(table.columns) if not c.group and not c.right]
    longest = max((_widths(table)[i] for i in names), default=0)
    found = (_layout(table, width, fold) for fold in range(longest, _NARROWEST - 1, -1))
    return min(found, key=lambda layout: layout.lines, default=_layout(table, width, longest))


def _layout(table: Table, width: int, fold: int) -> _Layout:
    """Parts of whole groups where these fit, with names folded to `fold` columns."""
    widths = _widths(table)
    which = [i for i, c in enumerate(table.columns) if not c.group]
    for i in which:
        if not table.columns[i].right:
            widths[i] = min(widths[i], fold)
    room = width - sum(widths[i] + _GAP for i in which)
    figures = [i for i, c in enumerate(table.columns) if c.group]
    groups = [list(group) for _, group in groupby(figures, key=lambda i: table.columns[i].group)]
    parts: list[list[int]] = []
    for group in groups:
        if parts and _needed(widths, parts[-1] + group) <= room:
            parts[-1] += group
            continue
        parts.append([])
        for i in group:
            if parts[-1] and _needed(widths, [*parts[-1], i]) > room:
                parts.append([])
            parts[-1].append(i)
    chosen = [{i: widths[i] for i in which + part} for part in parts]
    rows = sum(max(len(_folded(row[i], widths[i])) for i in which) for row in table.rows)
    return _Layout(chosen, len(chosen) * (rows + 2))


def _widths(table: Table) -> list[int]:
    rows = [[column.title for column in table.columns], *table.rows]
    return [max(len(row[i]) for row in rows) for i in range(len(table.columns))]


def _needed(widths: list[int], columns: list[int]) -> int:
    return sum(widths[i] for i in columns) + _GAP * (len(columns) - 1)


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]


def _part(table: Table, shown: dict[int, int]) -> object:
    from rich.table import Table as RichTable
    from rich.text import Text

    drawing = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for i in shown:
        justify = "right" if table.columns[i].right else "left"
        drawing.add_column(Text(table.columns[i].title), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        drawing.add_row(*(Text("\n".join(_folded(row[i], shown[i]))) for i in shown))
    return drawing
