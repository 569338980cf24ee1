"""Giving a record to its reader: standard output, a file, a plot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pamx.cli.bench.options import Format
from pamx.cli.bench.targets import check_target
from pamx.cli.terminal import note, say, styled, write
from pamx.errors import PamxError

if TYPE_CHECKING:
    from pamx.bench.compare import Comparison
    from pamx.bench.record import Record

PLOTS = (".png", ".svg", ".html")


@dataclass(frozen=True)
class Delivery:
    """Where results go.

    Attributes:
        form: What is written to `output`, or to standard output without one.
        output: A file, or None.
        plot: A file, or None.
        quiet: Leave definitions out of a table.
    """

    form: Format
    output: Path | None
    plot: Path | None
    quiet: bool


def delivery(form: Format | None, output: Path | None, plot: Path | None, quiet: bool) -> Delivery:
    """Raises a usage error for a file that cannot be written; one whose ending says nothing gets a
    table."""
    if form is None:
        ending = "" if output is None else output.suffix.lower().removeprefix(".")
        if output is not None and not str(output).strip():
            raise typer.BadParameter("it is blank: name a file.", param_hint="--output")
        form = Format(ending) if ending in set(Format) else Format.TABLE
    for option, path in (("--output", output), ("--plot", plot)):
        if path is not None:
            check_target(option, path)
    if plot is not None:
        if output is not None and output.absolute() == plot.absolute():
            raise typer.BadParameter(f"{plot} is --output already.", param_hint="--plot")
        if plot.suffix.lower() not in PLOTS:
            raise typer.BadParameter(
                f"{plot} does not end in one of {', '.join(PLOTS)}.", param_hint="--plot"
            )
        from pamx.bench.plot import check_available

        check_available()
    return Delivery(form, output, plot, quiet)


def deliver(record: Record, to: Delivery) -> None:
    """Writes the report and the plot; warnings go to standard error if the report is in a file."""
    from pamx.bench.formats import as_text
    from pamx.bench.plot import draw
    from pamx.bench.words import notes
    from pamx.cli.bench.layout import laid_out

    _hand_over(
        to,
        lambda width, styled: laid_out(record, width, styled=styled, explained=not to.quiet),
        lambda form: as_text(record, form, definitions=not to.quiet),
        lambda path: draw(record, path),
        notes(record),
        f" `pamx bench show {to.output}` shows it." if to.form is Format.JSON else "",
    )


def deliver_comparison(found: Comparison, to: Delivery) -> None:
    """The same for two records side by side."""
    from pamx.bench.formats import comparison_as_text
    from pamx.bench.plot import draw_comparison
    from pamx.cli.bench.layout import report

    definitions = [] if to.quiet else found.definitions()

    def table(width: int, styled: bool) -> str:
        return report(
            found.heads(), [found.table()], found.notes(), definitions, width, styled=styled
        )

    _hand_over(
        to,
        table,
        lambda form: comparison_as_text(found, form, definitions=not to.quiet),
        lambda path: draw_comparison(found, path),
        [*found.heads()[2:], *found.notes()],
    )


def _hand_over(
    to: Delivery,
    table: Callable[[int, bool], str],
    text: Callable[[str], str],
    draw: Callable[[Path], None],
    warnings: Sequence[str],
    hint: str = "",
) -> None:
    """Writes what was asked for.

    Args:
        table: Of a width, styled or not.
        text: In one of the forms for programs.
        draw: Writes the plot.
        warnings: What a person must know who does not see the report.
        hint: How to see it.
    """
    from pamx.bench.record import write_whole
    from pamx.cli.bench.layout import PIPED, table_width

    people = to.form is Format.TABLE
    failed: PamxError | None = None

    def shown() -> None:
        # Its names are cleaned; the rest may be escape sequences of its own.
        sys.stdout.write(table(table_width(), styled(sys.stdout)))
        sys.stdout.flush()

    if to.output is None:
        if people:
            shown()
        else:
            write(text(to.form.value))
    else:
        try:
            write_whole(to.output, table(PIPED, False) if people else text(to.form.value))
            for warning in warnings:
                note(warning)
            say(f"Written to {to.output}.{hint}")
        except PamxError as error:
            shown()  # it may be all that is left
            failed = error
    if to.plot is not None:
        draw(to.plot)
        say(f"Drawn in {to.plot}.")
    if failed is not None:
        raise failed
