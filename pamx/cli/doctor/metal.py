"""The Metal kernels: whether this machine has them, and what they have been proved on."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from pamx.cli.doctor.row import Row
from pamx.errors import NativeError
from pamx.sizes import bytes_text

PROVED = (
    "pamx's Metal kernels have never run on Apple hardware: their tests run them in software, and, "
    "translated to CUDA, they ran on an NVIDIA H200"
)
_REPORT = "On a Mac, `make test-metal-mac` runs their tests and writes a report for an issue."


def check_metal() -> Row:
    from pamx.native import library
    from pamx.native.metal import metal_gpu

    value: dict[str, Any] = {
        "built": False,
        "run_on_apple_hardware": False,
        "run_on": ["software", "NVIDIA H200"],
    }
    try:
        value["built"] = bool(library().lib.pamx_metal_built())
        if not value["built"]:
            return _without(value)
        gpu = metal_gpu()
    except NativeError as error:
        if sys.platform != "darwin" and not value["built"]:
            return _without(value)
        return Row("metal", "warn", f"{error.message} {PROVED}.", value, error.hint or _REPORT)
    value |= asdict(gpu)
    cores = f"{gpu.cores} cores" if gpu.cores else "an unknown number of cores"
    message = (
        f"{gpu.name}, {gpu.architecture or 'unknown architecture'}, family Apple {gpu.family}, "
        f"{cores}, working set {bytes_text(gpu.working_set_bytes)}, macOS {gpu.os_version}. "
        f"{PROVED}."
    )
    return Row("metal", "warn", message, value, _REPORT)


def _without(value: dict[str, Any]) -> Row:
    if sys.platform == "darwin":
        return Row("metal", "skip", f"This build has no Metal kernels. {PROVED}. {_REPORT}", value)
    return Row("metal", "skip", "Metal is for Macs.", value)
