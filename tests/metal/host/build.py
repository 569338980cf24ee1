"""Builds native/metal for Linux: the unmodified sources on a software Metal device.

Two libraries come of it, `libpamx_mrc.so` (manual reference counting) and `libpamx_arc.so` (ARC),
both with the C interface of native/include/pamx.h, and the device that they share. Objects are
compiled again only when a source or a flag has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "metal-host"
CLANG = "clang++-19"
GNUSTEP = Path("/usr/include/GNUstep")
GCC = Path("/usr/lib/gcc/x86_64-linux-gnu/12")  # of gobjc++-12: the runtime and its headers
BLOCKS = Path("/usr/include/Block.h")

_COMMON = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden"]
# GCC 12's <algorithm> uses what its own standard deprecates.
_WARN = ["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
_INCLUDE = [
    f"-I{HERE / 'include'}",
    f"-I{HERE / 'linux'}",
    f"-I{ROOT / 'native'}",
    f"-I{ROOT / 'native' / 'include'}",
]
_OBJC = [
    "-fblocks",
    "-fexceptions",
    "-fobjc-exceptions",
    "-fconstant-string-class=NSConstantString",
    "-DGNUSTEP",
    "-DGNUSTEP_BASE_LIBRARY=1",
    "-DGNU_RUNTIME=1",
    "-D_NATIVE_OBJC_EXCEPTIONS=1",
    f"-isystem{OUT / 'runtime'}",
    f"-isystem{GCC / 'include'}",
    f"-isystem{GNUSTEP}",
]
_MRC = ["-fobjc-runtime=gcc"]
_ARC = ["-fobjc-runtime=gnustep-1.9", "-fobjc-arc"]
_PERSONALITY: tuple[Path, list[str]] = (HERE / "linux" / "personality.c", [])
_LIBRARIES = ["-lgnustep-base", "-lobjc", "-lBlocksRuntime", "-ldl", "-lpthread"]


def missing() -> str:
    """Why this machine cannot build it, in one clause; empty: it can."""
    if shutil.which(CLANG) is None:
        return "clang-19 is not installed"
    for needed, package in (
        (GNUSTEP / "Foundation" / "Foundation.h", "libgnustep-base-dev"),
        (GCC / "include" / "objc" / "runtime.h", "gobjc++-12"),
        (BLOCKS, "libblocksruntime-dev"),
    ):
        if not needed.exists():
            return f"{package} is not installed"
    return ""


@dataclass(frozen=True)
class Libraries:
    """What was built, with manual and automatic reference counting.

    Attributes:
        device: The software device, which the others share.
        mrc, arc: The library with the C interface.
        mrc_test, arc_test: the same with objects_test.mm.
    """

    device: Path
    mrc: Path
    arc: Path
    mrc_test: Path
    arc_test: Path


def build() -> Libraries:
    """Builds what has changed.

    Raises:
        RuntimeError: a compiler or linker refused, with its words.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    _runtime_headers_for_arc()
    objective = _objective()
    software = sorted((HERE / "software").glob("*.*"))
    jobs: dict[str, list[tuple[Path, list[str]]]] = {
        "device": [(p, _MRC) for p in software if p.suffix in (".mm", ".cpp")] + [_PERSONALITY],
        "plain": _plain(),
        "mrc": [(p, _MRC) for p in objective] + [_PERSONALITY],
        "arc": [(p, _ARC) for p in objective] + [_PERSONALITY, (HERE / "linux" / "arc.c", [])],
    }
    tests = {"mrc": _MRC, "arc": _ARC}
    headers = _headers()
    with ThreadPoolExecutor(2) as pool:
        objects = {
            name: list(pool.map(lambda job: _compile(*job, headers), group))
            for name, group in jobs.items()
        }
    tested = {name: _compile(HERE / "objects_test.mm", how, headers) for name, how in tests.items()}
    current = set(tested.values()) | {path for group in objects.values() for path in group}
    for old in set(OUT.glob("*.o")) - current:
        old.unlink()
    # By its name, copies of the libraries find the device that is loaded already.
    device = _link("libsoftmetal.so", objects["device"], ["-shared", "-Wl,-soname,libsoftmetal.so"])
    use = [f"-L{OUT}", "-lsoftmetal", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    made = {}
    for name, more in (("mrc", []), ("arc", ["-Wl,--wrap=__objc_exec_class"])):
        parts = objects["plain"] + objects[name]
        made[name] = _link(f"libpamx_{name}.so", parts, ["-shared", *use, *more], [device])
        test = [*parts, tested[name]]
        made[f"{name}_test"] = _link(f"test_{name}.so", test, ["-shared", *use, *more], [device])
    return Libraries(device=device, **made)


def build_mlx_path() -> Path:
    """Builds native/mlx's GPU side, on the software device, with mlx_path_test.mm.

    The arrays are libmlx's; its command encoder, which needs a Mac, is mlx_path/encoder.mm.

    Raises:
        RuntimeError: a compiler or linker refused, with its words.
    """
    device = build().device
    spec = importlib.util.find_spec("mlx")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    wheel = Path(next(iter(spec.submodule_search_locations)))
    folder, native = HERE / "mlx_path", ROOT / "native"
    flags = [f"-I{folder}", "-isystem", str(wheel / "include")]
    mlx = [native / "mlx" / f"{name}.cpp" for name in ("bridge", "copy_blocks", "pool")]
    mlx += [native / "mlx" / "paged_attention.cpp", *(native / "mlx" / "metal").glob("*.cpp")]
    jobs = [(p, flags) for p in sorted(mlx)]
    jobs += [(p, [*_MRC, *flags]) for p in sorted(folder.glob("*.mm"))]
    headers, out = _headers(), OUT / "mlx"
    out.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda job: _compile(*job, headers, out), jobs))
        for old in set(out.glob("*.o")) - set(objects):
            old.unlink()
        host = [*_plain(), *((p, _MRC) for p in _objective()), _PERSONALITY]
        objects += pool.map(lambda job: _compile(*job, headers), host)  # there already
    use = [f"-L{OUT}", "-lsoftmetal", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    use += [f"-L{wheel / 'lib'}", "-lmlx", f"-Wl,-rpath,{wheel / 'lib'}"]
    use.append("-Wl,--wrap=_ZN4pamx13served_streamEv")
    return _link("mlx_path_test.so", objects, ["-shared", *use], [device])


def _plain() -> list[tuple[Path, list[str]]]:
    native = ROOT / "native"
    found = [*(native / "core").glob("*.cpp"), *(native / "plan").rglob("*.cpp")]
    return [(p, []) for p in sorted([*found, *(native / "metal").glob("*.cpp")])]


def _objective() -> list[Path]:
    return sorted((ROOT / "native" / "metal").glob("*.mm"))


def _headers() -> str:
    native = ROOT / "native"
    return _digest([*native.rglob("*.h*"), *HERE.rglob("*.h*"), *(ROOT / "shaders").glob("*.h")])


def _runtime_headers_for_arc() -> None:
    """GCC's runtime.h, changed where ARC would not compile it."""
    source = (GCC / "include" / "objc" / "runtime.h").read_text()
    source = source.replace(
        "return object->class_pointer;", "return *(Class *)(__bridge void *)object;"
    ).replace("Protocol **", "Protocol * __unsafe_unretained *")
    for name in ("objc.h", "objc-decls.h"):
        source = source.replace(f'#include "{name}"', f"#include <objc/{name}>")
    folder = OUT / "runtime" / "objc"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "runtime.h"
    if not target.exists() or target.read_text() != source:
        target.write_text(source)


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _compile(source: Path, flags: list[str], headers: str, out: Path = OUT) -> Path:
    if source.suffix == ".c":
        command = ["clang-19", "-O1", "-fPIC"]
    else:
        command = [CLANG, *_COMMON, *_WARN, *_INCLUDE]
    if source.suffix == ".mm":
        command += _OBJC
    command += flags
    digest = hashlib.sha256(
        "\0".join([*command, headers]).encode() + source.read_bytes()
    ).hexdigest()[:16]
    target = out / f"{source.stem}-{digest}.o"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        _run([*command, "-c", str(source), "-o", str(partial)])
        partial.rename(target)
    return target


def _link(
    name: str, objects: list[Path], flags: Sequence[str] = (), needs: Sequence[Path] = ()
) -> Path:
    target, record = OUT / name, OUT / f"{name}.inputs"
    inputs = "\n".join([*map(str, objects), *flags, *(str(n.stat().st_mtime_ns) for n in needs)])
    with FileLock(OUT / "lock"):  # tests run in several processes
        if not target.exists() or not record.exists() or record.read_text() != inputs:
            command = [CLANG, *map(str, objects), "-o", str(target), *flags]
            _run([*command, f"-L{GCC}", *_LIBRARIES])
            record.write_text(inputs)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    if reason := missing():
        raise SystemExit(f"software Metal is not built: {reason}")
    print(build())
