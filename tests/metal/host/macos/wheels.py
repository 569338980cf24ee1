"""The pinned MLX wheels for macOS: headers and libmlx.dylib to compile and link against."""

from __future__ import annotations

import functools
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "build" / "mlx-macos"


class UnavailableError(Exception):
    """Why the wheels are not here."""


@functools.cache
def mlx() -> Path:
    """The folder `mlx` of the wheels, downloaded once to build/.

    Raises:
        UnavailableError: there is no network.
    """
    version = pinned()
    done = FOLDER / version / "mlx"
    if (done / "lib" / "libmlx.dylib").exists() and (done / "include").exists():
        return done
    wheels = FOLDER / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
    command += ["--platform", "macosx_14_0_arm64", "--python-version", "3.11"]
    command += ["--only-binary=:all:", f"mlx=={version}", f"mlx-metal=={version}"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        reason = run.stderr.strip().splitlines()[-1:]
        raise UnavailableError(f"the MLX wheels for macOS cannot be downloaded: {' '.join(reason)}")
    unpacked = FOLDER / f"{version}.part"
    for wheel in wheels.glob(f"mlx*-{version}-*.whl"):
        zipfile.ZipFile(wheel).extractall(unpacked)
    unpacked.rename(FOLDER / version)
    return done


def pinned() -> str:
    """The version of MLX that pyproject.toml asks for on macOS."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirement = next(d for d in project["dependencies"] if d.startswith("mlx=="))
    return str(requirement.split("==")[1].split(";")[0].strip())
