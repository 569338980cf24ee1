"""Checks of the machine: system, processor, memory. They need neither MLX nor the network."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil

from pamx.cli.doctor.row import Row
from pamx.native.caches import cache_sizes
from pamx.native.threads import usable_cpus
from pamx.sizes import bytes_text

_LOW_MEMORY = 1 << 30
_X86_WANTED = ("avx2", "fma", "f16c")
_X86_MORE = ("avx512f", "avx512_vnni")  # faster kernels


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
    found = [*_X86_WANTED, *(flag for flag in _X86_MORE if flag in flags)]
    return Row("instruction-set", "ok", f"{', '.join(found)}.", found)


def check_caches() -> Row:
    found = cache_sizes()
    if not found:
        return Row("cpu-caches", "skip", "This system does not tell.")
    text = ", ".join(f"{name} {bytes_text(size)}" for name, size in found.items())
    return Row("cpu-caches", "ok", f"{text}.", found)


def check_memory() -> Row:
    memory = psutil.virtual_memory()
    value = {"total": memory.total, "available": memory.available}
    message = f"{bytes_text(memory.available)} of {bytes_text(memory.total)} available"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        message += ", shared by CPU and GPU"
    if memory.available < _LOW_MEMORY:
        return Row("memory", "warn", f"{message}.", value, "Close other programs.")
    return Row("memory", "ok", f"{message}.", value)


def check_memory_limit() -> Row:
    """What a process may take of the memory: a container's limit, or what the GPU may wire."""
    from pamx.kv.limits import address_room, cgroup_room

    if sys.platform == "darwin":
        megabytes = output_of("sysctl", "-n", "iogpu.wired_limit_mb").strip()
        wired = int(megabytes) << 20 if megabytes.isdecimal() else 0
        words = f"The GPU may wire {bytes_text(wired)}" if wired else "The system's own GPU limit"
        return Row("memory-limit", "ok", f"{words}.", {"gpu_wired": wired or None})
    found, address = cgroup_room(), address_room()
    if address is not None and (found is None or address[1] < found[1]):
        limit, room = address
        value: dict[str, int | None] = {"address_limit": limit, "room": room}
        message = f"`ulimit -v` lets a process map {bytes_text(limit)}; {bytes_text(room)} are left"
        if room < _LOW_MEMORY:
            fix = "Raise it: `ulimit -v unlimited`."
            return Row("memory-limit", "warn", f"{message}.", value, fix)
        return Row("memory-limit", "ok", f"{message}.", value)
    if found is None:
        return Row("memory-limit", "ok", "No container limits it.", {"cgroup_limit": None})
    limit, room = found
    value = {"cgroup_limit": limit, "room": room}
    message = f"This container may use {bytes_text(limit)}; {bytes_text(room)} are left"
    if room < _LOW_MEMORY:
        fix = "Give the container more memory, or end other programs in it."
        return Row("memory-limit", "warn", f"{message}.", value, fix)
    return Row("memory-limit", "ok", f"{message}.", value)


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
