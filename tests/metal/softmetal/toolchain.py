"""The compiler that the software Metal needs, where it keeps what it built, and what is missing."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime"
BUILD = HERE.parents[2] / "build" / "softmetal"
COMPILER = os.environ.get("SOFTMETAL_CXX", "clang++-19")
PACKAGES = "clang-19 lld-19 libclang-rt-19-dev"
TARGET_FLAGS = ["-mavx2", "-mfma", "-mf16c"]


def missing() -> str | None:
    """Why shaders cannot be compiled and run here, or None if they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the software Metal runs on x86-64 Linux"
    if not shutil.which(COMPILER) or not shutil.which("ld.lld-19") or not _compiler_rt():
        return f"clang 19, lld 19 and compiler-rt 19 are not all installed: apt install {PACKAGES}"
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    lacking = [f for f in ("avx2", "fma", "f16c") if f not in flags]
    if lacking:
        return f"the software Metal needs a processor with {', '.join(lacking)}"
    return None


def _compiler_rt() -> bool:
    """Whether the library that converts bfloat, without instructions for it, is there."""
    command = [COMPILER, "--rtlib=compiler-rt", "--print-libgcc-file-name"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    return out.returncode == 0 and Path(out.stdout.strip()).exists()


@functools.cache
def version() -> str:
    out = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    return out.stdout


@functools.cache
def sources() -> bytes:
    """All that a built program depends on, beside the shader."""
    files = [p for p in sorted(HERE.rglob("*")) if p.is_file() and p.suffix != ".pyc"]
    return b"\0".join(
        p.relative_to(HERE).as_posix().encode() + b"\0" + p.read_bytes() for p in files
    )
