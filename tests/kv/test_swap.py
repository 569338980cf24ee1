"""Swapped pages come back bit for bit or are reported lost; room and files are accounted for."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pamx.kv.pool import BlockPool, LayerGeometry
from pamx.kv.swap import SwapSpace

LAYERS = [
    LayerGeometry(2, 16, 8, mx.float32),
    LayerGeometry(1, 8, 8, mx.bfloat16),
    LayerGeometry(1, 8, 16, mx.float16),
]


@pytest.fixture
def pool() -> BlockPool:
    pool = BlockPool(LAYERS, 10, 8)
    for layer in pool.layers:
        for name in ("keys", "values"):
            shape = getattr(layer, name).shape
            setattr(layer, name, mx.random.normal(shape).astype(layer.geometry.dtype))
    mx.eval([(layer.keys, layer.values) for layer in pool.layers])
    return pool


def contents(pool: BlockPool, blocks: list[int]) -> list[np.ndarray]:
    ids = mx.array(blocks)
    return [
        np.array(pages[ids].astype(mx.float32))
        for layer in pool.layers
        for pages in (layer.keys, layer.values)
    ]


@pytest.mark.parametrize("tier", ["ram_bytes", "disk_bytes"])
def test_pages_come_back_in_other_blocks(pool: BlockPool, tmp_path: Path, tier: str) -> None:
    swap = SwapSpace(pool, folder=tmp_path, **{tier: 1 << 20})
    before, others = contents(pool, [7, 2, 9]), contents(pool, [0, 4, 6, 8])
    assert swap.reserve(5, 3)
    swap.save(5, [7, 2, 9])
    for layer in pool.layers:
        for block in (7, 2, 9, 1, 3, 5):
            layer.keys[block] = layer.values[block] = mx.nan
    assert swap.restore(5, [1, 3, 5])
    for found, expected in zip(contents(pool, [1, 3, 5]), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(contents(pool, [0, 4, 6, 8]), others, strict=True):
        np.testing.assert_array_equal(found, expected)
    swap.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_is_used_first_and_room_comes_back(pool: BlockPool, tmp_path: Path) -> None:
    size = pool.nbytes // pool.num_blocks
    swap = SwapSpace(pool, ram_bytes=2 * size, disk_bytes=3 * size, folder=tmp_path)
    assert swap.reserve(1, 2)
    assert swap.reserve(2, 3)
    assert not swap.reserve(3, 1)
    swap.save(1, [0, 1])
    assert list(tmp_path.iterdir()) == []
    swap.save(2, [2, 3, 4])
    assert len(list(tmp_path.glob("*/*.kv"))) == 1
    swap.drop(1)
    swap.drop(99)
    assert swap.reserve(3, 2)
    swap.close()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _change, Path.unlink])
def test_damage_is_a_miss_and_touches_nothing(
    pool: BlockPool, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    swap = SwapSpace(pool, disk_bytes=1 << 20, folder=tmp_path)
    swap.reserve(1, 2)
    swap.save(1, [0, 1])
    (path,) = tmp_path.glob("*/*.kv")
    damage(path)
    before = contents(pool, list(range(10)))
    assert not swap.restore(1, [2, 3])
    for found, expected in zip(contents(pool, list(range(10))), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert swap.reserve(2, 10)
    swap.close()


def test_a_folder_that_takes_no_files_loses_pages_and_stops_nothing(
    pool: BlockPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    swap = SwapSpace(pool, disk_bytes=pool.nbytes, folder=tmp_path)
    assert swap.reserve(1, 10)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        swap.save(1, list(range(10)))
    assert not swap.restore(1, list(range(10)))
    assert swap.reserve(2, 10), "the room is free again"
    swap.drop(2)
    assert swap.reserve(3, 10), "also what was reserved and never saved"
    swap.close()


def test_a_disk_that_is_nearly_full_is_left_alone(
    pool: BlockPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapSpace, "free_floor", 1 << 60)
    assert not SwapSpace(pool, disk_bytes=1 << 20, folder=tmp_path).reserve(1, 1)


def test_files_of_a_killed_process_are_removed_and_a_living_one_s_are_not(
    pool: BlockPool, tmp_path: Path
) -> None:
    code = f"""
import os, sys
from pathlib import Path
import mlx.core as mx
from pamx.kv.pool import BlockPool, LayerGeometry
from pamx.kv.swap import SwapSpace
swap = SwapSpace(BlockPool([LayerGeometry(1, 8, 8, mx.float32)], 4, 8),
                 disk_bytes=1 << 20, folder=Path({str(tmp_path)!r}))
swap.reserve(1, 1)
swap.save(1, [0])
print("saved", flush=True)
sys.stdin.read()
"""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "saved\n"
        assert len(list(tmp_path.glob("*/*.kv"))) == 2
        others[0].kill()
        others[0].wait()
        swap = SwapSpace(pool, disk_bytes=1 << 20, folder=tmp_path)
        swap.reserve(1, 1)
        swap.save(1, [0])
        assert len(list(tmp_path.glob("*/*.kv"))) == 2  # the living one's, and ours
        assert others[1].poll() is None
        swap.close()
        assert len(list(tmp_path.glob("*/*.kv"))) == 1
    finally:
        for other in others:
            other.kill()
            other.communicate()
