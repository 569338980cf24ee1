"""How large the caches of this machine's processor are, where the system tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MACOS = {"L1": "hw.perflevel0.l1dcachesize", "L2": "hw.perflevel0.l2cachesize"}
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def cache_sizes() -> dict[str, int]:
    """Bytes of each cache that a core sees, by level, such as "L2"; empty if nobody tells."""
    return _macos() if sys.platform == "darwin" else _linux()


def _macos() -> dict[str, int]:
    found = {}
    for level, name in _MACOS.items():
        try:
            text = subprocess.run(
                ["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            continue
        if text.isdecimal():
            found[level] = int(text)
    return found


def _linux(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    found = {}
    for index in sorted(root.glob("index*")):
        try:
            kind, level = ((index / n).read_text().strip() for n in ("type", "level"))
            size = (index / "size").read_text().strip()
            if kind != "Instruction":
                found[f"L{level}"] = int(size.rstrip("KM")) * _UNITS.get(size[-1:], 1)
        except (OSError, ValueError):
            continue
    return found
