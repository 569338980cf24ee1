"""Checks of the installation: Python and the packages that pamx runs on."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from pamx.cli.doctor.row import Row
from pamx.version import HOME


def check_python() -> Row:
    name = f"{platform.python_implementation()} {platform.python_version()}"
    value = {"version": platform.python_version(), "path": sys.executable}
    return Row("python", "ok", f"{name}, {sys.executable}.", value)


def check_pamx() -> Row:
    import pamx

    found = pamx.__version__
    if installed_version("pamx") is None:
        return Row("pamx", "ok", f"{found}, not installed, from {HOME}.", found)
    return Row("pamx", "ok", f"{found}.", found)


def check_mlx_lm() -> Row:
    found = installed_version("mlx-lm")
    if found is None:
        return Row("mlx-lm", "fail", "It is not installed.", fix="Install pamx again with pip.")
    return Row("mlx-lm", "ok", f"{found}.", found)


def installed_version(package: str) -> str | None:
    """The version in a package's metadata, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
