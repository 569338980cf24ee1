"""Writes a benchmark's result together with what it ran on."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pamx.native import library

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, what: str, command: str, figures: dict[str, Any]) -> None:
    """Writes bench/results/`name`.json: `figures`, after the command, versions and build."""
    native = library()
    head = {
        "what": what,
        "command": command,
        "cpu_isa": native.cpu_isa,
        "build_hash": native.build_hash,
        "mlx": native.mlx_loaded,
        "mlx_lm": version("mlx-lm"),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**head, **figures}, indent=1) + "\n")
