"""Compiles a shader to a shared library, once for each text, and keeps it in build/softmetal."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import swizzles, toolchain
from .errors import MetalError
from .translate import Instance, Kernel, Translation, translate

_MARKER = re.compile(r"^# .*\n", re.MULTILINE)
_NOISE = re.compile(r"^In file included|: warning: |: note: candidate|errors? generated")
_MESSAGE_LINES = 30
_COMMON_FLAGS = [
    "-O2",
    "-gline-tables-only",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-U_FORTIFY_SOURCE",
    *toolchain.TARGET_FLAGS,
]
_SHADER_FLAGS = [
    "-nostdinc",
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-rtti",
    # half and bfloat are rounded after every operation, and 1.0 is a float.
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-cl-single-precision-constant",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-Wall",
    "-Wno-unknown-attributes",
    "-Wno-unused",
    "-Wno-duplicate-decl-specifier",
    "-Wno-unknown-pragmas",
    "-Wno-pass-failed",
    "-Wno-invalid-constexpr",
    "-Werror=return-type",
    "-Werror=uninitialized",
    "-Werror=c++17-extensions",
    "-Wno-pragma-system-header-outside-header",
]


def standard(language: int) -> str:
    """Metal 4 is C++17, what came before it C++14."""
    return "-std=c++17" if language >= 400 else "-std=c++14"


def preprocess(
    path: Path,
    instantiations: Sequence[str],
    language: int,
    include: Sequence[Path] = (),
    defined: Sequence[str] = (),
) -> str:
    """The shader's text with its includes, and the instantiations behind it.

    Args:
        defined: Macros.

    Raises:
        MetalError: with the preprocessor's message.
    """
    text = f'#include "{path.resolve()}"\n#line 1 "<instantiations>"\n' + "\n".join(instantiations)
    command = [toolchain.COMPILER, "-E", "-x", "c++", standard(language)]
    command += ["-nostdinc", "-nostdinc++", f"-isystem{toolchain.INCLUDE / 'stubs'}"]
    command += [f"-I{folder}" for folder in include]
    command += [f"-D{name}" for name in defined]
    command += ["-D__METAL__=1", f"-D__METAL_VERSION__={language}", "-D__HAVE_BFLOAT__=1"]
    command += ["-U__linux__", "-U__x86_64__", "-"]
    run = subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=False)
    if run.returncode:
        raise MetalError(run.stderr.strip())
    return run.stdout


def headers() -> Path:
    """The folder of headers that are written here rather than by hand."""
    folder = toolchain.BUILD / "include" / "softmetal"
    path = folder / "swizzles.inc"
    if not path.exists() or path.read_text() != swizzles.text():
        folder.mkdir(parents=True, exist_ok=True)
        _publish(path, swizzles.text().encode())
    return folder


def include_flags() -> list[str]:
    return [f"-isystem{toolchain.INCLUDE}", f"-isystem{headers()}"]


def extra_headers(text: str, mode: str) -> list[str]:
    """Flags for what a shader includes beside what every shader has."""
    if "#pragma softmetal tensor_ops" not in text:
        return []
    return ["-include", str(toolchain.INCLUDE / "softmetal" / f"tensor_ops_{mode}.hpp")]


def compiled(
    path: Path, instantiations: Sequence[str], language: int, include: Sequence[Path] = ()
) -> Path:
    """The shared library of a shader, built if there is none of this text yet.

    Raises:
        MetalError: with the compiler's message.
    """
    text = preprocess(path, instantiations, language, include)
    out = toolchain.BUILD / f"{_digest(_MARKER.sub('', text), language)}.so"
    if out.exists():
        return out
    translation = translate(text)
    if not translation.instances:
        raise MetalError(f"{path}: the file has no kernels")
    source = translation.render(
        _bindings, lambda n, instance: _registration(translation, n, instance)
    )
    toolchain.BUILD.mkdir(parents=True, exist_ok=True)
    cpp = out.with_suffix(f".{os.getpid()}.cpp")
    cpp.write_text(source)
    library = cpp.with_suffix(".so")
    flags = [*_COMMON_FLAGS, *_SHADER_FLAGS, standard(language), *include_flags()]
    flags += [*precompiled("run.hpp", flags), *extra_headers(text, "run")]
    try:
        _run([toolchain.COMPILER, "-x", "c++", *flags, "-c", str(cpp)], cpp.with_suffix(".o"))
        objects = [str(cpp.with_suffix(".o")), *map(str, runtime())]
        link = ["-shared", "-fuse-ld=lld", "--rtlib=compiler-rt", "-Wl,-z,defs", "-lm"]
        _run([toolchain.COMPILER, *objects, *link], library)
        library.replace(out)
    finally:
        for leftover in (cpp, cpp.with_suffix(".o"), library):
            leftover.unlink(missing_ok=True)
    return out


def precompiled(header: str, flags: list[str]) -> list[str]:
    """The compiler's flags that put a header, already parsed, before a source."""
    name = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
    out = toolchain.BUILD / f"headers-{_digest('', 0)}" / f"{Path(header).stem}-{name}.pch"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = out.with_suffix(f".{os.getpid()}")
        command = [toolchain.COMPILER, *flags, "-xc++-header", "-Xclang", "-fno-pch-timestamp"]
        _run([*command, str(toolchain.INCLUDE / "softmetal" / header)], temporary)
        temporary.replace(out)
    return ["-include-pch", str(out)]


def runtime() -> list[Path]:
    """The objects that every program is linked with."""
    folder = toolchain.BUILD / f"runtime-{_digest('', 0)}"
    sources = [*sorted(toolchain.RUNTIME.glob("*.cpp")), toolchain.RUNTIME / "switch.S"]
    objects = []
    for source in sources:
        out = folder / f"{source.name}.o"
        objects.append(out)
        if out.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        temporary = out.with_suffix(f".{os.getpid()}.o")
        flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{toolchain.INCLUDE}"]
        visible = ["-fvisibility=default"] if source.stem in ("program", "guarded") else []
        language_flags = flags if source.suffix == ".cpp" else []
        _run(
            [toolchain.COMPILER, *_COMMON_FLAGS, *visible, *language_flags, "-c", str(source)],
            temporary,
        )
        temporary.replace(out)
    return objects


# ---- what run mode adds to a translated shader --------------------------------------------------


def _bindings(kernel: Kernel) -> str:
    types = ", ".join(p.binding for p in kernel.parameters)
    names = ", ".join(f'"{p.name}"' for p in kernel.parameters)
    return (
        f" typedef ::softmetal::BindingList<{types}> {kernel.bindings};"
        f" static const char* const {kernel.bindings}_names[] = {{{names}, nullptr}};"
    )


def _registration(translation: Translation, n: int, instance: Instance) -> str:
    kernel = translation.kernel_of(instance)
    qualified = instance.expression.split("<")[0].strip()
    scope = qualified[: len(qualified) - len(kernel.name)]
    bindings = scope + kernel.bindings
    constants = ",".join(translation.constants[kernel.name])
    expression = instance.expression
    return (
        f" static const ::softmetal::Kernel<decltype({expression}), &{expression}, {bindings}>"
        f' sm_kernel_{n}("{instance.host_name}", "{constants}", {bindings}_names);'
    )


# ---- files --------------------------------------------------------------------------------------


def _digest(text: str, language: int) -> str:
    digest = hashlib.sha256(f"{language} {toolchain.version()}".encode())
    digest.update(toolchain.sources())
    digest.update(text.encode())
    return digest.hexdigest()[:24]


def _run(command: list[str], out: Path) -> None:
    command = [*command, "-fno-caret-diagnostics", "-fdiagnostics-color=never", "-o", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        lines = [x for x in run.stderr.splitlines() if not _NOISE.search(x)]
        raise MetalError("\n".join(lines[:_MESSAGE_LINES]))


def _publish(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
