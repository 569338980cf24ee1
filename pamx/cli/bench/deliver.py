"""Giving a record to its reader: standard output, a file, a plot."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from pamx.bench.record import Record
from pamx.cli.bench.options import Format
from pamx.cli.terminal import is_terminal, say, styled, write
from pamx.errors import PamxError

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
    """Raises a usage error for a file whose ending says nothing, or a folder that is not there."""
    if form is None:
        ending = "" if output is None else output.suffix.lower().removeprefix(".")
        if output is not None and ending not in set(Format) - {Format.TABLE}:
            raise typer.BadParameter(
                f"the ending of {output} is none of .md, .csv, .json and .jsonl: "
                "say --format, or name another file.",
                param_hint="--output",
            )
        form = Format(ending) if ending else Format.TABLE
    for option, path in (("--output", output), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise typer.BadParameter(
                f"there is no folder {path.absolute().parent}.", param_hint=option
            )
        if path is not None and path.is_dir():
            raise typer.BadParameter(f"{path} is a folder; name a file.", param_hint=option)
    if plot is not None:
        if plot.suffix.lower() not in PLOTS:
            raise typer.BadParameter(
                f"{plot} does not end in one of {', '.join(PLOTS)}.", param_hint="--plot"
            )
        from pamx.bench.plot import check_available

        check_available()
    return Delivery(form, output, plot, quiet)


def deliver(record: Record, to: Delivery) -> None:
    """Writes the report, the plot, and a table for people if the report went to a file."""
    from pamx.bench.formats import as_text
    from pamx.bench.record import write_whole

    failed: PamxError | None = None
    if to.output is not None:
        text = table(record, to.quiet, None) if to.form is Format.TABLE else None
        try:
            if text is None:
                text = as_text(record, to.form.value, definitions=not to.quiet)
            write_whole(to.output, text)
            say(f"Written to {to.output}.")
        except PamxError as error:  # the table comes first: it may be all that is left
            failed = error
    if to.plot is not None:
        from pamx.bench.plot import draw

        draw(record, to.plot)
        say(f"Drawn in {to.plot}.")
    if to.output is not None or to.form is Format.TABLE:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        write(table(record, to.quiet, width))
    else:
        write(as_text(record, to.form.value, definitions=not to.quiet))
    if failed is not None:
        raise failed


def table(record: Record, quiet: bool, width: int | None) -> str:
    """For a terminal of this width; None: for a pipe or a file, with everything."""
    from pamx.cli.bench.layout import WIDE, laid_out

    colours = width is not None and styled(sys.stdout)
    return laid_out(record, width or WIDE, styled=colours, definitions=not quiet)
