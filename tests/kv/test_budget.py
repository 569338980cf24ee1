"""The budget adds up, follows the tighter of machine and container, and is the user's to read."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest

from pamx.kv import budget
from pamx.kv.budget import MemoryBudget, measure_budget


def test_the_lines_add_up_to_the_limit() -> None:
    b = measure_budget()
    assert b.limit == b.weights + b.scratch + b.buffer_cache + b.margin + b.pages
    assert b.pages > 0
    assert b.weights == pytest.approx(mx.get_active_memory(), abs=1 << 20)


def test_the_words_name_every_line() -> None:
    b = MemoryBudget(10 * 10**9, 4 * 10**9, 10**9, 5 * 10**8, 10**9)
    assert b.explain() == (
        "10.00 GB that may be used, less 4.00 GB of weights, 1.00 GB for a step, "
        "0.50 GB of reusable buffers and 1.00 GB of margin, leave 3.50 GB for pages"
    )


def test_weights_that_fill_the_limit_leave_nothing() -> None:
    assert MemoryBudget(10, 20, 1, 1, 1).pages == 0


def test_a_container_s_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1 << 30
    monkeypatch.setattr(
        budget.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * gigabyte)
    )
    files = {"memory.max": 3 * gigabyte, "memory.current": gigabyte}
    monkeypatch.setattr(budget, "_read_int", lambda name: files[name])
    assert measure_budget().limit - measure_budget().weights == 2 * gigabyte
    monkeypatch.setattr(budget, "_read_int", lambda _: None)
    assert measure_budget().limit - measure_budget().weights == 8 * gigabyte
