"""A .metal file as CUDA text: translated once, each specialisation added by one line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from metal.softmetal import swizzles
from metal.softmetal.build import preprocess
from metal.softmetal.toolchain import INCLUDE
from metal.softmetal.translate import Kernel, translate

HERE = Path(__file__).parent
SHADERS = HERE.parents[1] / "shaders"


def translated(source: str) -> str:
    """The shader, still without a specialisation.

    Raises:
        MetalError: for what the Metal compiler would refuse.
    """
    translation = translate(preprocess(SHADERS / source, [], 310))
    return '#include "metal_cuda.hpp"\n' + translation.render(_bindings)


def _bindings(kernel: Kernel) -> str:
    types = ", ".join(p.binding for p in kernel.parameters)
    return f" typedef ::softmetal::BindingList<{types}> {kernel.bindings};"


def specialisation(function: str, instantiation: str, threads: int) -> str:
    """The __global__ function of one launch.

    Args:
        function: Host name.
        instantiation: The launch's Metal line, or nothing for a kernel that is no template.
        threads: Of a threadgroup.
    """
    found = re.search(r"decltype\((.*?)\) ", instantiation)
    expression = found[1] if found else function
    bindings = "sm_bindings_" + expression.split("<")[0].split("::")[-1]
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) {function}('
        f"const ::softmetal::Arguments a) {{ ::softmetal::Kernel<decltype({expression}), "
        f"&{expression}, {bindings}>::run(a); }}\n"
    )


def copy_headers(folder: Path) -> None:
    """Writes all that a translated shader includes, for a machine that has only this folder."""
    shutil.copytree(HERE / "include", folder, dirs_exist_ok=True)
    shutil.copytree(INCLUDE / "softmetal", folder / "softmetal", dirs_exist_ok=True)
    (folder / "softmetal" / "swizzles.inc").write_text(swizzles.text())
