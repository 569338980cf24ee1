"""What an installation takes along is what lies in the tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def test_every_package_is_installed() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    found = {
        ".".join(file.parent.relative_to(_ROOT).parts)
        for file in (_ROOT / "pamx").rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found
