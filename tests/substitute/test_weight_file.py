"""A model whose packed weights come from their file: the same model, without its original ones."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

import pamx
from pamx import models
from pamx.models import packed
from pamx.native import library

PROMPT = [504, 3575, 282, 4649, 314]
if not library().cpu_isa or mx.default_device().type != mx.DeviceType.cpu:
    pytest.skip("packed weights need MLX on the CPU", allow_module_level=True)


@pytest.fixture
def home(
    default_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    monkeypatch.setenv("PAMX_HOME", str(tmp_path))
    shutil.copytree(default_model_path, tmp_path / "mine")
    yield tmp_path
    shutil.rmtree(tmp_path)


def answer(folder: Path) -> list[int]:
    with pamx.load(str(folder), context=64) as engine:
        return engine.generate(PROMPT, max_tokens=8).tokens


def spoil_quantised(file: Path) -> int:
    """Overwrites each quantised matrix; the file's size and time stay. Returns how many."""
    facts = file.stat()
    with file.open("r+b") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
        names = [n for n in header if n.removesuffix("weight") + "scales" in header]
        for name in names:
            begin, end = header[name]["data_offsets"]
            stream.seek(8 + length + begin)
            stream.write(b"\x55" * (end - begin))
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return len(names)


def parameters(model: Any) -> dict[str, Any]:
    return {
        name: np.array(value.view(mx.uint8) if value.dtype == mx.bfloat16 else value)
        for name, value in tree_flatten(model.parameters())
    }


def test_a_warm_start_reads_no_original_and_answers_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise it would be noticed that the original was written to.
    monkeypatch.setattr("pamx.models.packed.file_facts", lambda name, info: (name, info.st_size))
    folder = home / "mine"
    first = answer(folder)
    (file,) = (home / "packed").iterdir()
    written = file.stat()
    assert packed.kept_bytes() == {folder: written.st_size}
    weights = folder / "model.safetensors"
    assert spoil_quantised(weights) > 200
    assert answer(folder) == first
    assert (file.stat().st_ino, file.stat().st_size) == (written.st_ino, written.st_size)


def test_closing_gives_the_checkpoint_s_bits_back_from_the_file(home: Path) -> None:
    folder = home / "mine"
    answer(folder)
    with pamx.load(str(folder), context=64) as engine:
        model = engine.model
    found, right = parameters(model), parameters(models.load(str(folder)).model)
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert value.dtype == found[name].dtype
        assert np.array_equal(value.view(np.uint8), found[name].view(np.uint8)), name


def test_a_damaged_file_changes_no_answer(home: Path) -> None:
    folder = home / "mine"
    first = answer(folder)
    (file,) = (home / "packed").iterdir()
    right = file.read_bytes()
    places = np.random.default_rng(0).integers(0, len(right), 3)
    with file.open("r+b") as stream:
        for place in places:
            stream.seek(place)
            stream.write(bytes([right[place] ^ 0xFF]))
    assert answer(folder) == first
    assert file.read_bytes() == right


def test_nothing_is_kept_if_nobody_wants_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMX_WEIGHT_CACHE", "0")
    answer(home / "mine")
    assert not (home / "packed").exists()


def test_plain_mlx_packs_nothing(home: Path) -> None:
    with pamx.load(str(home / "mine"), context=64, compute="mlx") as engine:
        engine.generate(PROMPT, max_tokens=1)
    assert not (home / "packed").exists()
