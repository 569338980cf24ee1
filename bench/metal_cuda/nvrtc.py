"""NVRTC through ctypes: CUDA text to machine code, with or without a GPU.

The library and CUDA's headers come from the wheels nvidia-cuda-nvrtc, nvidia-cuda-runtime and
nvidia-cuda-crt, or from a CUDA installation that the loader finds.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path


class CompileError(Exception):
    """What NVRTC said."""


def _wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec else None
    return [child for place in places or () for child in sorted(Path(place).iterdir())]


@cache
def _library() -> ctypes.CDLL:
    for pattern in ("libnvrtc-builtins.so.*", "libnvrtc.so.*"):
        for path in (p for wheel in _wheels() for p in sorted(wheel.glob(f"lib/{pattern}"))):
            loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            if hasattr(loaded, "nvrtcCreateProgram"):
                return loaded
    return ctypes.CDLL("libnvrtc.so")


@cache
def _includes() -> list[str]:
    found = [wheel / "include" for wheel in _wheels()]
    found += [Path("/usr/local/cuda/include")]
    return [f"-I{folder}" for folder in found if (folder / "cuda_fp16.h").exists()]


def compile_cuda(
    text: str,
    headers: Path,
    architecture: str,
    constants: dict[int, bool | int],
    registers: int = 0,
) -> bytes:
    """A cubin.

    Args:
        architecture: Such as sm_90.
        constants: Function constants by index.
        registers: Of a thread, at most; 0: no limit.

    Raises:
        CompileError: with the compiler's message.
    """
    nvrtc = _library()
    program = ctypes.c_void_p()
    source = text.encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"shader.cu", 0, None, None)
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-w"]
    options += ["--device-as-default-execution-space", "--fmad=true", f"-I{headers}", *_includes()]
    options += [f"-DSM_CONSTANT_{i}={int(value)}" for i, value in constants.items()]
    options += [f"--maxrregcount={registers}"] if registers else []
    array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)

    def fetch(what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    try:
        if failed:
            raise CompileError(fetch("ProgramLog").rstrip(b"\0").decode()[:8000])
        return fetch("CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
