"""Kernel tests that were written for the software Metal run on a device through native/metal."""

from __future__ import annotations

import pytest
from oracle import Case

from metal.attention_case import Programs, Run
from metal.host import device_program, library
from pamx.native.launch import Kernel


@pytest.mark.parametrize("partition", [0, 32])
def test_a_kernel_test_runs_on_the_device(partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library.need(library.missing())
    monkeypatch.setattr("metal.softmetal.compile", device_program.compile)
    case = Case([40, 7], [1, 3], 4, 2, 64, 64, 16, window=9, sinks=True)
    Programs().check(Run(Kernel.PAGED_ATTENTION, case, partition=partition))
