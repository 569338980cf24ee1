"""The GPU of a Mac, as the native library sees it."""

from __future__ import annotations

from dataclasses import dataclass

from pamx.errors import NativeError
from pamx.native.loader import check, library


@dataclass(frozen=True)
class MetalGpu:
    """What is known about the GPU (pamx_metal_facts).

    Attributes:
        name: For example "Apple M3 Max".
        architecture: For example "applegpu_g15s"; empty: unknown.
        os_version: Of macOS; empty: unknown.
        family: n of MTLGPUFamilyApple<n>; 0: unknown.
        cores: 0: unknown.
        working_set_bytes: What the system recommends to stay below.
        largest_buffer_bytes: Of one buffer.
        threadgroup_bytes: Memory of a threadgroup.
    """

    name: str
    architecture: str
    os_version: str
    family: int
    cores: int
    working_set_bytes: int
    largest_buffer_bytes: int
    threadgroup_bytes: int


def metal_gpu() -> MetalGpu:
    """This machine's GPU.

    Raises:
        NativeError: the library cannot be used here, was built without Metal, or finds no device
            or no shaders.
    """
    native = library()
    if not native.lib.pamx_metal_built():
        raise NativeError(
            "The native library was built without Metal kernels.", "They are for macOS."
        )
    found = native.ffi.new("pamx_metal_facts*")
    check(native, native.lib.pamx_metal_gpu(found))

    def value(name: str) -> str | int:
        field = getattr(found, name)
        return int(field) if isinstance(field, int) else native.ffi.string(field).decode()

    facts = {name: value(name) for name in MetalGpu.__annotations__}
    return MetalGpu(**facts)  # type: ignore[arg-type]
