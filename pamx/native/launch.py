"""Dispatches of the Metal shaders, as data: which specialisation, which grid."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pamx.native.loader import Library, check, library
from pamx.native.whole_numbers import int32


class Kernel(IntEnum):
    """A shader; the numbers are pamx_kernel's."""

    PAGED_ATTENTION = 0
    GQA_DECODE = 1
    GQA_DECODE_HEADS = 2
    SPLIT_KV_REDUCE = 3
    PREFILL_TILED = 4
    PREFILL_NAX = 5
    MLA_DECODE = 6
    MLA_PREFILL = 7
    KV_WRITE = 8
    COPY_BLOCKS = 9
    GATHER_BLOCKS = 10


DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


def dtype_number(name: str, dtype: str) -> int:
    """C's number of the dtype that the argument `name` gives.

    Raises:
        ValueError: it is none that the kernels have.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{name} is {dtype!r}; the kernels have {', '.join(DTYPES)}.")
    return DTYPES[dtype]


@dataclass(frozen=True)
class LaunchShape:
    """What a dispatch works on; a kernel reads what it has a use for (pamx_launch_desc)."""

    kernel: Kernel
    dtype: str = "float16"
    pool_dtype: str = "float16"
    heads: int = 0
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    block_size: int = 0
    partition: int = 0
    num_partitions: int = 0
    rows: int = 0
    tokens: int = 0
    block_bytes: int = 0
    window: bool = False
    softcap: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class Launch:
    """One dispatch (pamx_launch).

    Attributes:
        source: File in shaders/ that holds the kernel.
        function: Host name of the specialisation.
        instantiation: The Metal source line that makes it.
        constants: Function constants by index (shaders/params.h).
        tokens_a_row: Query tokens of one sequence that a work row takes.
        grid: Threadgroups in x, y and z.
        threadgroup: Threads in x, y and z.
        threadgroup_bytes: Dynamic threadgroup memory at index 0.
    """

    source: str
    function: str
    instantiation: str
    constants: dict[int, bool | int]
    tokens_a_row: int
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    threadgroup_bytes: int


def launch_of(shape: LaunchShape) -> Launch:
    """The dispatch that would serve this; nothing is run.

    Raises:
        NativeError: no specialisation of the kernel serves the shape, with the reason.
        ValueError: a number is no int32, or a dtype unknown.
    """
    native = library()
    desc = native.ffi.new("pamx_launch_desc*")
    for name in LaunchShape.__annotations__:
        value = getattr(shape, name)
        number = dtype_number(name, value) if isinstance(value, str) else int32(name, value)
        setattr(desc, name, number)
    made = native.ffi.new("pamx_launch*")
    check(native, native.lib.pamx_metal_launch(desc, made))
    return launch_from(native, made)


def shape_from(desc: Any) -> LaunchShape:
    """A pamx_launch_desc of the library's."""
    names = {number: name for name, number in DTYPES.items()}
    values: dict[str, Any] = {
        name: int(getattr(desc, name)) for name in LaunchShape.__annotations__
    }
    for name in ("dtype", "pool_dtype"):
        values[name] = names[values[name]]
    for name in ("window", "softcap", "sinks"):
        values[name] = bool(values[name])
    return LaunchShape(**values | {"kernel": Kernel(values["kernel"])})


def launch_from(native: Library, made: Any) -> Launch:
    """A pamx_launch of the library's."""

    def text(name: str) -> str:
        return str(native.ffi.string(getattr(made, name)).decode())

    values: list[bool | int] = [
        bool(made.has_window),
        bool(made.has_softcap),
        bool(made.has_sinks),
        int(made.block_size),
    ]
    return Launch(
        source=text("source"),
        function=text("function"),
        instantiation=text("instantiation"),
        constants={i: v for i, v in enumerate(values) if made.constant_mask >> i & 1},
        tokens_a_row=int(made.tokens_a_row),
        grid=(int(made.grid[0]), int(made.grid[1]), int(made.grid[2])),
        threadgroup=(int(made.threadgroup[0]), int(made.threadgroup[1]), int(made.threadgroup[2])),
        threadgroup_bytes=int(made.threadgroup_bytes),
    )
