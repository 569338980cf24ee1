"""Where the latest run is kept, so that a table that scrolled by can be had in another form."""

from __future__ import annotations

from pathlib import Path

from pamx.cli.paths import data_folder


def last_run() -> Path:
    """The file of the latest run; it may not exist."""
    return data_folder() / "bench" / "last.json"
