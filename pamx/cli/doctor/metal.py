"""The Metal kernels: whether this machine has them, and what they have been proved on."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from pamx.cli.doctor.row import Row
from pamx.errors import NativeError
from pamx.sizes import bytes_text

PROVED = (
    "The Metal kernels and their host code have run in software only, never on Apple's hardware"
)
_REPORT = "On a Mac, `make test-metal-mac` runs their tests and writes a report for an issue."


def check_metal() -> Row:
    from pamx.native import library
    from pamx.native.metal import metal_gpu

    value: dict[str, Any] = {"built": False, "run_on_apple_hardware": False}
    try:
        value["built"] = bool(library().lib.pamx_metal_built())
        if not value["built"]:
            return Row("metal", "skip", f"This build has none. {PROVED}. {_REPORT}", value)
        gpu = metal_gpu()
    except NativeError as error:
        if sys.platform != "darwin" and not value["built"]:
            return Row("metal", "skip", f"Metal is for Macs. {PROVED}. {_REPORT}", value)
        return Row("metal", "warn", f"{error.message} {PROVED}.", value, error.hint or _REPORT)
    value |= asdict(gpu)
    cores = f"{gpu.cores} cores" if gpu.cores else "an unknown number of cores"
    message = (
        f"{gpu.name}, {gpu.architecture or 'unknown architecture'}, family Apple {gpu.family}, "
        f"{cores}, working set {bytes_text(gpu.working_set_bytes)}, macOS {gpu.os_version}. "
        f"{PROVED} before this Mac's."
    )
    return Row("metal", "warn", message, value, _REPORT)
