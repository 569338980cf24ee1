"""native/metal as a library that Python calls: on Linux over the software device, else Apple's.

Both have the C interface of native/include/pamx.h, so a test need not know which one it has.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cffi import FFI
from oracle import Step

from metal import softmetal
from metal.formats import STORAGE, from_bits, to_bits
from metal.host import build
from metal.softmetal.build import compiled
from pamx.native.launch import Launch

ROOT = Path(__file__).parents[3]
SHADERS = ROOT / "shaders"
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
Array = npt.NDArray[Any]

# What the software device has besides the library's own interface (tests/metal/host/software).
_SOFTWARE = """
void softmetal_set_compiler(int (*compiler)(const char*, uint32_t, char*, size_t));
void softmetal_set_order(uint32_t order);
void softmetal_set_descending(int32_t on);
void softmetal_set_machine(const char* name, const char* architecture, const char* os_version,
                           int32_t family, int32_t cores, uint32_t most_threads);
int64_t softmetal_objects_alive(void);
"""


class MetalError(Exception):
    """What the library said, and its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Buffer:
    """Memory that the device shares, as a NumPy array; freed with the object."""

    def __init__(self, metal: Metal, data: Array) -> None:
        self.metal = metal
        place = metal.ffi.new("pamx_metal_buffer**")
        metal.check(metal.lib.pamx_metal_buffer_create(max(data.nbytes, 1), place))
        self.handle = place[0]
        address = metal.lib.pamx_metal_buffer_data(self.handle)
        memory = metal.ffi.buffer(address, data.nbytes)
        self.array = np.frombuffer(memory, data.dtype).reshape(data.shape)
        self.array[...] = data

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.metal.lib.pamx_metal_buffer_free(handle)


@dataclass
class Answer:
    """float32 arrays: [tokens, heads, v_dim], and the pools afterwards as bits."""

    out: npt.NDArray[np.float32]
    key_pool: Array
    value_pool: Array
    text: str
    seconds: float


class Metal:
    """The library's Metal interface."""

    def __init__(self, ffi: Any, path: Path, software: Any = None) -> None:
        self.ffi, self.lib, self.path, self.software = ffi, ffi.dlopen(str(path)), path, software

    def become(
        self,
        name: str = "software Metal",
        architecture: str = "applegpu_g15g",
        os_version: str = "15.5",
        family: int = 9,
        cores: int = 10,
        most_threads: int = 1024,
    ) -> None:
        """What the software device says of itself to libraries that have not asked yet."""
        texts = (t.encode() for t in (name, architecture, os_version))
        self.software.softmetal_set_machine(*texts, family, cores, most_threads)

    @contextmanager
    def descending(self) -> Iterator[None]:
        """The software device runs what no barrier orders last to first; others are not asked."""
        if self.software is None:
            yield
            return
        self.software.softmetal_set_descending(1)
        try:
            yield
        finally:
            self.software.softmetal_set_descending(0)

    def check(self, status: int) -> None:
        if status:
            raise MetalError(status, self.ffi.string(self.lib.pamx_last_error()).decode())

    def configure(self, shaders: Path = SHADERS, metallib: Path | None = None) -> None:
        path = self.ffi.NULL if metallib is None else os.fsencode(metallib)
        self.check(self.lib.pamx_metal_configure(os.fsencode(shaders), path))

    def facts(self) -> Any:
        facts = self.ffi.new("pamx_metal_facts*")
        self.check(self.lib.pamx_metal_gpu(facts))
        return facts

    def scratch_bytes(self) -> int:
        held = self.ffi.new("int64_t*")
        self.check(self.lib.pamx_metal_scratch_bytes(held))
        return int(held[0])

    def batch(self, step: Step) -> Any:
        desc = self.ffi.new("pamx_batch_desc*")
        keep = [
            np.ascontiguousarray(a)
            for a in (step.query_starts, step.context_lens, step.block_tables)
        ]
        desc.num_sequences, desc.num_blocks = len(keep[1]), step.num_blocks
        desc.block_size, desc.max_blocks = step.case.block_size, keep[2].shape[1]
        desc.query_starts, desc.context_lens, desc.block_tables = (
            self.ffi.from_buffer("int32_t[]", a) for a in keep
        )
        place = self.ffi.new("pamx_batch**")
        self.check(self.lib.pamx_batch_create(desc, place))
        return self.ffi.gc(place[0], self.lib.pamx_batch_free)

    def attention(
        self, step: Step, dtype: str, pool_dtype: str | None = None, *, by_head: bool = False
    ) -> Answer:
        """The step's new rows into the pools, then attention.

        Args:
            by_head: Rows lie as [heads, tokens, dim], as in a prompt of one sequence.

        Raises:
            MetalError: the library refuses or the device fails.
        """
        pools = pool_dtype or dtype
        case = step.case
        rows = {}
        for name in ("queries", "keys", "values"):
            bits = to_bits(getattr(step, name), dtype)
            rows[name] = Buffer(self, bits.swapaxes(0, 1).copy() if by_head else bits)
        key_pool = Buffer(self, to_bits(step.key_pool, pools))
        value_pool = Buffer(self, to_bits(step.value_pool, pools))
        out = Buffer(self, np.full((len(step.queries), case.heads, case.v_dim), 0, STORAGE[dtype]))
        sinks = None if step.sinks is None else Buffer(self, step.sinks)

        tensors = self.ffi.new("pamx_metal_tensors*")
        tensors.dtype, tensors.pool_dtype = DTYPES[dtype], DTYPES[pools]
        tensors.heads, tensors.kv_heads = case.heads, case.kv_heads
        tensors.k_dim, tensors.v_dim = case.k_dim, case.v_dim
        for name, buffer in rows.items():
            strides = [s // buffer.array.itemsize for s in buffer.array.strides]
            place = getattr(tensors, name)
            place.buffer = buffer.handle
            place.token_stride, place.head_stride = strides[by_head], strides[not by_head]
        tensors.key_pool, tensors.value_pool = key_pool.handle, value_pool.handle
        tensors.sinks = self.ffi.NULL if sinks is None else sinks.handle
        tensors.out = out.handle
        params = self.ffi.new(
            "pamx_attention_params*", [step.scale, case.softcap, case.window or 0]
        )
        report = self.ffi.new("pamx_metal_report*")
        self.check(self.lib.pamx_metal_attention(self.batch(step), params, tensors, report))
        return Answer(
            from_bits(out.array, dtype).copy(),
            key_pool.array.copy(),
            value_pool.array.copy(),
            self.ffi.string(report.text).decode(),
            float(report.gpu_seconds),
        )

    def run(
        self,
        launch: Launch,
        buffers: Mapping[int, Buffer | npt.NDArray[Any]],
    ) -> float:
        """Runs one dispatch; arrays are bound as bytes. Returns the GPU's seconds."""
        given = self.ffi.new("pamx_launch*")
        keep: list[Any] = []
        for name in ("source", "function", "instantiation"):
            keep.append(self.ffi.new("char[]", getattr(launch, name).encode()))
            setattr(given, name, keep[-1])
        given.constant_mask = sum(1 << i for i in launch.constants)
        given.has_window, given.has_softcap, given.has_sinks, given.block_size = (
            int(launch.constants.get(i, 0)) for i in range(4)
        )
        given.grid, given.threadgroup = launch.grid, launch.threadgroup
        given.threadgroup_bytes = launch.threadgroup_bytes
        bindings = self.ffi.new("pamx_metal_binding[]", len(buffers))
        for binding, (index, bound) in zip(bindings, buffers.items(), strict=True):
            binding.index = index
            if isinstance(bound, Buffer):
                binding.buffer = bound.handle
            else:
                keep.append(self.ffi.from_buffer(bound))
                binding.bytes, binding.size = keep[-1], bound.nbytes
        seconds = self.ffi.new("double*")
        self.check(self.lib.pamx_metal_run(given, bindings, len(buffers), seconds))
        return float(seconds[0])

    def copy_blocks(self, pool: Buffer, sources: Sequence[int], targets: Sequence[int]) -> None:
        block_bytes = pool.array[0].nbytes
        ids = [self.ffi.new("int32_t[]", list(i)) for i in (sources, targets)]
        self.check(self.lib.pamx_metal_copy_blocks(pool.handle, block_bytes, *ids, len(sources)))

    def gather(self, pool: Buffer, table: Sequence[int], tokens: int) -> Array:
        """[tokens, ...] of a sequence whose blocks of the pool [blocks, size, ...] these are."""
        out = Buffer(self, np.zeros((tokens, *pool.array.shape[2:]), pool.array.dtype))
        ids = self.ffi.new("int32_t[]", list(table))
        size, token_bytes = pool.array.shape[1], pool.array[0, 0].nbytes
        self.check(
            self.lib.pamx_metal_gather(
                pool.handle, ids, len(table), tokens, size, token_bytes, out.handle
            )
        )
        return out.array.copy()


def names() -> list[str]:
    """The libraries that this machine can have."""
    return ["device"] if sys.platform == "darwin" else ["mrc", "arc"]


def missing() -> str:
    """Why there is none, in one clause; empty: there is."""
    if sys.platform == "darwin":
        from pamx.native.loader import library

        return "" if library().lib.pamx_metal_built() else "pamx was built without Metal"
    return softmetal.missing() or build.missing()


def need(reason: str) -> None:
    """Skips the test for this reason; none: goes on. Where everything must run it fails instead."""
    if reason and os.environ.get("PAMX_REQUIRE_METAL_TESTS"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@functools.cache
def load(name: str) -> Metal:
    """The library of this name, its shaders those of this tree."""
    metal = _open(_path(name))
    metal.configure()
    return metal


def fresh(name: str, folder: Path) -> Metal:
    """A copy of the library, in `folder`, that has seen no device and knows no shaders yet."""
    path = _path(name)
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    shutil.copy(path, copy)
    return _open(copy)


def _path(name: str) -> Path:
    if name == "device":
        from pamx.native.loader import library

        return library().path
    return Path(getattr(build.build(), name))


def _open(path: Path) -> Metal:
    ffi = FFI()
    ffi.cdef((ROOT / "native" / "include" / "pamx.h").read_text())
    if sys.platform == "darwin":
        return Metal(ffi, path)
    ffi.cdef(_SOFTWARE)
    device = ffi.dlopen(str(build.OUT / "libsoftmetal.so"))
    device.softmetal_set_compiler(_compiler(ffi))
    return Metal(ffi, path, device)


_compilers: list[Any] = []  # cffi callbacks live as long as the process
compilations: list[str] = []  # the text of each library that was asked for


def _compiler(ffi: Any) -> Any:
    @ffi.callback("int(const char*, uint32_t, char*, size_t)")  # type: ignore[untyped-decorator]
    def compile_source(source: Any, language: int, answer: Any, size: int) -> int:
        text = ffi.string(source)
        compilations.append(text.decode())
        folder = build.OUT / "sources"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{hashlib.sha256(text).hexdigest()[:24]}.metal"
        if not path.exists():  # whole or not at all: another process may read it
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_bytes(text)
            partial.replace(path)
        try:
            # 196609 is Metal 3.1: two halves of 16 bits.
            number = (language >> 16) * 100 + (language & 0xFFFF) * 10
            words, failed = str(compiled(path, (), number)), 0
        except softmetal.MetalError as error:
            words, failed = str(error), 1
        data = words.encode()[: size - 1]
        ffi.memmove(answer, data + b"\0", len(data) + 1)
        return failed

    _compilers.append(compile_source)
    return compile_source
