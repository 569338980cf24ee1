"""Loading the native library: find it, match it to this MLX, prove the bridge, or say why not."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pamx.errors import NativeError
from pamx.native import blas, shaders
from pamx.native.threads import usable_cpus
from pamx.switches import switched_on

if TYPE_CHECKING:
    import mlx.core as mx

# nanobind internals that this library's instance layout was written for. Another nanobind ABI
# may lay instances out differently; then the plain-MLX path serves.
NANOBIND_ABI = "_v22_"
_MOST_THREADS = 1024
_ISAS = ("avx512", "avx2", "neon", "portable")


@dataclass(frozen=True)
class Library:
    """The loaded library: cffi's `lib` and `ffi`, and what it says about itself.

    `blank` makes an array object of its own for a call to turn into its result.
    """

    ffi: Any
    lib: Any
    path: Path
    version: str
    build_hash: str
    mlx_compiled: str
    mlx_loaded: str
    cpu_isa: str
    blank: Callable[[], mx.array]


class _Names:
    """cffi's `lib`; a name that a library of another version lacks is a NativeError."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._lib, name)
        except AttributeError as error:
            raise NativeError(
                f"The native library is of another version of pamx: it has no {name}.",
                "Build it again: install pamx again.",
            ) from error
        setattr(self, name, value)  # found at once from now on
        return value

    def address(self, ffi: Any, name: str) -> int:
        getattr(self, name)
        return int(ffi.cast("uintptr_t", ffi.addressof(self._lib, name)))


@dataclass
class _Asked:
    """What the program asked for; it comes before the environment."""

    threads: int | None = None


_asked = _Asked()


def library() -> Library:
    """Returns the library, loading it at the first call.

    Raises:
        NativeError: the library cannot be used here; the message says why.
    """
    loaded = _load_once()
    if isinstance(loaded, NativeError):
        raise NativeError(loaded.message, loaded.hint)
    return loaded


def loaded() -> Library | None:
    """The library if it was asked for before and could be used; loads nothing."""
    if not _load_once.cache_info().currsize:
        return None
    found = _load_once()
    return None if isinstance(found, NativeError) else found


@functools.cache
def _load_once() -> Library | NativeError:
    try:
        return _load()
    except NativeError as error:
        return error


def _load() -> Library:
    if switched_on("PAMX_DISABLE_NATIVE"):
        raise NativeError(
            "The native library is switched off by PAMX_DISABLE_NATIVE.",
            "Unset PAMX_DISABLE_NATIVE to use it.",
        )
    isa_from_environment()
    blas.install()
    _preload_libmlx()
    try:
        module = importlib.import_module("pamx.native._pamx")
    except ModuleNotFoundError as error:
        raise NativeError(
            "This installation of pamx has no native library.",
            "Install pamx again where a C++ compiler is present, without PAMX_NO_NATIVE.",
        ) from error
    except ImportError as error:
        raise NativeError(
            f"The native library does not load: {error}.",
            "Install pamx again, so that it is built for this machine and its pinned mlx.",
        ) from error
    ffi, lib = module.ffi, _Names(module.lib)

    def text(pointer: Any) -> str:
        return str(ffi.string(pointer).decode())

    import mlx.core as mx

    loaded = Library(
        ffi=ffi,
        lib=lib,
        path=Path(str(module.__file__)),
        version=text(lib.pamx_version()),
        build_hash=text(lib.pamx_build_hash()),
        mlx_compiled=text(lib.pamx_mlx_compiled()),
        mlx_loaded=text(lib.pamx_mlx_loaded()),
        cpu_isa=text(lib.pamx_cpu_isa()),
        blank=mx.array(0).__copy__,  # a fifth of the time of making one from a number
    )
    _check_versions(loaded)
    _check_bridge(loaded)
    _show_shaders(loaded)
    check(loaded, lib.pamx_set_num_threads(_wanted_threads()))
    functions = (lib.address(ffi, name) for name in ("pamx_parallel", "pamx_num_threads"))
    blas.share(*functions)
    return loaded


def set_num_threads(count: int) -> None:
    """Has CPU kernels use this many threads from now on, the caller's included.

    Raises:
        NativeError: the library cannot be used here, or the count is not from 1 to 1024.
    """
    if 1 <= count <= _MOST_THREADS:
        _asked.threads = count
        if _load_once.cache_info().currsize and isinstance(_load_once(), NativeError):
            _load_once.cache_clear()  # PAMX_NUM_THREADS may have been all that was wrong
    native = library()
    check(native, native.lib.pamx_set_num_threads(count))


def check(loaded: Library, status: int) -> None:
    """Raises NativeError with the library's own message unless `status` is PAMX_OK."""
    if status != loaded.lib.PAMX_OK:
        raise NativeError(loaded.ffi.string(loaded.lib.pamx_last_error()).decode() + ".")


def mlx_version() -> str:
    """Version of the mlx.core that this process imported."""
    import mlx.core as mx

    return str(vars(mx)["__version__"])


def isa_from_environment() -> str:
    """What PAMX_CPU_ISA says; "" for nothing.

    Raises:
        NativeError: there are no such kernels.
    """
    wanted = os.environ.get("PAMX_CPU_ISA", "")
    if wanted not in ("", *_ISAS):
        raise NativeError(
            f"PAMX_CPU_ISA is {wanted!r}; there are kernels for {', '.join(_ISAS)}.",
            "Correct or unset it.",
        )
    return wanted


def _wanted_threads() -> int:
    return threads_from_environment() if _asked.threads is None else _asked.threads


def threads_from_environment() -> int:
    """What PAMX_NUM_THREADS says, or else the CPUs that this process may use.

    Raises:
        NativeError: it is not a number from 1 to 1024.
    """
    text = os.environ.get("PAMX_NUM_THREADS", "")
    if not text:
        return usable_cpus()
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= _MOST_THREADS:
        raise NativeError(
            f"PAMX_NUM_THREADS is {text!r}, not a number from 1 to {_MOST_THREADS}.",
            "Correct or unset it.",
        )
    return int(text)


def _preload_libmlx() -> None:
    """Maps libmlx before the library asks for it.

    An installed wheel finds libmlx by its relative run path. In an editable install the library
    lies in the source tree, from which that path leads nowhere; a libmlx that is already mapped
    under the same name satisfies it. Finding the package does not import mlx.core.
    """
    name = "libmlx.dylib" if sys.platform == "darwin" else "libmlx.so"
    spec = importlib.util.find_spec("mlx")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        path = Path(folder) / "lib" / name
        if path.exists():
            ctypes.CDLL(str(path))
            return


def _check_versions(loaded: Library) -> None:
    python = mlx_version()
    if not loaded.mlx_compiled == loaded.mlx_loaded == python:
        raise NativeError(
            f"The native library was compiled for MLX {loaded.mlx_compiled}, but this process "
            f"runs libmlx {loaded.mlx_loaded} and mlx.core {python}; its C++ interface changes "
            "between releases.",
            f"Run: pip install mlx=={loaded.mlx_compiled}, or install pamx again.",
        )


def _check_bridge(loaded: Library) -> None:
    import mlx.core as mx
    import numpy as np

    keys = _nanobind_internals()
    if not any(NANOBIND_ABI in key and key.endswith("_mlx__") for key in keys):
        raise NativeError(
            f"This mlx wheel was built with a nanobind that pamx does not know ({keys}).",
            f"Install the wheel from PyPI: pip install --force-reinstall mlx=={mlx_version()}",
        )
    check(
        loaded,
        loaded.lib.pamx_bridge_configure(object.__basicsize__, mx.array.__basicsize__),
    )
    known = mx.array(np.arange(3 * 5 * 7, dtype=np.int16).reshape(3, 5, 7))
    mx.eval(known)
    address = np.array(known, copy=False).ctypes.data
    shape = loaded.ffi.new("int32_t[]", list(known.shape))
    check(
        loaded,
        loaded.lib.pamx_bridge_probe(id(known), address, known.ndim, shape, known.itemsize),
    )


def _show_shaders(loaded: Library) -> None:
    folder = shaders.folder()
    if folder is None or not loaded.lib.pamx_metal_built():
        return
    compiled = shaders.metallib(folder)
    path = loaded.ffi.NULL if compiled is None else os.fsencode(compiled)
    check(loaded, loaded.lib.pamx_metal_configure(os.fsencode(folder), path))


def _nanobind_internals() -> list[str]:
    """The names under which nanobind modules of this interpreter share their state."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_GetDict.restype = ctypes.c_void_p  # borrowed: py_object would steal it
    api.PyInterpreterState_GetDict.argtypes = [ctypes.c_void_p]
    address = api.PyInterpreterState_GetDict(api.PyInterpreterState_Get())
    state = ctypes.cast(address, ctypes.py_object).value
    return [str(key) for key in state if "nb_internals" in str(key)]
