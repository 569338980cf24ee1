"""Whether files can be written where they are wanted, asked before anything is measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import typer


def check_target(option: str, path: Path) -> None:
    """Raises a usage error of the option if no file can be written at `path`."""
    if why := fault(path):
        raise typer.BadParameter(why, param_hint=option)


def fault(path: Path) -> str | None:
    """Why no file can be written at `path`, in a sentence; None if one can."""
    folder = path.absolute().parent
    try:
        if path.is_dir():
            return f"{path} is a folder; name a file."
        if not folder.is_dir():
            return f"there is no folder {folder}."
        if path.exists() and not os.access(path, os.W_OK):
            return f"{path} may not be written; name another file."
        if path.is_file() or not path.exists():  # devices and pipes are written in place
            prefix = f".{path.name}."  # as the file itself will be
            with tempfile.NamedTemporaryFile(prefix=prefix, dir=folder):
                pass
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or error
        return f"{path} cannot be written: {reason}."
    return None
