"""Compiling and linking for arm64 macOS with zig; objects are kept in build/ by what went in."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metal.host.macos import symbols, wheels

ROOT = Path(__file__).parents[4]
HOST = Path(__file__).parents[1]
NATIVE = ROOT / "native"
OUT = ROOT / "build" / "macos"
TARGET = "aarch64-macos.14.0"
_FLAGS = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
_FLAGS += ["-fvisibility=hidden", "-DPAMX_VERSION=0", "-DPAMX_BUILD_HASH=0"]


def missing() -> str:
    """Why nothing can be cross-compiled, in one clause; empty: it can be."""
    if importlib.util.find_spec("ziglang") is None:
        return "ziglang is not installed"
    try:
        wheels.mlx()
    except wheels.UnavailableError as error:
        return str(error)
    return ""


def sources(pattern: str) -> list[Path]:
    """What setup.py compiles on macOS, of these names."""
    folders = ("blas", "building", "no_metal", "mlx/no_metal")
    skipped = {NATIVE / folder for folder in folders}
    return sorted(p for p in NATIVE.rglob(pattern) if not skipped & set(p.parents))


def attention_sources() -> list[Path]:
    """Of those, what the attention and page operations need: about half."""
    others = {NATIVE / "cpu" / name for name in ("block", "linear", "small")}
    others |= {NATIVE / "mlx" / f"{name}.cpp" for name in ("blocks", "linear", "small")}
    found = [*sources("*.cpp"), *sources("*.mm")]
    return [p for p in found if p not in others and not others & set(p.parents)]


def compile_all(files: Sequence[Path], flags: Sequence[str] = ()) -> list[Path]:
    """Objects of the files.

    Raises:
        RuntimeError: the compiler refuses one, warnings included, with its words.
    """
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda f: _compile(f, list(flags)), files))


def link(objects: Sequence[Path]) -> Path:
    """A dylib of the objects in which no name is left open.

    Raises:
        RuntimeError: a name is in none of the objects, libmlx and the system's stubs.
    """
    symbols.write(OUT / "stubs")
    target = OUT / "pamx.dylib"
    command = [*_zig("c++"), "-shared", *map(str, objects), "-o", str(target)]
    command += [f"-F{OUT / 'stubs'}", f"-L{OUT / 'stubs'}", "-lobjc"]
    for framework in symbols.FRAMEWORKS:
        command += ["-framework", framework]
    _run([*command, f"-L{wheels.mlx() / 'lib'}", "-lmlx"])
    return target


def _compile(source: Path, flags: list[str]) -> Path:
    include = wheels.mlx() / "include"
    command = [*_zig("c++"), *_FLAGS, f"-I{NATIVE}", f"-I{NATIVE / 'include'}"]
    command += [f"-I{HOST / 'include'}", f"-I{HOST / 'macos'}"]
    command += ["-isystem", str(include), "-isystem", str(include / "metal_cpp"), *flags]
    digest = hashlib.sha256(f"{command} {wheels.pinned()} {_headers()}".encode())
    digest.update(str(source).encode() + source.read_bytes())
    target = OUT / f"{source.stem}-{digest.hexdigest()[:16]}.o"
    if not target.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part.o")
        _run([*command, "-c", str(source), "-o", str(partial)])
        partial.rename(target)
    return target


@functools.cache
def _headers() -> str:
    digest = hashlib.sha256()
    for folder in (NATIVE, HOST, ROOT / "shaders"):
        for path in sorted(folder.rglob("*.h*")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _zig(language: str) -> list[str]:
    return [sys.executable, "-m", "ziglang", language, "-target", TARGET]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{done.stdout}{done.stderr}")
