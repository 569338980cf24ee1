"""A fast BLAS for MLX on Linux, put in place before libmlx is loaded.

MLX multiplies dense float32 and float64 matrices with cblas_*gemm, and its Linux wheel brings the
reference implementation of them. `native/blas` is a small library that exports the same functions
and forwards them to OpenBLAS, from the package scipy-openblas32. The loader resolves a library's
imports first in what was opened with RTLD_GLOBAL, so that opening it before libmlx decides, without
LD_PRELOAD. `pamx.before_mlx` calls `install` when somebody imports mlx.core.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pamx.switches import switched_on

_INSTALL_AGAIN = "Install pamx again with pip; it brings what is missing."


@dataclass(frozen=True)
class Blas:
    """Which BLAS serves MLX's dense matrices, and why.

    Attributes:
        library: The library that stands in for MLX's own; None: it does not.
        version: What OpenBLAS says about itself: version, options, processor; "" without it.
        reason: One sentence.
        hint: What to do about it; empty if nothing needs doing.
    """

    library: ctypes.CDLL | None
    version: str
    reason: str
    hint: str = ""

    def calls(self) -> int:
        """Products that MLX has computed through the library so far."""
        return 0 if self.library is None else int(self.library.pamx_blas_calls())

    def threads(self) -> int:
        """Threads that compute a large product."""
        return 1 if self.library is None else int(self.library.pamx_blas_threads())


@functools.cache
def install() -> Blas:
    """Puts OpenBLAS in the place of MLX's own BLAS, where that is possible. Never fails."""
    if sys.platform != "linux":
        return Blas(None, "", "MLX uses this system's own BLAS.")
    if not switched_on("PAMX_BLAS", unset=True):
        return Blas(None, "", "OpenBLAS is switched off by PAMX_BLAS.", "Unset PAMX_BLAS.")
    if _is_loaded("libmlx.so"):
        return Blas(None, "", "MLX was loaded before pamx.", "Import pamx before mlx.core.")
    shim = _shim()
    if shim is None:
        return Blas(None, "", "This installation of pamx has no native library.", _INSTALL_AGAIN)
    openblas = _openblas()
    if openblas is None:
        return Blas(None, "", "The package scipy-openblas32 is not installed.", _INSTALL_AGAIN)
    try:
        library = ctypes.CDLL(str(shim))
        library.pamx_blas_open.restype = ctypes.c_char_p
        library.pamx_blas_version.restype = ctypes.c_char_p
        library.pamx_blas_calls.restype = ctypes.c_int64
        with _one_cpu():
            refusal = library.pamx_blas_open(os.fsencode(openblas))
        if refusal is None:
            ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    except (OSError, AttributeError) as error:
        refusal = str(error).encode()
    if refusal is not None:
        reason = f"OpenBLAS does not load: {refusal.decode(errors='replace').rstrip('.')}."
        return Blas(None, "", reason, _INSTALL_AGAIN)
    version = library.pamx_blas_version().decode()
    return Blas(library, version, "OpenBLAS multiplies MLX's dense float32 matrices.")


def share(parallel: int, threads: int) -> None:
    """Lets the native library's worker pool share out large products.

    Args:
        parallel: Address of pamx_parallel.
        threads: Address of pamx_num_threads.
    """
    blas = install()
    if blas.library is not None:
        blas.library.pamx_blas_share(ctypes.c_void_p(parallel), ctypes.c_void_p(threads))


def _shim() -> Path | None:
    spec = importlib.util.find_spec("pamx.native._blas")
    return Path(spec.origin) if spec is not None and spec.origin else None


def _openblas() -> Path | None:
    """The shared library of the package scipy-openblas32, without importing the package."""
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        for path in sorted((Path(folder) / "lib").glob("libscipy_openblas*.so")):
            return path
    return None


def _is_loaded(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


@contextmanager
def _one_cpu() -> Iterator[None]:
    """Lets this thread see one CPU only.

    OpenBLAS starts a thread for every other CPU as it is loaded, and each spins before it sleeps;
    none would ever get work. It goes by the affinity of the thread that loads it. Its environment
    variable would do the same, but changing the environment is not safe while other threads read.
    """
    try:
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
    except OSError:  # a sandbox that forbids it: the threads sleep after a moment
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
