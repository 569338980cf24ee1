"""Packed weight matrices: the native library's own layout of MLX's weights, and what runs on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from pamx.errors import NativeError
from pamx.native import ops
from pamx.native.loader import check, library
from pamx.native.small import array_id

Compute = Literal["fast", "exact"]

_DTYPES = {mx.float32: 0, mx.float16: 1, mx.bfloat16: 2}  # pamx_dtype
COMPUTES: dict[Compute, int] = {"fast": 0, "exact": 1}  # pamx_compute
# Where a matrix may begin in memory.
ALIGNMENT = 64


class Memory:
    """Memory for packed weights, outside of MLX: zeroed, or a mapped file.

    It lives until the last matrix in it is gone.
    """

    def __init__(self, handle: Any) -> None:
        native = library()
        self.handle = native.ffi.gc(handle, native.lib.pamx_memory_free)

    @staticmethod
    def allocate(size: int) -> Memory:
        """New memory of `size` bytes, zeroed.

        Raises:
            NativeError: there is no such memory.
        """
        native = library()
        out = native.ffi.new("pamx_memory**")
        check(native, native.lib.pamx_memory_allocate(size, out))
        return Memory(out[0])

    @staticmethod
    def map(path: Path, size: int) -> Memory:
        """A file's bytes, read-only.

        Raises:
            NativeError: the file cannot be read or is not exactly `size` bytes long.
        """
        native = library()
        out = native.ffi.new("pamx_memory**")
        check(native, native.lib.pamx_memory_map(bytes(path), size, out))
        return Memory(out[0])

    @property
    def nbytes(self) -> int:
        return int(library().lib.pamx_memory_bytes(self.handle))

    def view(self, offset: int = 0, size: int | None = None) -> memoryview:
        """The bytes [offset, offset + size) without a copy; valid as long as this object is.

        A mapped file's must not be written.
        """
        native = library()
        if size is None:
            size = self.nbytes - offset
        if offset < 0 or size < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} are not in memory of {self.nbytes}")
        data = native.ffi.cast("char*", native.lib.pamx_memory_data(self.handle))
        return memoryview(native.ffi.buffer(data + offset, size))


@dataclass(frozen=True)
class MatrixFormat:
    """A weight matrix [outputs, inputs]: MLX's affine quantisation, or dense.

    Attributes:
        bits: 2, 3, 4, 6 or 8; 0 for dense.
        group_size: Inputs that share a scale: 32, 64 or 128, of which `inputs` is a multiple;
            0 for dense.
        scale_type: What scales and biases, or dense elements, are kept in: float32, float16 or
            bfloat16.
    """

    outputs: int
    inputs: int
    bits: int
    group_size: int
    scale_type: mx.Dtype

    @staticmethod
    def of(
        weight: mx.array, scales: mx.array | None, *, bits: int = 0, group_size: int = 0
    ) -> MatrixFormat:
        """The format for MLX's arrays, with scales in their own dtype."""
        outputs, columns = weight.shape
        if scales is None:
            return MatrixFormat(outputs, columns, 0, 0, weight.dtype)
        return MatrixFormat(outputs, columns * 32 // bits, bits, group_size, scales.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes that the packed matrix takes, a multiple of `ALIGNMENT` when quantised.

        Raises:
            NativeError: there is no such format.
        """
        native = library()
        size = native.ffi.new("int64_t*")
        check(native, native.lib.pamx_matrix_bytes(self.native(), size))
        return int(size[0])

    def native(self) -> Any:
        """The pamx_matrix_format of this format."""
        desc = library().ffi.new("pamx_matrix_format*")
        desc.outputs, desc.inputs = self.outputs, self.inputs
        desc.bits, desc.group_size = self.bits, self.group_size
        desc.scale_type = _pamx_dtype(self.scale_type)
        return desc


def narrowest_scale_type(*arrays: mx.array) -> mx.Dtype:
    """float16 if the arrays are float32 and float16 holds each of their values exactly, else
    their own dtype.

    The arithmetic stays what it is: numbers are widened when they are used.
    """
    dtype = arrays[0].dtype
    if dtype != mx.float32:
        return dtype
    for array in arrays:
        values = _numpy(array)
        with np.errstate(over="ignore"):
            back = values.astype(np.float16).astype(np.float32)
        if not np.array_equal(back.view(np.uint32), values.view(np.uint32)):
            return dtype
    return mx.float16


def pack(
    matrix_format: MatrixFormat,
    weight: mx.array,
    scales: mx.array | None,
    biases: mx.array | None,
    into: Memory,
    offset: int = 0,
) -> None:
    """Writes MLX's arrays into memory in the packed layout.

    Args:
        weight: uint32 [outputs, inputs * bits / 32], or dense [outputs, inputs].
        scales, biases: [outputs, inputs / group_size] of one dtype; None for dense.
        offset: Where the matrix begins, a multiple of `ALIGNMENT`.

    Raises:
        NativeError: no such format, or a value that `scale_type` cannot hold exactly.
        ValueError: shapes or dtypes do not fit the format, or the matrix the memory.
    """
    f = matrix_format
    native = library()
    source = weight if scales is None else scales
    expected: list[tuple[str, mx.array | None, tuple[int, ...], mx.Dtype]]
    if f.bits == 0:
        expected = [("weight", weight, (f.outputs, f.inputs), weight.dtype)]
    else:
        columns = f.inputs * f.bits // 32
        groups = (f.outputs, f.inputs // f.group_size)
        expected = [
            ("weight", weight, (f.outputs, columns), mx.uint32),
            ("scales", scales, groups, source.dtype),
            ("biases", biases, groups, source.dtype),
        ]
    size = f.nbytes  # checks the format, too
    for name, array, shape, dtype in expected:
        if array is None or array.shape != shape or array.dtype != dtype:
            found = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise ValueError(f"{name} is {found} instead of {dtype} {list(shape)}")
    place = into.view(offset, size)
    data = [None if a is None else _numpy(a) for a in (weight, scales, biases)]
    status = native.lib.pamx_matrix_pack(
        f.native(),
        *(native.ffi.NULL if d is None else native.ffi.from_buffer(d) for d in data),
        _pamx_dtype(source.dtype),
        native.ffi.from_buffer(place),
    )
    check(native, status)


class Matrix:
    """A packed matrix, ready to multiply.

    Args:
        matrix_format: What it is.
        memory: Where its panels lie, from `offset`, a multiple of `ALIGNMENT`.
        bias: [outputs] of any floating dtype, added to every product; copied.
        wide: In `fast`, activations keep 15 bits instead of 8: for an output head.

    Raises:
        NativeError: no such format, or the matrix does not fit the memory.
        ValueError: the bias has another shape.
    """

    def __init__(
        self,
        matrix_format: MatrixFormat,
        memory: Memory,
        offset: int = 0,
        *,
        bias: mx.array | None = None,
        wide: bool = False,
    ) -> None:
        native = library()
        ffi = native.ffi
        self.format = matrix_format
        self.memory = memory
        self.offset = offset
        self.wide = wide
        values = None
        if bias is not None:
            if bias.shape != (matrix_format.outputs,):
                raise ValueError(
                    f"bias has shape {list(bias.shape)} instead of [{matrix_format.outputs}]"
                )
            values = _numpy(bias.astype(mx.float32))
        out = ffi.new("pamx_matrix**")
        status = native.lib.pamx_matrix_create(
            matrix_format.native(),
            memory.handle,
            offset,
            ffi.NULL if values is None else ffi.from_buffer("float[]", values),
            wide,
            out,
        )
        check(native, status)
        self.handle = ffi.gc(out[0], native.lib.pamx_matrix_free)

    def unpack(
        self, scale_type: mx.Dtype | None = None
    ) -> tuple[mx.array, mx.array | None, mx.array | None]:
        """MLX's arrays again, bit for bit: weight, scales and biases (None when dense).

        Args:
            scale_type: What scales and biases, or dense elements, are to be; by default what
                they are kept in.

        Raises:
            NativeError: a value does not fit `scale_type` exactly.
            MemoryError: there is no memory for them.
        """
        native = library()
        f = self.format
        dtype = scale_type or f.scale_type
        kind = mx.float32 if dtype == mx.float32 else mx.uint16
        scales = biases = None
        if f.bits == 0:
            weight = _blank((f.outputs, f.inputs), kind)
        else:
            weight = _blank((f.outputs, f.inputs * f.bits // 32), mx.uint32)
            scales = _blank((f.outputs, f.inputs // f.group_size), kind)
            biases = _blank((f.outputs, f.inputs // f.group_size), kind)
        status = native.lib.pamx_matrix_unpack(
            f.native(),
            native.ffi.from_buffer(self.memory.view(self.offset, f.nbytes)),
            *(
                native.ffi.NULL if a is None else native.ffi.from_buffer(np.array(a, copy=False))
                for a in (weight, scales, biases)
            ),
            _pamx_dtype(dtype),
        )
        check(native, status)
        if scales is None or biases is None:
            return weight.view(dtype), None, None
        return weight, scales.view(dtype), biases.view(dtype)


def linear(matrix: Matrix, x: mx.array, compute: Compute = "fast") -> mx.array:
    """x W^T + bias, as one lazy operation.

    Args:
        x: [..., inputs] of float32, float16 or bfloat16.
        compute: `fast` rounds activations to int8, 32 at a time; `exact` keeps float32. Dense
            matrices always compute in float32.

    Returns:
        [..., outputs] in x's dtype. A row's bits depend on that row of x alone.

    Raises:
        NativeError: shape or dtype are wrong, or MLX's default device is not the CPU.
    """
    native = library()
    out = native.blank()
    status = native.lib.pamx_linear(matrix.handle, COMPUTES[compute], array_id(x, "x"), id(out))
    check(native, status)
    return out


def embedding(matrix: Matrix, ids: mx.array, dtype: mx.Dtype) -> mx.array:
    """Rows of the matrix as `mx.dequantize` gives them for scales of `dtype`, lazily.

    Args:
        ids: Integers of any shape; negative ones count from the end.

    Returns:
        [..., inputs] of `dtype`; NaN for an id outside the matrix.

    Raises:
        NativeError: ids are no integers, or MLX's default device is not the CPU.
    """
    native = library()
    out = native.blank()
    ids_id = array_id(ids, "ids")
    status = native.lib.pamx_embedding(matrix.handle, ids_id, _pamx_dtype(dtype), id(out))
    check(native, status)
    return out


def _pamx_dtype(dtype: mx.Dtype) -> int:
    if dtype not in _DTYPES:
        raise ValueError(f"{dtype} is not float32, float16 or bfloat16")
    return _DTYPES[dtype]


def _blank(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """An array to write into. MLX's own copies of numpy's crash where memory is at its end.

    Raises:
        MemoryError: there is no memory for it.
    """
    with mx.stream(mx.cpu):
        try:
            return ops.empty(shape, dtype)
        except NativeError as error:
            raise MemoryError(error.message) from error


def _numpy(array: mx.array) -> npt.NDArray[Any]:
    """The array's memory, without a copy where it is contiguous; 16-bit floats as uint16."""
    array = mx.contiguous(array)
    if array.dtype in (mx.float16, mx.bfloat16):
        array = array.view(mx.uint16)
    mx.eval(array)
    values = np.array(array, copy=False)
    assert values.nbytes == math.prod(array.shape) * values.itemsize
    return values
