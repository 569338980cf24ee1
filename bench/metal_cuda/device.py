"""Launches and timings on the GPU, with torch for memory and cupy for what NVRTC compiled."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
import torch

from pamx.native.launch import Launch

from .prepared import entry_of

MAX_BUFFERS = 31
ARGUMENTS = np.dtype([("buffers", np.uint64, MAX_BUFFERS)])


def architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def load(cubin: bytes, function: str) -> Any:
    """The module, which has to live as long as its function, and the function."""
    module = cupy.cuda.function.Module()
    module.load(cubin)
    return module, module.get_function(entry_of(function))


def resources(loaded: Any) -> tuple[int, int]:
    """Registers of a thread, and bytes of it that spilled to memory."""
    get, function = cupy.cuda.driver.funcGetAttribute, loaded[1].ptr
    return (
        get(cupy.cuda.driver.CU_FUNC_ATTRIBUTE_NUM_REGS, function),
        get(cupy.cuda.driver.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function),
    )


def _stream() -> Any:
    """torch's current stream, for cupy."""
    stream = torch.cuda.current_stream()
    if hasattr(stream, "__cuda_stream__"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream)


def launch_call(
    loaded: Any, launch: Launch, buffers: dict[int, torch.Tensor]
) -> Callable[[], None]:
    """A call that launches on torch's current stream; buffers by index, kept alive."""
    arguments = np.zeros((), ARGUMENTS)
    for i, tensor in buffers.items():
        arguments["buffers"][i] = tensor.data_ptr()
    kept = (loaded, buffers)
    function = loaded[1]
    grid, threadgroup = tuple(launch.grid), tuple(launch.threadgroup)

    def call() -> None:
        assert kept
        with _stream():
            function(grid, threadgroup, (arguments,), shared_mem=launch.threadgroup_bytes)

    return call


class Timed:
    """Calls recorded once and replayed: no launch overhead of the host is timed."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self.calls = calls  # with their modules and buffers, which the graph does not hold
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for call in calls:
                call()
        self.graph.replay()
        torch.cuda.synchronize()

    def seconds(self) -> float:
        """Of one call, over one replay."""
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / len(self.calls)


def interleaved(candidates: dict[str, Timed], rounds: int) -> dict[str, float]:
    """Median seconds of a call of each, measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, timed in candidates.items():
            seconds[name].append(timed.seconds())
    return {name: statistics.median(times) for name, times in seconds.items()}
