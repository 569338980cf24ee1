"""Checks of what slows a machine down without saying so: battery, saving of power, heat."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil

from pamx.cli.doctor.machine import output_of
from pamx.cli.doctor.row import Row

_SILENT = "This system does not tell."
_CPU = Path("/sys/devices/system/cpu/cpu0")


def check_power() -> Row:
    read = getattr(psutil, "sensors_battery", None)
    try:
        battery = read() if read else None
    except (OSError, ValueError):
        battery = None
    governor = _text(_CPU / "cpufreq/scaling_governor")
    if battery is None and not governor:
        return Row("power", "skip", f"{_SILENT}")
    value = {
        "percent": None if battery is None else round(battery.percent),
        "plugged": None if battery is None else battery.power_plugged,
        "governor": governor or None,
    }
    parts = [] if battery is None else [f"battery at {battery.percent:.0f} %"]
    parts += [f"CPU governor {governor}"] if governor else []
    message = ", ".join(parts)
    message = f"{message[0].upper()}{message[1:]}"
    if battery is not None and battery.power_plugged is False:
        return Row(
            "power",
            "warn",
            f"{message}, not plugged in: the system may run slower to save power.",
            value,
            "Plug it in.",
        )
    return Row("power", "ok", f"{message}.", value)


def check_thermal() -> Row:
    if sys.platform == "darwin":
        limit = speed_limit(output_of("pmset", "-g", "therm"))
        if limit is None:
            return Row("thermal", "ok", "No thermal warning was recorded.", {"speed_limit": None})
        value = {"speed_limit": limit}
        if limit < 100:
            message = f"Heat limits the processor to {limit} % of its speed."
            return Row("thermal", "warn", message, value, "Let it cool down.")
        return Row("thermal", "ok", "Heat does not limit the processor.", value)
    read = getattr(psutil, "sensors_temperatures", None)
    try:
        sensors = read() if read else {}
    except (OSError, ValueError):
        sensors = {}
    readings = [s for group in sensors.values() for s in group if s.current]
    if not readings:
        return Row("thermal", "skip", _SILENT)
    hottest = max(readings, key=lambda s: s.current)
    value = {"celsius": hottest.current, "high": hottest.high}
    message = f"The hottest sensor reads {hottest.current:.0f} °C"
    if hottest.high and hottest.current >= hottest.high:
        message += f", at its limit of {hottest.high:.0f} °C: the processor slows down."
        return Row("thermal", "warn", message, value, "Let it cool down.")
    return Row("thermal", "ok", f"{message}.", value)


def speed_limit(pmset: str) -> int | None:
    """The processor's speed in percent in what `pmset -g therm` prints, or None."""
    found = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", pmset)
    return int(found[1]) if found else None


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
