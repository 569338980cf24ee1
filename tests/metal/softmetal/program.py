"""A compiled shader: its kernels, run on NumPy arrays between guard pages."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from .errors import MetalError

_BUFFERS = 31
_ERROR_BYTES = 3000
# Programs share the process's signal handlers.
_ONE_LAUNCH = threading.Lock()


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("buffers", ctypes.c_void_p * _BUFFERS),
        ("bytes", ctypes.c_size_t * _BUFFERS),
        ("threadgroup_bytes", ctypes.c_size_t * _BUFFERS),
        ("order", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("switches", ctypes.c_uint64),
        ("fault_offset", ctypes.c_uint64),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("attribute", ctypes.c_char_p),
        ("index", ctypes.c_int32),
        ("bytes", ctypes.c_uint32),
        ("kind", ctypes.c_char),
        ("read_only", ctypes.c_char),
        ("needed", ctypes.c_void_p),
    ]


class _Constant(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("index", ctypes.c_int32),
        ("bytes", ctypes.c_uint32),
        ("type", ctypes.c_char),
    ]


class Program:
    """The kernels of one shader, by name.

    Attributes:
        path: of the shared library.
        kernels: names, in the order of the source.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = _open(path)
        count = self._library.softmetal_kernel_count()
        self.kernels = [self._library.softmetal_kernel_name(i).decode() for i in range(count)]

    def run(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        buffers: Mapping[int, np.ndarray],
        constants: Mapping[int, bool | int | float] | None = None,
        threadgroup_bytes: int | Mapping[int, int] = 0,
        order: int = 0,
    ) -> int:
        """Runs a kernel over a grid; buffers that it does not take as const are changed in place.

        Args:
            grid: threadgroups.
            threadgroup: threads of one.
            buffers: contiguous arrays by buffer index. One array may stand at several indices.
            constants: values of function constants by index.
            threadgroup_bytes: of the argument [[threadgroup(0)]], or of each by index.
            order: in which threadgroups, simdgroups and lanes run: 0 ascending, 1 descending, any
                other number is the seed of a random order. Buffers then lie at the end of guarded
                memory, at an odd number at its start.

        Returns:
            How often execution went from one thread to the next.

        Raises:
            MetalError: if the launch lacks something, or the kernel did what no kernel may do.
        """
        if kernel not in self.kernels:
            raise MetalError(f"no kernel '{kernel}'; there are {', '.join(self.kernels)}")
        index = self.kernels.index(kernel)
        if isinstance(threadgroup_bytes, int):
            threadgroup_bytes = {0: threadgroup_bytes}
        with _ONE_LAUNCH, ExitStack() as stack:
            self._set_constants(constants or {})
            launch = _Launch(grid, threadgroup, order=order)
            for i, size in threadgroup_bytes.items():
                launch.threadgroup_bytes[i] = size
            memory = _place(self._library, self._arguments(index), buffers, order, stack)
            for i, piece in memory.items():
                launch.buffers[i], launch.bytes[i] = piece.address, piece.array.nbytes
            error = ctypes.create_string_buffer(_ERROR_BYTES)
            if self._library.softmetal_run(index, ctypes.byref(launch), error, _ERROR_BYTES):
                raise MetalError(
                    error.value.decode(errors="replace") + self._line(launch.fault_offset)
                )
            for i, piece in memory.items():
                byte = ctypes.c_int64()
                if self._library.softmetal_guarded_damage(piece.address, ctypes.byref(byte)):
                    raise MetalError(
                        f"{kernel}: writes byte {byte.value} of buffer({i}) '{piece.name}', "
                        f"which has {piece.array.nbytes}"
                    )
            for piece in memory.values():
                piece.copy_back()
            return int(launch.switches)

    def _arguments(self, kernel: int) -> list[Any]:
        array = ctypes.POINTER(_Argument)()
        count = self._library.softmetal_kernel_arguments(kernel, ctypes.byref(array))
        return [array[i] for i in range(count)]

    def _set_constants(self, values: Mapping[int, bool | int | float]) -> None:
        library = self._library
        library.softmetal_clear_constants()
        for i in range(library.softmetal_constant_count()):
            constant = library.softmetal_constant_at(i).contents
            if constant.index not in values:
                continue
            kind, size = constant.type.decode(), constant.bytes
            dtype = {"b": "?", "i": f"i{size}", "u": f"u{size}", "f": "f4", "h": "f2"}[kind]
            value = np.array(values[constant.index], dtype)
            library.softmetal_set_constant(constant.index, value.ctypes.data, size)

    def _line(self, offset: int) -> str:
        """(file:line) of a fault, where addr2line is installed."""
        tool = shutil.which("addr2line")
        if not offset or not tool:
            return ""
        command = [tool, "-e", str(self.path), hex(offset)]
        out = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        found = re.match(r"(.+):(\d+)", out)
        return f" ({Path(found[1]).name}:{found[2]})" if found else ""


class _Piece:
    """An array's copy in guarded memory."""

    def __init__(self, library: Any, name: str, array: np.ndarray, at_start: bool) -> None:
        self.name = name
        self.array = array
        self.written = False
        self.address = library.softmetal_guarded_new(array.nbytes, at_start)
        if not self.address:
            raise MetalError(f"no memory for '{name}' ({array.nbytes} bytes)")
        ctypes.memmove(self.address, array.ctypes.data, array.nbytes)

    def copy_back(self) -> None:
        if self.written:
            ctypes.memmove(self.array.ctypes.data, self.address, self.array.nbytes)


def _place(
    library: Any,
    arguments: list[Any],
    buffers: Mapping[int, np.ndarray],
    order: int,
    stack: ExitStack,
) -> dict[int, _Piece]:
    """Guarded copies of all buffers, by index; arrays that are the same share one."""
    described = {a.index: a for a in arguments if a.attribute == b"buffer"}
    pieces: dict[int, _Piece] = {}
    for i, array in buffers.items():
        if not 0 <= i < _BUFFERS:
            raise MetalError(f"buffer index {i} is not below {_BUFFERS}")
        name = described[i].name.decode() if i in described else "unused"
        if not array.flags.c_contiguous:
            raise MetalError(f"buffer({i}) '{name}' is not contiguous")
        for other in pieces.values():
            same = (other.array.ctypes.data, other.array.nbytes) == (
                array.ctypes.data,
                array.nbytes,
            )
            if same and array.nbytes:
                pieces[i] = other
                break
            if np.may_share_memory(other.array, array):
                raise MetalError(f"buffer({i}) '{name}' overlaps '{other.name}'")
        else:
            pieces[i] = _Piece(library, name, array, at_start=order % 2 == 1)
            stack.callback(library.softmetal_guarded_delete, pieces[i].address)
        if i in described and described[i].read_only == b"\0":
            if not array.flags.writeable:
                raise MetalError(f"buffer({i}) '{name}' is written to, but its array is read-only")
            pieces[i].written = True
    for piece in pieces.values():
        library.softmetal_guarded_protect(piece.address, not piece.written)
    return pieces


def _open(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    library.softmetal_kernel_name.restype = ctypes.c_char_p
    library.softmetal_constant_at.restype = ctypes.POINTER(_Constant)
    library.softmetal_set_constant.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32]
    library.softmetal_guarded_new.restype = ctypes.c_void_p
    library.softmetal_guarded_new.argtypes = [ctypes.c_size_t, ctypes.c_int]
    library.softmetal_guarded_protect.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.softmetal_guarded_damage.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.softmetal_guarded_delete.argtypes = [ctypes.c_void_p]
    library.softmetal_run.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    return library
