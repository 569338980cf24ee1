"""Tables on stdout: fitted to a terminal, one line a row in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pamx.cli.terminal import is_terminal, printable, styled

_NO_LIMIT = 100_000  # columns


def show(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str] | None = None,
    *,
    whole: int = 0,
) -> None:
    """Writes a table to stdout.

    Args:
        header: Titles of the columns; empty for none.
        rows: Cells; shown as they are, never read as markup.
        styles: A rich style for the first cell of each row.
        whole: Of the columns, how many at the left are never broken.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=sys.stdout,
        force_terminal=styled(sys.stdout),
        no_color=not styled(sys.stdout),
        highlight=False,
        width=None if is_terminal(sys.stdout) else _NO_LIMIT,
    )
    table = Table(box=None, show_header=bool(header), padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(header or rows[0]):
        table.add_column(Text(title), overflow="fold", no_wrap=number < whole)
    for number, row in enumerate(rows):
        cells = [Text(printable(cell)) for cell in row]
        if styles:
            cells[0].stylize(styles[number])
        table.add_row(*cells)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()
