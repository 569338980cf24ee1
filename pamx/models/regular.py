"""Files that are none: reading a pipe or a device would wait, or go on, for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from pamx.errors import ModelError

__all__ = ["check_readable", "check_regular", "what_it_is"]

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def what_it_is(file: Path) -> str:
    """What stands in a file's place, such as "a named pipe"; "" for a file, a folder or nothing."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return ""
    return next((what for is_that, what in _KINDS if is_that(mode)), "")


def check_regular(file: Path) -> None:
    """Raises ModelError if what is there is neither a file nor a folder; nothing is opened."""
    if what := what_it_is(file):
        raise ModelError(
            f"{file} is {what}, not a file.", "Put the model's own file there, or a copy of it."
        )


def check_readable(file: Path) -> None:
    """Raises ModelError if a file, if it is there, may not be read."""
    check_regular(file)
    try:
        if file.is_file():
            file.open("rb").close()
    except PermissionError as error:
        raise ModelError(
            f"{file} cannot be read: {error.strerror}.",
            f"Allow it, for example: chmod u+r {file.name}; or run pamx as its owner.",
        ) from error
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}.") from error
