"""A software Metal: compiles unmodified .metal files for the CPU, runs and checks them.

Each thread of a threadgroup is a fibre and 32 of them run in lockstep, so that what is undefined on
a GPU (divergence around simd operations, a barrier that some threads miss, accesses out of bounds,
leftovers in threadgroup memory) is an error here, or an answer that changes with the order of
execution. include/ has the language's library, runtime/ what runs the threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .build import compiled
from .errors import LintError, MetalError
from .program import Program
from .toolchain import missing

__all__ = ["LintError", "MetalError", "Program", "check", "compile", "missing"]


def compile(  # noqa: A001
    path: str | os.PathLike[str],
    instantiations: Sequence[str] = (),
    language: int = 310,
    include: Sequence[Path] = (),
) -> Program:
    """Compiles a shader, or finds what was compiled of the same text.

    Args:
        path: the .metal file.
        instantiations: appended to it, such as
            `template [[host_name("x")]] [[kernel]] decltype(k<half, 128>) k<half, 128>;`.
        language: 310 for Metal 3.1, 400 for Metal 4.
        include: folders to look for headers in, after the shader's own.

    Raises:
        MetalError: with the compiler's message.
    """
    return _program(compiled(Path(path), instantiations, language, include))


@cache
def _program(path: Path) -> Program:
    return Program(path)


def check(
    path: str | os.PathLike[str], instantiations: Sequence[str] = (), language: int = 310
) -> None:
    """Checks a shader for what the Metal compiler would refuse; arguments as for `compile`.

    Raises:
        LintError: with every reason.
        MetalError: if the shader cannot even be read.
    """
    from . import lint  # needs libclang, which running shaders does not

    lint.check(Path(path), instantiations, language)
