"""The state of the machine beside a measurement: other programs' load, heat, throttling, power."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_BUSY = 0.10  # share of the CPUs that others may use before a warning


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds since some moment: of all CPUs together, and of the measured processes."""

    busy: float
    total: float
    own: float


def cpu_times(pids: Sequence[int]) -> CpuTimes:
    """Reads the clocks; a process that has ended counts as 0."""
    times = psutil.cpu_times()
    fields = times._asdict()
    # Guest time is inside of user time already; what waits for a disk is idle.
    total = sum(v for k, v in fields.items() if k not in ("guest", "guest_nice"))
    busy = total - times.idle - fields.get("iowait", 0.0)
    own = 0.0
    for pid in (os.getpid(), *pids):
        try:
            used = psutil.Process(pid).cpu_times()
            own += used.user + used.system
        except psutil.Error:
            continue
    return CpuTimes(busy, total, own)


def used_by_others(before: CpuTimes, after: CpuTimes) -> float:
    """Share of all CPUs that neither this process nor the measured ones used, 0 to 1."""
    total = after.total - before.total
    if total <= 0:
        return 0.0
    return min(1.0, max(0.0, (after.busy - before.busy - (after.own - before.own)) / total))


def conditions() -> dict[str, Any]:
    """What the system tells now; what it does not tell is absent."""
    found: dict[str, Any] = {}
    if hasattr(os, "getloadavg"):
        found["load_average"] = round(os.getloadavg()[0], 2)
    if (battery := _battery()) is not None:
        found["on_battery"] = battery
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    if frequency is not None and frequency.current:
        found["cpu_mhz"] = round(frequency.current)
    if sys.platform == "darwin":
        found |= _macos()
    else:
        found |= _linux()
    return found


def _battery() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):
        return None
    return None if battery is None else not battery.power_plugged


def _linux(root: Path = Path("/sys")) -> dict[str, Any]:
    """Hottest zone, times that cores were throttled, and the frequency governor."""
    found: dict[str, Any] = {}
    heat = [n / 1000 for f in root.glob("class/thermal/thermal_zone*/temp") for n in _number(f)]
    if heat:
        found["hottest_celsius"] = max(heat)
    folder = root / "devices/system/cpu"
    throttled = [
        n for f in folder.glob("cpu*/thermal_throttle/core_throttle_count") for n in _number(f)
    ]
    if throttled:
        found["throttle_events"] = sum(throttled)
    try:
        governor = (folder / "cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return found
    return found | {"governor": governor}


def _number(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError):
        return []


def _macos() -> dict[str, Any]:
    """What `pmset -g therm` says: the speed limit in per cent, if one was ever recorded."""
    try:
        text = subprocess.run(
            ["pmset", "-g", "therm"], capture_output=True, text=True, timeout=5, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return speed_limit(text)


def speed_limit(text: str) -> dict[str, Any]:
    match = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", text)
    return {"cpu_speed_limit_percent": int(match[1])} if match else {}


def condition_warnings(
    before: dict[str, Any], after: dict[str, Any], others: float, what: str
) -> list[str]:
    """Sentences about conditions that make figures doubtful.

    Args:
        before, after: Of `conditions`, around the measurement.
        others: Of `used_by_others`.
        what: Names the measurement, such as "1024x4".
    """
    found = []
    if others > _BUSY:
        found.append(f"{what}: other programs used {others:.0%} of the CPUs meanwhile.")
    if after.get("on_battery"):
        found.append(f"{what}: the machine ran on its battery.")
    events = after.get("throttle_events", 0) - before.get("throttle_events", 0)
    if events > 0:
        found.append(f"{what}: cores were slowed down for their heat {events} times.")
    if after.get("cpu_speed_limit_percent", 100) < 100:
        limit = after["cpu_speed_limit_percent"]
        found.append(f"{what}: the system limited the CPU to {limit} % of its speed for its heat.")
    return found
