"""The version of this pamx: of the installed package, or of the source tree that it runs from."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HOME = Path(__file__).absolute().parent.parent
UNKNOWN = "unknown"


def pamx_version() -> str:
    """Of the package's metadata; without an installation of pyproject.toml; else UNKNOWN."""
    return installed() or _of_sources(HOME) or UNKNOWN


def installed() -> str | None:
    """The version that is installed, or None."""
    try:
        return version("pamx")
    except PackageNotFoundError:
        return None


def _of_sources(folder: Path) -> str | None:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        return str(project["version"]) if project["name"] == "pamx" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
