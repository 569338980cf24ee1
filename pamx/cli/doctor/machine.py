"""Checks of the machine: system, processor, memory. They need neither MLX nor the network."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil

from pamx.cli.doctor.row import Row
from pamx.cli.sizes import bytes_text
from pamx.native.threads import usable_cpus

_LOW_MEMORY = 1 << 30
_X86_WANTED = ("avx2", "fma", "f16c")


def check_system() -> Row:
    chip, arch, name = _chip(), platform.machine(), _os_name()
    value = {"chip": chip, "arch": arch, "os": name}
    return Row("system", "ok", f"{chip}, {arch}, {name}.", value)


def check_cpu() -> Row:
    physical, logical = psutil.cpu_count(logical=False), psutil.cpu_count()
    usable = usable_cpus()
    value = {"physical": physical, "logical": logical, "usable": usable}
    limited = ", by affinity or container quota" if logical and usable < logical else ""
    return Row(
        "cpu",
        "ok",
        f"{physical or 'unknown'} cores, {logical or 'unknown'} threads; "
        f"this process may use {usable}{limited}.",
        value,
    )


def check_instruction_set() -> Row:
    if platform.machine() in ("arm64", "aarch64"):
        return Row("instruction-set", "ok", "NEON.", ["neon"])
    if not Path("/proc/cpuinfo").exists():
        return Row("instruction-set", "skip", "This system does not tell.")
    flags = set(_cpuinfo("flags").split())
    missing = [flag for flag in _X86_WANTED if flag not in flags]
    if missing:
        return Row(
            "instruction-set",
            "warn",
            f"The processor has no {', '.join(missing)}: portable kernels serve, slower.",
            sorted(flags.intersection(_X86_WANTED)),
        )
    found = [*_X86_WANTED, *(["avx512f"] if "avx512f" in flags else [])]
    return Row("instruction-set", "ok", f"{', '.join(found)}.", found)


def check_memory() -> Row:
    memory, limit = psutil.virtual_memory(), memory_limit()
    value = {"total": memory.total, "available": memory.available, "cgroup_limit": limit}
    message = f"{bytes_text(memory.available)} of {bytes_text(memory.total)} available"
    if limit is not None and limit < memory.total:
        message += f"; this container may use {bytes_text(limit)}"
    if min(memory.available, limit or memory.available) < _LOW_MEMORY:
        return Row("memory", "warn", f"{message}.", value, "Close other programs.")
    return Row("memory", "ok", f"{message}.", value)


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that the cgroup of this process may use, or None for no limit.

    v2: the smallest `memory.max` on the way up to the root (a parent's limit binds its children);
    v1: `memory.limit_in_bytes`, where "no limit" is a number near 2^63.
    """
    limits = []
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = [line.split(":", 2)[2] for line in entries if line.startswith("0::")]
    folder = root / paths[0].lstrip("/") if paths else root
    for place in [folder, *folder.parents]:
        limits += _numbers(place / "memory.max")
        if place == root:
            break
    limits += [n for n in _numbers(root / "memory/memory.limit_in_bytes") if n < 1 << 60]
    return min(limits, default=None)


def _numbers(file: Path) -> list[int]:
    """The number in a file, if there is such a file with a number in it."""
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # "max" is no number
        return []


def _chip() -> str:
    if sys.platform == "darwin":
        return output_of("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _os_name() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _cpuinfo(key: str) -> str:
    """The first value of `key` in /proc/cpuinfo, or ""."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (v.strip() for k, _, v in (s.partition(":") for s in lines) if k.strip() == key), ""
    )


def output_of(*command: str) -> str:
    """What a program prints, or "" if it cannot be run."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return ""
