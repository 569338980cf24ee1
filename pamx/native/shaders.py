"""Where the Metal shaders are: in the package when installed, at the top of a source tree else."""

from __future__ import annotations

import hashlib
from pathlib import Path

_HERE = Path(__file__).parent


def folder() -> Path | None:
    """The folder of the .metal files, or None if this installation has none."""
    package = _HERE.parent
    places = (package / "shaders", package.parent / "shaders")
    return next((p for p in places if (p / "params.h").is_file()), None)


def metallib(shaders: Path) -> Path | None:
    """Specialisations that were compiled at installation from these very sources, or None."""
    path = _HERE / metallib_name(shaders)
    return path if path.is_file() else None


def metallib_name(shaders: Path) -> str:
    """The file name of the compilation of these sources; another text has another name."""
    digest = hashlib.sha256()
    for path in sorted(shaders.iterdir()):
        if path.suffix in (".metal", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"pamx-{digest.hexdigest()[:16]}.metallib"
