"""Where pamx keeps what it made itself: downloads, converted models and their locks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

from pamx.errors import ModelError

__all__ = ["cache_root", "disk_errors", "downloads_dir", "locks_dir", "models_dir"]


def cache_root() -> Path:
    """The pamx cache folder: ``PAMX_HOME`` if set, else the platform's user cache folder."""
    home = os.environ.get("PAMX_HOME")
    if not home:
        return Path(user_cache_dir("pamx", False))
    try:
        return Path(home).expanduser().absolute()
    except RuntimeError as error:  # no such user
        raise ModelError(f"PAMX_HOME is {home!r}: {error}.", "Correct or unset it.") from error


def models_dir() -> Path:
    return cache_root() / "models"


def downloads_dir() -> Path:
    return cache_root() / "downloads"


def locks_dir() -> Path:
    return cache_root() / "locks"


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an ``OSError`` while writing under ``folder`` into a ``ModelError``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"The disk that holds {folder} is full.",
                "Free some space, or point PAMX_HOME (pamx) or HF_HOME (Hub models) at another "
                "disk, and run this again.",
            ) from error
        raise ModelError(
            f"The cache folder {folder} cannot be written: {error.strerror or error}.",
            "Fix its permissions, or set PAMX_HOME (pamx) or HF_HOME (Hub models) to a folder "
            "that you can write.",
        ) from error
