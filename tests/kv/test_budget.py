"""The budget adds up, follows the tighter of machine and container, and is the user's to read."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

from pamx.kv import limits
from pamx.kv.budget import Footprint, MemoryBudget, measure_memory
from pamx.kv.limits import available_bytes, cgroup_room, own_bytes

MODEL = Footprint(weights=1 << 20, activations=1 << 19, scratch=1 << 18)


def test_the_lines_add_up_to_the_limit() -> None:
    memory = measure_memory()
    b = memory.budget(MODEL)
    assert b.limit == b.baseline + b.weights + b.step + b.buffer_cache + b.margin + b.pages
    assert b.pages > 0
    assert b.step == MODEL.activations + MODEL.scratch
    assert b.buffer_cache == memory.buffer_cache


def test_arrays_that_mlx_holds_are_not_counted_twice() -> None:
    before = measure_memory().baseline
    held = mx.ones((50 << 20,), mx.uint8)
    mx.eval(held)
    assert measure_memory().baseline == pytest.approx(before, abs=10 << 20)


def test_own_memory_grows_with_what_is_allocated() -> None:
    before = own_bytes()
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # no heap, which may have room to spare
    with mmap.mmap(-1, 30 << 20, flags=private) as held:
        for _ in range(30):
            held.write(b"x" * (1 << 20))
        assert own_bytes() - before == pytest.approx(len(held), abs=5 << 20)


def test_the_words_name_every_line() -> None:
    gigabyte = 10**9
    b = MemoryBudget(10 * gigabyte, gigabyte // 5, 4 * gigabyte, gigabyte, gigabyte // 2, gigabyte)
    assert b.explain() == (
        "10.0 GB may be used, of which this process takes 200 MB, weights 4.00 GB, a step 1.00 GB "
        "and reusable buffers 500 MB, and 1.00 GB are kept free"
    )
    assert (b.spare, b.lasting) == (gigabyte // 2, b.pages - gigabyte // 2)


def test_weights_that_fill_the_limit_leave_nothing() -> None:
    assert MemoryBudget(10, 1, 20, 1, 1, 1).pages == 0


def test_the_smallest_limit_above_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1 << 30
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text(f"{3 * gigabyte}\n")
    (tmp_path / "a" / "memory.current").write_text(f"{2 * gigabyte}\n")
    (tmp_path / "a" / "memory.stat").write_text(f"anon 5\ninactive_file {gigabyte}\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    real, cgroups = Path.read_text, limits._cgroups

    def read(path: Path, *args: str) -> str:
        return "0::/a/b\n" if str(path) == "/proc/self/cgroup" else real(path, *args)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(limits, "_cgroups", lambda: cgroups(tmp_path))
    free = SimpleNamespace(available=8 * gigabyte)
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: free)
    assert cgroup_room() == (3 * gigabyte, 2 * gigabyte)
    assert available_bytes() == 2 * gigabyte  # what the kernel can drop is no use
    (tmp_path / "a" / "memory.max").write_text("max\n")
    assert cgroup_room() is None
    assert available_bytes() == 8 * gigabyte
