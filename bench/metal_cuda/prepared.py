"""A folder with everything that a GPU machine needs to compile and launch: sources and launches.

Written where the native library and the translator's compiler are, read where the GPU is; the two
may be one machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pamx.native.launch import Launch, LaunchShape

from . import nvrtc


@dataclass(frozen=True)
class Limits:
    """What the compiler should get by with, a thread's registers; it takes either as a hint.

    Attributes:
        resident: With as many threadgroups on a multiprocessor as that leaves room for.
        most: At most, more or less.
    """

    resident: int = 0
    most: int = 0


NO_LIMITS = Limits()


def specialisation(function: str, instantiation: str, threads: int, blocks: int = 0) -> str:
    """The __global__ function of one launch.

    Args:
        function: Host name.
        instantiation: The launch's Metal line, or nothing for a kernel that is no template.
        threads: Of a threadgroup.
        blocks: Threadgroups that a multiprocessor should have registers for; 0: no wish.
    """
    expression = function
    if "decltype(" in instantiation:
        expression = instantiation.split("decltype(", 1)[1].split(") ", 1)[0]
    bindings = "sm_bindings_" + expression.split("<")[0].split("::")[-1]
    bounds = f"{threads}, {blocks}" if blocks else f"{threads}"
    return (
        f'extern "C" __global__ void __launch_bounds__({bounds}) {entry_of(function)}('
        f"const ::softmetal::Arguments a) {{ ::softmetal::Kernel<decltype({expression}), "
        f"&{expression}, {bindings}>::run(a); }}\n"
    )


def entry_of(function: str) -> str:
    """The __global__ function's name: a kernel that is no template has its own already."""
    return "run_" + function


def key_of(shape: LaunchShape) -> str:
    return json.dumps({**asdict(shape), "kernel": int(shape.kernel)})


def name_of(launch: Launch) -> str:
    """Of what is compiled for it: one for each function, threadgroup and set of constants."""
    constants = "".join(f"_{i}{int(value)}" for i, value in launch.constants.items())
    x, y, z = launch.threadgroup
    return f"{launch.function}_t{x * y * z}{constants}"


def prepare(folder: Path, shapes: Iterable[LaunchShape]) -> None:
    """Writes the folder; needs the native library and clang."""
    from pamx.native.launch import launch_of

    from . import source

    folder.mkdir(parents=True, exist_ok=True)
    source.copy_headers(folder / "include")
    launches: dict[str, Any] = {}
    for shape in shapes:
        launches.setdefault(key_of(shape), asdict(launch_of(shape)))
    for name in {launch["source"] for launch in launches.values()}:
        (folder / name).with_suffix(".cu").write_text(source.translated(name))
    (folder / "launches.json").write_text(json.dumps(launches))


class Prepared:
    """What `prepare` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches: dict[str, Any] = json.loads((folder / "launches.json").read_text())

    def launch_of(self, shape: LaunchShape) -> Launch:
        found = dict(self.launches[key_of(shape)])
        found["constants"] = {int(i): value for i, value in found["constants"].items()}
        return Launch(**found)

    def compile(self, launch: Launch, architecture: str, limits: Limits = NO_LIMITS) -> bytes:
        """A cubin, kept in the folder."""
        out = self._cubin(launch, limits)
        if not out.exists():
            x, y, z = launch.threadgroup
            blocks = 65536 // (limits.resident * x * y * z) if limits.resident else 0
            text = specialisation(launch.function, launch.instantiation, x * y * z, blocks)
            shader = (self.folder / launch.source).with_suffix(".cu").read_text()
            headers = self.folder / "include"
            cubin = nvrtc.compile_cuda(
                shader + text, headers, architecture, launch.constants, limits.most
            )
            out.parent.mkdir(exist_ok=True)
            out.write_bytes(cubin)
        return out.read_bytes()

    def _cubin(self, launch: Launch, limits: Limits) -> Path:
        name = f"{name_of(launch)}_r{limits.resident}_m{limits.most}.cubin"
        return self.folder / "cubins" / name

    def compile_all(
        self, wanted: Sequence[tuple[Launch, Limits]], architecture: str, processes: int
    ) -> None:
        """The same for many, each specialisation once."""
        missing = {self._cubin(*one): one for one in wanted}
        missing = {path: one for path, one in missing.items() if not path.exists()}
        if not missing:
            return
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            jobs = [
                pool.submit(_compile, self.folder, launch, architecture, limits)
                for launch, limits in missing.values()
            ]
            for job in jobs:
                job.result()


def _compile(folder: Path, launch: Launch, architecture: str, limits: Limits) -> None:
    Prepared(folder).compile(launch, architecture, limits)
