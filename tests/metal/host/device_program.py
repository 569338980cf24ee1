"""The kernels of one shader on a Metal device, with the interface of softmetal.Program.

On a Mac the kernel tests, written for the software Metal, run through this on the GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metal.host.library import SHADERS, Buffer, Metal, load, names
from pamx.native.launch import Launch

_HOST_NAME = re.compile(r'host_name\("([^"]+)"\)')


def compile(  # noqa: A001
    path: str | os.PathLike[str], instantiations: Sequence[str] = (), language: int = 310
) -> DeviceProgram:
    """As softmetal.compile, for a file of shaders/; Metal compiles it when a kernel first runs."""
    del language  # the host knows which file needs which
    source = Path(path)
    if source.parent.resolve() != SHADERS:
        raise ValueError(f"{source} is not in {SHADERS}")
    return DeviceProgram(load(names()[0]), source.name, instantiations)


class DeviceProgram:
    """Kernels by name; each run copies its arrays to the device and back."""

    def __init__(self, metal: Metal, source: str, instantiations: Sequence[str]) -> None:
        self._metal, self._source = metal, source
        self._lines: dict[str, str] = {}
        for line in instantiations:
            if found := _HOST_NAME.search(line):
                self._lines[found[1]] = line

    def run(
        self,
        function: str,
        *,
        grid: Sequence[int],
        threadgroup: Sequence[int],
        buffers: Mapping[int, npt.NDArray[Any]],
        constants: Mapping[int, bool | int] | None = None,
        threadgroup_bytes: int = 0,
        order: int = 0,
    ) -> None:
        """Runs one dispatch; what the kernel writes is in the arrays afterwards.

        Args:
            order: The device chooses its own.
        """
        del order
        launch = Launch(
            source=self._source,
            function=function,
            instantiation=self._lines.get(function, ""),
            constants=dict(constants or {}),
            tokens_a_row=1,
            grid=_three(grid),
            threadgroup=_three(threadgroup),
            threadgroup_bytes=threadgroup_bytes,
        )
        held = {i: Buffer(self._metal, np.ascontiguousarray(a)) for i, a in buffers.items()}
        self._metal.run(launch, held)
        for index, array in buffers.items():
            if array.flags.writeable:
                array[...] = held[index].array


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return (int(x), int(y), int(z))
