"""Builds the native library; everything else about the package is in pyproject.toml.

The library is one abi3 extension, `pamx.native._pamx`: cffi's wrapper of native/include/pamx.h
and the C++ sources under native/, linked to the libmlx of the pinned mlx wheel. On Linux, a second
one that is no Python module, `pamx.native._blas`, stands between libmlx and OpenBLAS; on macOS the
library has the Metal host in it, and native/building/metal.py says what that adds. The shaders go
along as package data everywhere. Set PAMX_NO_NATIVE=1 to install without the library (pamx then
runs on plain MLX operations, slower), and PAMX_WERROR=1 to turn warnings into errors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError, LinkError

ROOT = Path(__file__).parent.resolve()
NATIVE = ROOT / "native"
SHADERS = ROOT / "shaders"
BLAS = NATIVE / "blas"
sys.path.insert(0, str(NATIVE))
from building import metal  # noqa: E402

switched_on = runpy.run_path(str(ROOT / "pamx" / "switches.py"))["switched_on"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
MACOS = sys.platform == "darwin"
if MACOS:
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", metal.DEPLOYMENT_TARGET)
NATIVE_NAME, BLAS_NAME = "pamx.native._pamx", "pamx.native._blas"
# The oldest CPython whose stable ABI the library uses: requires-python in pyproject.toml.
ABI3 = "cp311"


def fail(what: str, fix: str) -> None:
    """Stops the build with a message that stands out from the compiler's output."""
    sys.exit(f"\n\npamx: {what}\n      {fix}\n")


def mlx_folder() -> Path:
    spec = importlib.util.find_spec("mlx")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        if (Path(folder) / "include" / "mlx" / "mlx.h").exists():
            return Path(folder)
    fail(
        "the mlx wheel, whose headers and library the native library needs, is not installed.",
        "Build with pip's build isolation (the default), or install the pinned mlx first.",
    )
    raise AssertionError


def sources() -> list[Path]:
    absent = ["no_metal", "mlx/no_metal"] if MACOS else ["metal", "mlx/metal"]
    skipped = {BLAS, *(NATIVE / folder for folder in ["building", *absent])}
    found = [p for pattern in ("*.cpp", "*.mm") for p in NATIVE.rglob(pattern)]
    return sorted(p for p in found if not skipped & set(p.parents))


def headers() -> list[Path]:
    """Those that hosts and shaders share are among them."""
    return [*sorted(NATIVE.rglob("*.h*")), *sorted(SHADERS.glob("*.h"))]


def build_hash() -> str:
    digest = hashlib.sha256()
    for path in [*sources(), *headers()]:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class BuildNative(build_ext):
    """Generates cffi's wrapper, gives each language its flags, and explains what is missing."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.in_tree = bool(self.inplace)  # run() clears it while it builds

    def build_extension(self, ext: Extension) -> None:
        self.check_tools()
        if ext.name == NATIVE_NAME:
            self.complete(ext)
        compile_one = self.compiler._compile

        def compile_with_flags(obj, src, ext_, cc_args, extra, pp_opts):  # type: ignore
            flags = list(extra)
            if src.endswith((".cpp", ".mm")):
                flags += ["-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra"]
                # Sums and products are fused where the source says so, and nowhere else: a row's
                # bits must not depend on which template the compiler took a liking to.
                flags += ["-ffp-contract=off"]
                flags += ["-Werror"] if switched_on("PAMX_WERROR") else []
            if src.endswith(".mm"):
                flags += ["-fobjc-arc"]
            if Path(src).name == "library.cpp":  # alone: the others' objects can be kept
                flags += [f"-DPAMX_VERSION={VERSION}", f"-DPAMX_BUILD_HASH={build_hash()}"]
            flags += isa_flags(src)
            return compile_one(obj, src, ext_, cc_args, flags, pp_opts)

        def compile_in_parallel(  # type: ignore
            sources, output_dir=None, macros=None, include_dirs=None, debug=0,
            extra_preargs=None, extra_postargs=None, depends=None,
        ):  # fmt: skip
            compiler = self.compiler
            _, objects, extra, pp_opts, build = compiler._setup_compile(
                output_dir, macros, include_dirs, sources, depends, extra_postargs
            )
            cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                jobs = [
                    pool.submit(compiler._compile, obj, *build[obj], cc_args, extra, pp_opts)
                    for obj in objects
                ]
            for job in jobs:
                job.result()
            return objects

        if ".mm" not in self.compiler.src_extensions:
            self.compiler.src_extensions = [*self.compiler.src_extensions, ".mm"]
        compile_list = self.compiler.compile
        self.compiler._compile = compile_with_flags
        self.compiler.compile = compile_in_parallel
        try:
            super().build_extension(ext)
        except (CompileError, LinkError):
            fail(
                "the native library did not compile; the compiler's own words are above.",
                "A C++20 compiler is needed (GCC 11, Clang 14 or later). PAMX_NO_NATIVE=1 "
                "installs without the library, slower.",
            )
        finally:
            self.compiler._compile, self.compiler.compile = compile_one, compile_list
        if MACOS:
            target = Path(self.get_ext_fullpath(ext.name)).with_name(metal.metallib_name())
            cxx = os.environ.get("CXX") or "c++"
            print(f"pamx: {metal.compile_metallib(target, cxx.split())}", file=sys.stderr)

    def complete(self, ext: Extension) -> None:
        """Adds what is not known before: the generated source, and where mlx lies."""
        if self.in_tree or self.editable_mode:
            # In the source tree the relative path leads nowhere; this is where mlx will be.
            here = Path(sysconfig.get_paths()["purelib"]) / "mlx" / "lib"
            ext.extra_link_args = [*ext.extra_link_args, f"-Wl,-rpath,{here}"]
        ext.sources = [self.wrapper(), *(str(p.relative_to(ROOT)) for p in sources())]

    def wrapper(self) -> str:
        from cffi import FFI

        ffi = FFI()
        ffi.cdef((NATIVE / "include" / "pamx.h").read_text())
        ffi.set_source(
            NATIVE_NAME,
            '#include <stddef.h>\n#include <stdint.h>\n#include "pamx.h"',
            py_limited_api=True,
        )
        path = Path(self.build_temp) / "_pamx.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        ffi.emit_c_code(str(path))
        return str(path)

    def check_tools(self) -> None:
        without = "PAMX_NO_NATIVE=1 installs without the native library, slower."
        install = "xcode-select --install" if MACOS else "apt install g++ (or your system's)"
        for variable, language in (("CC", "C"), ("CXX", "C++")):
            wanted = os.environ.get(variable) or sysconfig.get_config_var(variable) or ""
            if wanted and not shutil.which(wanted.split()[0]):
                fail(
                    f"no {language} compiler was found (looked for {wanted.split()[0]}).",
                    f"{install}, or set {variable} to yours. {without}",
                )
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
            fail(
                f"the headers of Python {sys.version_info.major}.{sys.version_info.minor} "
                "(Python.h) are not installed.",
                f"apt install python3-dev (or your system's package). {without}",
            )


# What a kernel file's suffix (native/cpu/isa/isa.hpp) allows its compiler to use.
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
ISA_FLAGS = {
    ("_avx2", "x86_64"): AVX2,
    ("_avx512", "x86_64"): [
        *AVX2,
        *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
    ],
    ("_neon", "aarch64"): ["-march=armv8.2-a+dotprod"],
}


def isa_flags(source: str) -> list[str]:
    if MACOS:  # Apple's universal Pythons report a platform, not this build's target
        return []
    stem = Path(source).stem
    for (suffix, machine), flags in ISA_FLAGS.items():
        if stem.endswith(suffix) and os.uname().machine == machine:
            return flags
    return []


class BuildPython(build_py):
    """Puts the shaders beside the Python files; an editable installation reads the source tree."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "pamx" / "shaders"
            self.mkpath(str(target))
            for path in sorted(p for p in SHADERS.iterdir() if p.suffix in (".metal", ".h")):
                self.copy_file(str(path), str(target / path.name))


class BdistWheel(bdist_wheel):
    """Tags the wheel abi3: one binary serves every CPython from 3.11."""

    def finalize_options(self) -> None:
        if self.distribution.ext_modules:
            self.py_limited_api = ABI3
        super().finalize_options()


def extensions() -> list[Extension]:
    if switched_on("PAMX_NO_NATIVE"):
        return []
    return [native_extension()] if MACOS else [native_extension(), blas_extension()]


def native_extension() -> Extension:
    mlx = mlx_folder()
    origin = "@loader_path" if MACOS else "$ORIGIN"
    include = [mlx / "include", *([mlx / "include" / "metal_cpp"] if MACOS else [])]
    return Extension(
        NATIVE_NAME,
        sources=[],  # BuildNative fills them in: one of them is generated
        include_dirs=[str(NATIVE), str(NATIVE / "include")],
        library_dirs=[str(mlx / "lib")],
        libraries=["mlx"],
        # Relative, from site-packages/pamx/native to site-packages/mlx/lib.
        extra_link_args=[
            f"-Wl,-rpath,{origin}/../../mlx/lib",
            *(metal.LINK_FLAGS if MACOS else []),
        ],
        extra_compile_args=["-O3", "-g0", *(f"-isystem{path}" for path in include)],
        language="c++",
        py_limited_api=True,
        depends=[str(p) for p in headers()],
    )


def blas_extension() -> Extension:
    return Extension(
        BLAS_NAME,
        sources=[str(p.relative_to(ROOT)) for p in sorted(BLAS.glob("*.cpp"))],
        extra_compile_args=["-O2", "-g0"],
        language="c++",
        py_limited_api=True,
    )


if not re.fullmatch(r"[\w.+]+", VERSION):
    fail(f"the version {VERSION!r} cannot be put into a C string.", "Mend pyproject.toml.")

setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "bdist_wheel": BdistWheel},
)
