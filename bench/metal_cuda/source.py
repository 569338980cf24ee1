"""A .metal file as CUDA text, and the headers that it includes."""

from __future__ import annotations

import shutil
from pathlib import Path

from metal.attention_case import LANGUAGES, SHADERS
from metal.softmetal import swizzles
from metal.softmetal.build import extra_headers, preprocess
from metal.softmetal.toolchain import INCLUDE
from metal.softmetal.translate import Kernel, translate

HERE = Path(__file__).parent


def translated(source: str) -> str:
    """The shader without a specialisation: prepared.py adds those, a line each.

    Raises:
        MetalError: for what the Metal compiler would refuse.
    """
    language = LANGUAGES.get(source, 310)
    text = preprocess(SHADERS / source, [], language, defined=["PAMX_WARP_FRAGMENTS"])
    headers = ["metal_cuda.hpp", *(["tensor_ops.hpp"] if extra_headers(text, "run") else [])]
    includes = "".join(f'#include "{header}"\n' for header in headers)
    return includes + translate(text).render(_bindings)


def _bindings(kernel: Kernel) -> str:
    types = ", ".join(p.binding for p in kernel.parameters)
    return f" typedef ::softmetal::BindingList<{types}> {kernel.bindings};"


def copy_headers(folder: Path) -> None:
    """Writes all that a translated shader includes, for a machine that has only this folder."""
    shutil.copytree(HERE / "include", folder, dirs_exist_ok=True)
    shutil.copytree(INCLUDE / "softmetal", folder / "softmetal", dirs_exist_ok=True)
    (folder / "softmetal" / "swizzles.inc").write_text(swizzles.text())
