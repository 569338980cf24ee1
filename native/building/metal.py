"""What building on macOS adds: Objective-C++, frameworks, and shaders compiled beforehand."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
SHADERS = ROOT / "shaders"
FRAMEWORKS = ("Metal", "Foundation", "IOKit", "CoreFoundation")
LINK_FLAGS = [flag for name in FRAMEWORKS for flag in ("-framework", name)] + ["-lobjc"]
# macOS 14 is what libmlx itself needs, and what Metal 3.1 came with.
DEPLOYMENT_TARGET = "14.0"
# Sources that need a later language than the rest; an older Xcode compiles the rest without them.
_LANGUAGES = {"prefill_nax.metal": "metal4.0"}


def metallib_name() -> str:
    """As pamx.native.shaders, which is not importable yet, names it."""
    path = ROOT / "pamx" / "native" / "shaders.py"
    spec = importlib.util.spec_from_file_location("shaders", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.metallib_name(SHADERS))


def specialisations(compiler: list[str]) -> dict[str, list[str]]:
    """For each shader, the lines that instantiate what most models need.

    Args:
        compiler: A C++ compiler of this machine.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is missing or refuses.
    """
    sources = [NATIVE / "building" / "specialisations.cpp", NATIVE / "core" / "status.cpp"]
    sources += [p for p in (NATIVE / "plan" / "launch").glob("*.cpp") if p.stem != "c_interface"]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "specialisations"
        flags = ["-std=c++20", f"-I{NATIVE}", f"-I{NATIVE / 'include'}", "-o", str(program)]
        subprocess.run([*compiler, *map(str, sources), *flags], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        source, instantiation = line.split("\t")
        lines = found.setdefault(source, [])
        if instantiation:
            lines.append(instantiation)
    return found


def compile_metallib(target: Path, compiler: list[str]) -> str:
    """Compiles the shaders' usual specialisations, if Xcode's Metal compiler is there.

    Without it, or where it fails, they are compiled at first use. Returns what happened, for the
    build's output.
    """
    try:
        subprocess.run(["xcrun", "metal", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "xcrun metal is not there (it comes with Xcode): shaders are compiled at first use"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled, left_out = [], []
        for source, lines in sorted(specialisations(compiler).items()):
            text = folder / source
            text.write_text("\n".join([f'#include "{SHADERS / source}"', *lines, ""]))
            air = folder / f"{source}.air"
            (compiled if _compile(text, air) else left_out).append(str(air))
        library = folder / "pamx.metallib"
        command = ["xcrun", "-sdk", "macosx", "metallib", *compiled, "-o", str(library)]
        if not compiled or subprocess.run(command, check=False).returncode:
            return "the Metal compiler refused the shaders: they are compiled at first use"
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob("pamx-*.metallib"):
            old.unlink()
        target.write_bytes(library.read_bytes())
    more = f"; at first use: {len(left_out)}" if left_out else ""
    return f"shaders compiled into {target.name}: {len(compiled)}{more}"


def _compile(source: Path, target: Path) -> bool:
    language = _LANGUAGES.get(source.name, "metal3.1")
    command = ["xcrun", "-sdk", "macosx", "metal", f"-std={language}", "-fno-fast-math"]
    command += [f"-mmacosx-version-min={DEPLOYMENT_TARGET}", f"-I{SHADERS}"]
    if language != "metal3.1":
        command[-2] = "-mmacosx-version-min=26.0"
    command += ["-c", str(source), "-o", str(target)]
    return subprocess.run(command, check=False).returncode == 0
