"""Where figures come from: versions, machine, settings, command line."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from pamx.native.caches import cache_sizes
from pamx.native.threads import usable_cpus

_PACKAGES = ("mlx", "mlx-lm", "numpy", "scipy-openblas32", "transformers")
# What changes how a model is computed; never HF_TOKEN and its like.
_SETTINGS = ("PAMX_", "MLX_", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def provenance(command: Sequence[str], seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """All that does not need the model; its program adds `model` and `library`.

    Args:
        command: The command line, from the program's name on.
        seed: Of prompts, of the order of arms and of the bootstrap.
        settings: Those in effect.
    """
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "seed": seed,
        "settings": settings,
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_SETTINGS)},
        "versions": {"python": platform.python_version()} | _versions(),
        "machine": machine(),
    }


def _versions() -> dict[str, str]:
    import pamx

    found = {"pamx": pamx.__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Chip, cores, memory and largest cache in bytes, system."""
    return {
        "chip": _chip(),
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cpus": usable_cpus(),
        "memory_bytes": psutil.virtual_memory().total,
        "cache_bytes": max(cache_sizes().values(), default=None),
    }


def _chip() -> str:
    if sys.platform == "darwin":
        try:
            found = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
        return found.stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
