"""What the system tells about heat, power and other programs, and which of it is a warning."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pamx.bench.conditions import (
    CpuTimes,
    _linux,
    condition_warnings,
    conditions,
    cpu_times,
    speed_limit,
    used_by_others,
)


def test_heat_and_throttling_on_linux(tmp_path: Path) -> None:
    for path, text in (
        ("class/thermal/thermal_zone0/temp", "41000\n"),
        ("class/thermal/thermal_zone1/temp", "63500\n"),
        ("class/thermal/thermal_zone2/temp", "not a number\n"),
        ("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n"),
        ("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n"),
        ("devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert _linux(tmp_path) == {
        "hottest_celsius": 63.5,
        "throttle_events": 7,
        "governor": "powersave",
    }
    assert _linux(tmp_path / "nothing") == {}


def test_the_speed_limit_of_macos() -> None:
    text = "Note: No thermal warning level has been recorded\n\tCPU_Speed_Limit \t= 80\n"
    assert speed_limit(text) == {"cpu_speed_limit_percent": 80}
    assert speed_limit("Note: No CPU power status has been recorded\n") == {}


def test_warnings() -> None:
    assert condition_warnings({}, {}, 0.05, "x") == []
    found = condition_warnings(
        {"throttle_events": 1},
        {"throttle_events": 3, "on_battery": True, "cpu_speed_limit_percent": 80},
        0.31,
        "x",
    )
    assert len(found) == 4
    assert found[0] == "x: other programs used 31% of the CPUs meanwhile."
    assert "2 times" in found[2]


def test_own_work_is_not_others() -> None:
    assert used_by_others(CpuTimes(0, 0, 0), CpuTimes(8, 10, 6)) == 0.2
    assert used_by_others(CpuTimes(0, 0, 0), CpuTimes(1, 10, 6)) == 0.0
    assert used_by_others(CpuTimes(0, 0, 0), CpuTimes(0, 0, 0)) == 0.0
    before = cpu_times([])
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    after = cpu_times([child.pid, os.getppid()])
    assert after.own - before.own >= 0.2
    child.communicate(b"\n")
    assert cpu_times([child.pid]).own > 0  # one that has ended is no error


def test_conditions_are_plain_values() -> None:
    assert all(isinstance(v, int | float | str | bool) for v in conditions().values())
