"""The checks of tests/metal, executed by the GPU instead of the software Metal.

Their steps are full of traps: ragged lengths, shuffled block tables with wild entries behind their
end, NaN in every slot that no token owns, poisoned memory wherever a kernel writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from metal import attention_case
from metal.attention_case import Programs, Run
from metal.formats import ROUNDING, Bits
from metal.page_moves import Move

from pamx.native.launch import Launch

from . import device
from .prepared import Prepared, name_of


class OnCuda(Programs):
    """Runs what was prepared; the machine may lack the native library and clang."""

    def __init__(self, prepared: Prepared) -> None:
        super().__init__()
        self.prepared = prepared
        self.loaded: dict[str, Any] = {}
        attention_case.launch_of = prepared.launch_of

    def execute(self, launch: Launch, buffers: dict[int, Bits], order: int = 0) -> None:
        """One dispatch; `order` is the hardware's."""
        del order
        key = name_of(launch)
        if key not in self.loaded:
            cubin = self.prepared.compile(launch, device.architecture())
            self.loaded[key] = device.load(cubin, launch.function)
        tensors = {
            int(i): torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).cuda()
            for i, array in buffers.items()
        }
        device.launch_call(self.loaded[key], launch, tensors)()
        for i, array in buffers.items():
            array.reshape(-1).view(np.uint8)[:] = tensors[int(i)].cpu().numpy()

    def check_move(self, move: Move) -> None:
        """Runs it.

        Raises:
            AssertionError: a byte is not what it should be.
        """
        self.execute(self.prepared.launch_of(move.shape), move.buffers)
        move.check()

    def error_of(self, run: Run) -> float:
        """Largest error of a run's output, in units of what its rounding and float sums allow.

        Raises:
            AssertionError: a value is not finite, or a partition is not what its contract says.
        """
        result = self.run(run)
        assert np.isfinite(result.out).all(), "the output is not finite"
        if run.partition:
            attention_case.check_partials(run, result)
        expected = result.step.expected()
        allowed = run.error + ROUNDING[run.dtype] * np.abs(expected)
        return float((np.abs(result.out - expected) / allowed).max())
