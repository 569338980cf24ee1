"""The peak of one sample: reset where the system lets a process do that, and told otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pamx.bench.programs import memory

BIG = 200 << 20


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no proc(5) here")
def test_a_peak_forgets_what_was_before() -> None:
    before = np.ones(BIG, np.uint8)
    del before
    peak = memory.watch()
    small, counted = peak()
    assert counted == memory.OF_PROCESS
    peak = memory.watch()
    held = np.ones(BIG, np.uint8)
    del held
    large, _ = peak()
    assert large - small == pytest.approx(BIG, rel=0.05)


def test_a_system_that_resets_nothing_has_what_mlx_held(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for text, clear in (
        ("VmHWM:\t 900000 kB\nVmRSS:\t 100000 kB\n", tmp_path / "clear_refs"),  # to no effect
        ("VmHWM:\t 100000 kB\nVmRSS:\t 100000 kB\n", tmp_path / "no" / "clear_refs"),
        ("VmRSS:\t 100000 kB\n", tmp_path / "clear_refs"),
        ("VmHWM:\t many kB\n", tmp_path / "clear_refs"),
    ):
        status.write_text(text)
        peak = memory.watch(status, clear)
        held = mx.ones((BIG // 4,))
        mx.eval(held)
        found, counted = peak()
        assert found >= BIG
        assert found != 900000 << 10
        assert counted == memory.OF_MLX
        del held
