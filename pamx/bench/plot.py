"""Plots as files: .png and .svg on white, and .html pages with the report, in the reader's colours.

matplotlib is an optional dependency, `pamx[plots]`.
"""

from __future__ import annotations

import html
import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pamx.bench.compare import Comparison
from pamx.bench.plain import visible
from pamx.bench.record import Record, write_whole
from pamx.bench.words import Table, definitions, headed_table, notes
from pamx.errors import PamxError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_available() -> None:
    """Raises PamxError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PamxError(
            "--plot needs matplotlib, which is not installed.", "pip install 'pamx[plots]'"
        )


def draw(record: Record, path: Path) -> None:
    """Writes a .png, .svg, or an .html page that needs no other file.

    Raises:
        PamxError: matplotlib is missing, or the file cannot be written.
        PamxError: the record has no figures to draw.
    """
    check_available()
    from pamx.bench.charts.record import record_figure

    _save(record_figure(record), path, lambda svg: page(record, svg))


def draw_comparison(found: Comparison, path: Path) -> None:
    """The same for two records side by side.

    Raises:
        PamxError: as `draw`.
    """
    check_available()
    from pamx.bench.charts.comparison import comparison_figure

    _save(
        comparison_figure(found),
        path,
        lambda svg: _page(svg, found.heads(), [found.table()], found.notes(), found.definitions()),
    )


def _save(figure: Figure, path: Path, paged: Callable[[str], str]) -> None:
    """Writes a figure in the format that the ending of `path` says.

    Args:
        paged: An HTML page around an SVG.
    """
    import matplotlib as mpl

    from pamx.bench.charts.style import INK

    ending = path.suffix.lower().removeprefix(".")
    stream = io.BytesIO()
    # The same record gives the same file: no date, no random ids.
    with mpl.rc_context({"svg.hashsalt": "pamx", "svg.fonttype": "path"}):
        if ending == "png":
            figure.savefig(stream, format="png", dpi=150, facecolor="white")
            write_whole(path, stream.getvalue())
            return
        facecolor = "none" if ending == "html" else "white"
        figure.savefig(stream, format="svg", metadata={"Date": None}, facecolor=facecolor)
    svg = stream.getvalue().decode()
    write_whole(path, paged(svg.replace(INK, "currentColor")) if ending == "html" else svg)


def page(record: Record, svg: str) -> str:
    """A page with the plot, the tables and the notes inside it."""
    tables = headed_table(record)
    command = str(record["provenance"].get("command", ""))
    return _page(svg, [visible(command)], tables, notes(record), definitions(record, tables))


_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em;
  color: CanvasText; background: Canvas; }
svg { max-width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25em .8em; text-align: left; border-bottom: 1px solid #8886;
  white-space: nowrap; }
.n { text-align: right; }
"""


def _page(
    svg: str,
    heads: Sequence[str],
    tables: Sequence[Table],
    notes: Sequence[str],
    definitions: Sequence[str],
) -> str:
    parts = [f"<p>{html.escape(line)}</p>\n" for line in heads]
    parts.append(f"<div>{svg[svg.index('<svg') :]}</div>\n")
    parts += [_as_html(table) for table in tables]
    for heading, lines in (("Notes", notes), ("Definitions", definitions)):
        if lines:
            items = "".join(f"<li>{html.escape(line)}</li>\n" for line in lines)
            parts.append(f"<h2>{heading}</h2>\n<ul>{items}</ul>\n")
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>pamx bench</title>\n<style>{_STYLE}</style>\n<h1>pamx bench</h1>\n"
        + "".join(parts)
        + "</html>\n"
    )


def _as_html(table: Table) -> str:
    classes = [' class="n"' if column.right else "" for column in table.columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        inner = (
            f"<{tag}{c}>{html.escape(cell)}</{tag}>" for c, cell in zip(classes, cells, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>\n"

    head = row("th", [column.title for column in table.columns])
    body = "".join(row("td", cells) for cells in table.rows)
    return f"<h2>{html.escape(table.title)}</h2>\n<div><table>\n{head}{body}</table></div>\n"
